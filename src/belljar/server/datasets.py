"""Datasets: files of a tenant that are uploaded once and mounted into its sandboxes (S4).

    BELLJAR_HOME/server/datasets/ID/content        the bytes, for reading only
    BELLJAR_HOME/server/datasets/ID/about.json     whose it is, its name, size and sha256
    BELLJAR_HOME/server/datasets/ID/described.json what a sandbox has found in it
    BELLJAR_HOME/server/datasets/.ID               one that is not whole yet

This process writes the bytes and never reads them.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import structlog

from belljar import threads
from belljar.errors import Busy
from belljar.server.errors import ApiError
from belljar.server.tenants import Tenant

MOST_OF_A_TENANT = 1000
RESERVE_BYTES = 1 << 30
"""So much of the disk is left for others."""
LOOK_BYTES = 16 << 20
"""How much an upload writes before the disk is looked at again: others write, too."""
_ID = re.compile(r"[0-9a-f]{32}")
log = structlog.get_logger("belljar.server")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    id: str
    tenant: str
    name: str
    size: int
    sha256: str
    created: float


@dataclass(slots=True)
class _Upload:
    tenant: str
    size: int
    """As much as was announced, or has come if that is more."""
    written: int = 0


class Datasets:
    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._arriving: dict[str, _Upload] = {}
        """By the id that each will have."""
        self._removing: set[asyncio.Future[None]] = set()
        self._ensure_folder()
        self._known = {found.id: found for found in self._load()}

    def _ensure_folder(self) -> None:
        """Also when somebody has deleted it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # Below it content must be readable for the sandboxes' users.
        self._folder.parent.chmod(0o700)

    def _load(self) -> list[Dataset]:
        """What an earlier server has left; halves of uploads go."""
        found = []
        for entry in os.scandir(self._folder):
            if not _ID.fullmatch(entry.name):
                shutil.rmtree(entry.path, ignore_errors=True)
                continue
            try:
                found.append(Dataset(**json.loads(Path(entry.path, "about.json").read_text())))
            except (OSError, ValueError, TypeError) as error:
                log.error("dataset cannot be read", dataset=entry.name, error=repr(error))
        return found

    # -- asking ----------------------------------------------------------------------------------

    def of(self, tenant: str) -> list[Dataset]:
        return [found for found in self._known.values() if found.tenant == tenant]

    def find(self, tenant: str, dataset_id: str) -> Dataset:
        """The tenant's own; for any other id the same 404."""
        found = self._known.get(dataset_id)
        if found is None or found.tenant != tenant:
            raise ApiError(
                "not_found", "there is no such dataset", hint="GET /v1/datasets lists yours"
            )
        return found

    def path(self, tenant: str, dataset_id: str) -> Path:
        found = self._folder / self.find(tenant, dataset_id).id / "content"
        if not found.is_file():
            log.error("dataset has no content", dataset=dataset_id)
            raise ApiError(
                "not_found",
                "the content of this dataset is gone from the server",
                hint="remove it, and upload it again",
            )
        return found

    async def described(self, dataset: Dataset) -> bytes:
        """As JSON; nothing if nobody has looked yet."""
        path = self._folder / dataset.id / "described.json"
        try:
            return await threads.FILES.do_for(dataset.tenant, path.read_bytes)
        except OSError:
            return b""

    async def remember(self, dataset: Dataset, described: dict[str, Any]) -> None:
        if dataset.id in self._known:
            path = self._folder / dataset.id / "described.json"
            try:
                await threads.FILES.do_for(dataset.tenant, _write, path, described)
            except OSError as error:  # then it is looked at again
                log.error("description not kept", dataset=dataset.id, error=str(error))

    # -- changing --------------------------------------------------------------------------------

    async def add(
        self, tenant: Tenant, name: str, pieces: AsyncIterator[bytes], *, declared: int | None
    ) -> Dataset:
        """From the network to the disk, a piece at a time; what breaks off leaves nothing."""
        identity = secrets.token_hex(16)
        partial = self._folder / f".{identity}"
        found: Dataset | None = None
        size = looked = 0
        upload = self._arriving[identity] = _Upload(tenant.name, declared or 0)
        digest = hashlib.sha256()
        try:
            self._check(tenant, upload)
            self._ensure_folder()
            self._check_disk()
            file = await threads.FILES.take_for(
                tenant.name, lambda file: _uncreate(partial, file), _create, partial
            )
            writing: asyncio.Future[None] | None = None
            try:
                async for piece in pieces:
                    size += len(piece)
                    if size > upload.size:
                        upload.size = size
                        self._check(tenant, upload)
                    if size - looked >= LOOK_BYTES:
                        looked = size
                        self._check_disk()
                    if writing:
                        await asyncio.shield(writing)
                    writing = asyncio.ensure_future(
                        threads.FILES.do_for(tenant.name, _append, file, digest, piece, upload)
                    )
                if writing:
                    await asyncio.shield(writing)
                await threads.FILES.finish_for(tenant.name, os.fsync, file)
            finally:
                if writing and not writing.done():
                    await asyncio.wait((writing,))  # before its descriptor is closed
                os.close(file)
            stored = Dataset(
                id=identity,
                tenant=tenant.name,
                name=name,
                size=size,
                sha256=digest.hexdigest(),
                created=round(time.time(), 3),
            )
            whole = self._folder / identity
            await threads.FILES.take_for(
                tenant.name,
                lambda _: shutil.rmtree(whole, ignore_errors=True),
                self._complete,
                partial,
                stored,
            )
            found = stored
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                _full()
            log.error("dataset not stored", tenant=tenant.name, error=str(error))
            _failed("the dataset could not be stored")
        finally:
            if found is None:
                # To its end, even if the request is cancelled.
                removing = asyncio.ensure_future(self._discard(identity, partial))
                self._removing.add(removing)
                removing.add_done_callback(self._removing.discard)
                await asyncio.shield(removing)
            else:
                del self._arriving[identity]
        self._known[identity] = found
        return found

    async def _discard(self, identity: str, partial: Path) -> None:
        """It counts until its bytes are gone, which may take long."""
        try:
            whose = self._arriving[identity].tenant
            await threads.REMOVALS.do_for(whose, shutil.rmtree, partial, ignore_errors=True)
        finally:
            del self._arriving[identity]

    def _complete(self, partial: Path, found: Dataset) -> None:
        _write(partial / "about.json", asdict(found))
        partial.rename(self._folder / found.id)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def remove(self, dataset: Dataset, *, in_use: bool) -> None:
        if in_use:
            raise Busy("a sandbox has this dataset mounted", hint="end the sandbox first")
        del self._known[dataset.id]
        gone = self._folder / f".{dataset.id}"
        try:
            (self._folder / dataset.id).rename(gone)  # at once; then its bytes, which may take long
        except FileNotFoundError:
            pass  # somebody was faster
        except OSError as error:
            self._known[dataset.id] = dataset
            log.error("dataset not removed", dataset=dataset.id, error=str(error))
            _failed("the dataset could not be removed")
        await threads.REMOVALS.do_for(dataset.tenant, shutil.rmtree, gone, ignore_errors=True)

    def _check(self, tenant: Tenant, upload: _Upload) -> None:
        """With `upload`, which is one of those that arrive."""
        tenant.check()
        if upload.size > self._most_bytes:
            raise ApiError(
                "body_too_large",
                f"a dataset has at most {self._most_bytes} bytes",
                hint="the most is the operator's setting dataset_bytes",
            )
        own = [one.size for one in self.of(tenant.name)]
        own += [one.size for one in self._arriving.values() if one.tenant == tenant.name]
        if len(own) > MOST_OF_A_TENANT:
            raise ApiError(
                "quota_exceeded", f"there are {len(own) - 1} datasets", hint="remove some"
            )
        most = tenant.quotas.dataset_bytes
        if most and sum(own) > most:
            raise ApiError(
                "quota_exceeded",
                f"all datasets together have at most {most} bytes",
                hint="remove one with DELETE /v1/datasets/ID",
            )

    def _check_disk(self) -> None:
        """Whether all that is announced fits, of every tenant's uploads."""
        disk = os.statvfs(self._folder)
        coming = sum(one.size - one.written for one in self._arriving.values())
        if disk.f_bavail * disk.f_frsize < coming + RESERVE_BYTES:
            _full()


def _failed(what: str) -> NoReturn:
    raise ApiError(
        "storage_unavailable",
        f"{what}: this server's folder of datasets failed or was lost",
        hint="try again; the server's log says why",
        retry_after_s=5,
    )


def _full() -> NoReturn:
    raise ApiError("storage_full", "this server's disk is full", hint="the operator can make room")


def _create(folder: Path) -> int:
    """A new folder with empty content, or neither."""
    folder.mkdir(mode=0o755)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(folder / "content", flags, 0o444)
    except BaseException:
        folder.rmdir()
        raise
    os.fchmod(file, 0o444)  # whatever our umask is
    return file


def _uncreate(folder: Path, file: int) -> None:
    os.close(file)
    shutil.rmtree(folder, ignore_errors=True)


def _append(file: int, digest: Any, piece: bytes, upload: _Upload) -> None:
    digest.update(piece)
    view = memoryview(piece)
    while view:
        written = os.write(file, view)
        upload.written += written  # now it is the disk that has less
        view = view[written:]


def _write(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_name(f"{path.name}.new")
    partial.write_text(json.dumps(content))
    partial.rename(path)
