"""Starting a zygote and asking it for sandboxes: the host's end of zygote.py."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from belljar import threads
from belljar.engines.base import CannotMount, Doors, Mount, hosts_file
from belljar.engines.linux import cgroups
from belljar.engines.linux.answer import answer
from belljar.engines.linux.control import send
from belljar.engines.linux.pidfd import kill
from belljar.errors import EngineError

from . import userns
from .launch import Launch

START_S = 60.0
DOCTOR_HINT = "belljar doctor shows which step this machine does not allow"
ROOM_HINT = "raise the limit of open files (ulimit -n) of this process"


class Born(NamedTuple):
    """What the zygote hands over with a new sandbox."""

    pidfd: int
    """Of its pid 1."""
    sockets: int
    """A file that counts its sockets (netns)."""


class Zygote:
    """A running zygote. Its sandboxes end when it does."""

    def __init__(
        self,
        control: socket.socket,
        pidfd: int,
        ids: userns.IdMap,
        *,
        landlock_abi: int,
        short_queues: bool,
    ) -> None:
        self.ids = ids
        self.landlock_abi = landlock_abi
        self.short_queues = short_queues
        """The kernel limits how many connections wait for code that does not accept them."""
        self.alive = True
        self._control = control
        self._pidfd = pidfd
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, launched: Launch) -> Zygote:
        """The zygote once it is behind its walls and serves."""
        ground, ours, process, ids, complaints = launched
        pidfd = -1
        try:
            async with asyncio.timeout(START_S):
                born, handles = await answer(ours)
                if born.get("zygote") and handles:
                    pidfd = handles[0]
                    born, _ = await answer(ours)
            if "ready" not in born:
                raise EngineError(
                    f"the jail's zygote for {ground.key!r} could not be walled in:"
                    f" {born.get('error', 'it ended without a word')}",
                    hint=_what_to_do(),
                )
        except BaseException as error:
            ours.close()
            if pidfd >= 0:
                kill(pidfd)
                os.close(pidfd)
            process.kill()
            process.wait()
            said = os.pread(complaints, 4000, 0).decode("utf-8", "replace").strip()
            if not isinstance(error, (OSError, TimeoutError)) and not said:
                raise
            if isinstance(error, asyncio.CancelledError):
                raise
            why = error if str(error) else f"it took longer than {START_S:.0f} s"
            raise EngineError(
                f"the jail's zygote for {ground.key!r} did not start: {why} {said}".strip(),
                hint=DOCTOR_HINT,
            ) from error
        finally:
            os.close(complaints)
        await threads.ENGINES.do_for(threads.OURS, process.wait)
        return cls(ours, pidfd, ids, **born["ready"])

    async def spawn(
        self,
        stream: socket.socket,
        group: cgroups.Group | None,
        *,
        index: int,
        disk_bytes: int,
        disk_files: int,
        cpus: list[int] | None,
        rehearse: bool,
        number: int,
        parent: int | None = None,
        to_parent: socket.socket | None = None,
        mounts: Sequence[tuple[Mount, int]] = (),
        doors: Doors | None = None,
    ) -> Born:
        """A new sandbox in its cgroup with its agent on `stream`, which is closed here. `number`
        names it among the zygote's; `parent` is the one it is a branch of, and `to_parent` its end
        of a socket between the two. `mounts`: what it is given; `doors`: its way to the
        gateway."""
        async with self._turn:
            with stream, contextlib.ExitStack() as passed:
                order = {
                    "number": number,
                    "parent": parent,
                    "id": index,
                    "disk_bytes": disk_bytes,
                    "disk_files": disk_files,
                    "cpus": cpus,
                    "rehearse": rehearse,
                    "mounts": _described(mounts),
                    "hosts": hosts_file(doors.hosts) if doors else "",
                }
                try:
                    entrances = group.open_entrances() if group else []
                except OSError as error:
                    raise self._broken(error) from error
                for entrance in entrances:
                    passed.callback(os.close, entrance)
                family = [to_parent.fileno()] if to_parent else []
                lent = [descriptor for _, descriptor in mounts]
                if doors:
                    lent.append(passed.enter_context(doors.wire()).fileno())
                reply, handles = await self._ask(
                    order, [stream.fileno(), *family, *entrances, *lent], handles=2
                )
        if "error" in reply:
            raise EngineError(
                f"the kernel refused a new sandbox at {reply['step']}: {reply['error']}",
                hint=_what_to_do(reply["errno"]),
            )
        return Born(handles[0], handles[1])

    async def attach(self, number: int, mount: Mount, lent: int) -> None:
        """Mounts into the sandbox that `spawn` gave this number."""
        mounts = [(mount, lent)]
        order = {"attach": number, "mounts": _described(mounts)}
        async with self._turn:
            reply, _ = await self._ask(order, [lent])
        if "error" in reply:
            raise CannotMount(mount, reply["error"])

    async def move(self, number: int, pid: int, group: cgroups.Group) -> None:
        """Moves a process of the sandbox that `spawn` gave this number into its group. `pid`: as
        it is inside."""
        async with self._turn:
            with contextlib.ExitStack() as passed:
                try:
                    entrances = group.open_entrances(for_others=True)
                except OSError as error:
                    raise self._broken(error) from error
                for entrance in entrances:
                    passed.callback(os.close, entrance)
                reply, _ = await self._ask({"move": number, "pid": pid}, entrances)
        if "error" in reply:
            raise EngineError(f"the branch could not be limited: {reply['error']}")

    async def open_doors(self, number: int, doors: Doors) -> None:
        """For the sandbox that `spawn` gave this number, and all that share its network."""
        with doors.wire() as wire:
            await self._change_doors(number, doors.hosts, [wire.fileno()])

    async def name_hosts(self, number: int, hosts: Mapping[str, str]) -> None:
        await self._change_doors(number, hosts, [])

    async def _change_doors(
        self, number: int, hosts: Mapping[str, str], wires: Sequence[int]
    ) -> None:
        order = {"doors": number, "hosts": hosts_file(hosts)}
        async with self._turn:
            reply, _ = await self._ask(order, wires)
        if "error" in reply:
            raise EngineError(f"the sandbox's network could not be changed: {reply['error']}")

    async def _ask(
        self, order: Mapping[str, object], descriptors: Sequence[int], *, handles: int = 0
    ) -> tuple[dict[str, Any], list[int]]:
        """When its turn has come. Whatever breaks the sequence of orders and answers ends it."""
        try:
            send(self._control, order, descriptors)
            reply, received = await answer(self._control)
            if len(received) < handles and "error" not in reply:
                for descriptor in received:
                    os.close(descriptor)
                raise EngineError("it made a sandbox, but we have no descriptor left for it")
            return reply, received
        except OSError as error:
            raise self._broken(error) from error
        except EngineError as error:
            self.close()
            raise EngineError(f"the jail's zygote was lost: {error}", hint=ROOM_HINT) from error
        except asyncio.CancelledError:
            # The answer to this order would be taken for the next one's.
            self.close()
            raise

    def _broken(self, error: OSError) -> EngineError:
        full = error.errno in (errno.ETOOMANYREFS, errno.EMFILE, errno.ENFILE)
        if not full:
            self.close()
        return EngineError(
            f"the jail's zygote could not be asked for a sandbox: {error}",
            hint=ROOM_HINT if full else "",
        )

    def close(self) -> None:
        """Ends the zygote and with it every sandbox that came from it."""
        if self.alive:
            self.alive = False
            kill(self._pidfd)
            os.close(self._pidfd)
            self._control.close()


def _what_to_do(code: int = 0) -> str:
    from . import advice  # much to load, and only those without a jail need it

    return advice.hint(code, advice.gather(), own=DOCTOR_HINT)


def _described(mounts: Sequence[tuple[Mount, int]]) -> list[dict[str, object]]:
    return [{"place": mount.place, "folder": mount.folder} for mount, _ in mounts]
