"""Whose attempts are under way, and whether that process still lives.

The kernel says so (SQLite: a lock on a file, gone with its process), or the database does (a lock
of the session that writes). No clock and no heartbeat: neither can be wrong about a busy machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import weakref
from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa

from belljar.errors import TrailError
from belljar.trail.store import Store


class Owner:
    """This process, in this trail. Registered and judged while `Store.opening` is held."""

    def __init__(self, store: Store) -> None:
        self.id = secrets.token_hex(16)
        self._store = store
        self._descriptor: int | None = None
        if store.file:
            self._descriptor = _held(store.owners_folder(), self.id)
            _mine.add(self)

    def renew(self) -> None:
        """Whoever deletes our file makes others take us for dead; then there is a new one."""
        if self._descriptor is None or os.fstat(self._descriptor).st_nlink:
            return
        with self._store.opening():  # nobody judges us meanwhile
            with contextlib.suppress(OSError):
                (self._store.owners_folder() / self.id).unlink()
            old, self._descriptor = self._descriptor, None
            os.close(old)
            self._descriptor = _held(self._store.owners_folder(), self.id)

    def attach(self, connection: sa.Connection) -> None:
        """Lives as long as the connection that writes does."""
        if not self._store.file:
            key = _key(self.id)
            if not connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({key})").scalar_one():
                # Our own old session, of which the database does not know yet that it is gone.
                raise TrailError("the database still holds our last connection to be alive")
            connection.commit()

    def dead(self, others: Iterable[str], connection: sa.Connection) -> list[str]:
        """Those of them that have ended."""
        if self._store.file:
            folder = self._store.owners_folder()
            return [other for other in others if other != self.id and not _alive(folder, other)]
        found = []
        for other in others:
            key = _key(other)
            if (
                other != self.id
                and connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({key})").scalar_one()
            ):
                connection.exec_driver_sql(f"SELECT pg_advisory_unlock({key})")
                found.append(other)
        return found

    def sweep(self) -> None:
        """Takes away what the dead left behind."""
        if self._store.file:
            folder = self._store.owners_folder()
            for other in os.listdir(folder):
                if other != self.id and not _alive(folder, other):
                    with contextlib.suppress(OSError):
                        (folder / other).unlink()

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                (self._store.owners_folder() / self.id).unlink()
            os.close(descriptor)

    def in_child(self) -> None:
        """After a fork: the lock is the parent's, and must not outlive it here."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


_mine: weakref.WeakSet[Owner] = weakref.WeakSet()


def _after_fork() -> None:
    for owner in list(_mine):
        owner.in_child()


os.register_at_fork(after_in_child=_after_fork)


def _held(folder: Path, name: str) -> int:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(
            folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except OSError as error:
        raise TrailError(f"the trail cannot be written: {folder}: {error.strerror}") from error


def _alive(folder: Path, name: str) -> bool:
    if "/" in name or name.startswith("."):
        return False
    try:
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # who cannot be judged is not declared dead
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _key(owner: str) -> int:
    """The number of its lock; not to be confused with those of `store`, which are small."""
    return int.from_bytes(hashlib.sha256(owner.encode()).digest()[:8], "big", signed=True)
