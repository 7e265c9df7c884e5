"""gVisor, seen from the host: private roots, snapshots of warm sandboxes, and copies of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import shutil
import socket
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from belljar import threads
from belljar.engines.base import Capabilities, Control, Ground
from belljar.engines.linux import cgroups, root
from belljar.engines.making import Making
from belljar.errors import BelljarError, EngineError, EngineUnavailable
from belljar.model import GIB, Limits
from belljar.runtimes.guest import protocol, standalone
from belljar.runtimes.interpreter import base_interpreter, base_prefix
from belljar.settings import Settings

from . import available, bundle, folder, inside, start
from . import group as groups
from .runsc import Runsc, find
from .wall import GvisorWall

log = logging.getLogger("belljar")
PACKAGE = Path(__file__).resolve().parents[2]
WARM_S = 180.0
"""How long the imports of an environment may take before its snapshot."""
STARTS = 3
"""How often a sandbox is tried to be started."""


_WARMING = Limits(memory_bytes=4 * GIB, cpus=64.0, processes=4096)
"""For our own imports, before any code is there."""


class Root(NamedTuple):
    """A private root, ready to be used by any number of sandboxes."""

    path: Path
    mounts: list[dict[str, Any]]


class GvisorEngine:
    name = "gvisor"
    capabilities = Capabilities(disk_files=False, most_waiting=16, kept=True, network=True)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.interpreter = base_interpreter()
        self._hierarchy = cgroups.claim_ours()
        self._runsc: Runsc | None = None
        self._folder: folder.Folder | None = None
        self._roots: dict[str, Root] = {}
        self._images: dict[str, asyncio.Task[Path]] = {}
        self._asked: Counter[str] = Counter()
        self._walls: set[GvisorWall] = set()
        self._making = Making[GvisorWall]()
        folder.sweep(settings.home)

    def controls(self) -> list[Control]:
        from . import checks  # much to load, and only doctor asks

        return checks.controls(self._settings)

    async def create(self, ground: Ground, limits: Limits, *, waiting: bool) -> GvisorWall:
        """Not cancelled half-way: what runsc has started must be known to be destroyed."""
        return await self._making.make(self._make(ground, limits, waiting=waiting))

    async def close(self) -> None:
        await self._making.settled()
        images, self._images = list(self._images.values()), {}
        await asyncio.gather(*images, return_exceptions=True)
        walls = [wall.destroy() for wall in list(self._walls)]
        await asyncio.gather(*walls, return_exceptions=True)
        if self._folder:
            self._folder.close()
            self._folder = None
        if self._hierarchy:
            self._hierarchy.close()

    # -- one sandbox -----------------------------------------------------------------------------

    async def _make(self, ground: Ground, limits: Limits, *, waiting: bool) -> GvisorWall:
        runsc = await self._found()
        image = await self._image(ground, waiting=waiting) if runsc.copies else None
        wall = await self._start(runsc, ground, limits, image=image)
        wall.stream.setblocking(False)
        try:
            if waiting and not image:
                await _until_warm(wall.stream)  # else it would seem ready before its rehearsal
            word = standalone.REHEARSE if waiting else standalone.AT_ONCE
            wall.stream.send(inside.SIZE.pack(limits.disk_bytes) + word)
        except BaseException as error:
            await wall.destroy()
            if isinstance(error, OSError):
                raise EngineError(f"gvisor: the sandbox ended at once: {error}") from error
            raise
        return wall

    async def _start(
        self, runsc: Runsc, ground: Ground, limits: Limits, *, image: Path | None
    ) -> GvisorWall:
        """A sandbox whose agent waits for its first word: a copy of the snapshot, or a new one.

        Once in thousands gVisor's kernel ends while it starts. No code has run then."""
        for _ in range(STARTS - 1):
            try:
                return await self._start_once(runsc, ground, limits, image=image)
            except start.EndedEarly as error:
                log.warning("a sandbox is started again: %s", error.message)
        return await self._start_once(runsc, ground, limits, image=image)

    async def _start_once(
        self, runsc: Runsc, ground: Ground, limits: Limits, *, image: Path | None
    ) -> GvisorWall:
        isolation = self._isolation(runsc)
        self._check_required(isolation)
        made = await self._root(ground)
        name = secrets.token_hex(8)
        assert self._folder is not None
        place = self._folder.path / name
        with contextlib.ExitStack() as undo:
            try:
                place.mkdir()
                undo.callback(shutil.rmtree, place, ignore_errors=True)
                (place / "inputs").mkdir(mode=0o755)
                (place / "inputs").chmod(0o755)
                written = bundle.specification(
                    made.path, made.mounts, inputs=place / "inputs", python=self.interpreter
                )
                (place / "config.json").write_text(json.dumps(written))
                group = groups.create(self._hierarchy, limits) if self._hierarchy else None
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
            except OSError as error:
                raise EngineError(
                    f"the host has no room for another sandbox: {error}",
                    hint="is the disk full, or the limit of open files (ulimit -n) too low?",
                ) from error
            if group:
                undo.callback(group.remove)
                undo.callback(group.kill)
            command = ["restore", f"--image-path={image}"] if image else ["run"]
            argv = runsc.argv(
                place / "state",
                *command,
                f"--bundle={place}",
                f"--pid-file={place / 'pid'}",
                "--detach",
                name,
            )
            cpus = None if group else groups.cores(limits.cpus)
            try:
                await start.call(argv, stream=theirs, group=group, cpus=cpus, what="gvisor")
                wall = GvisorWall(
                    stream=ours,
                    folder=place,
                    group=group,
                    isolation=isolation,
                    limits=limits,
                    gone=self._walls.discard,
                )
            except BaseException:
                folder.kill_users(place)
                raise
            undo.pop_all()
        self._walls.add(wall)
        return wall

    # -- what sandboxes are made from ------------------------------------------------------------

    async def _found(self) -> Runsc:
        if self._runsc is None:
            if missing := available.why_not(self._settings):
                raise EngineUnavailable(
                    f"gVisor cannot be used here: {missing.why}", hint=missing.hint
                )
            self._runsc = await threads.ENGINES.do_for(threads.OURS, find, self._settings)
            self._folder = folder.Folder.claim(self._settings.home)
        return self._runsc

    async def _root(self, ground: Ground) -> Root:
        made = self._roots.get(ground.key)
        if made is None:
            made = self._roots[ground.key] = await threads.ENGINES.do_for(
                threads.OURS, self._make_root, ground
            )
        return made

    def _make_root(self, ground: Ground) -> Root:
        assert self._folder is not None
        facts = root.host_facts(self.interpreter, base_prefix(), _foreign_packages())
        environment = (str(ground.folder), ground.mount) if ground.folder else None
        layout = bundle.lay_out(
            root.plan_root(facts, environment), is_folder=lambda path: Path(path).is_dir()
        )
        path = self._folder.path / f"root-{secrets.token_hex(4)}"
        folder.write(
            path,
            [
                *layout.made,
                *bundle.library(_guest(), lambda name: (PACKAGE / name).read_text()),
                bundle.ground_file(ground, disk_bytes=self._settings.defaults.disk_bytes),
            ],
            closed=bundle.LIBRARY,
        )
        return Root(path, layout.mounts)

    async def _image(self, ground: Ground, *, waiting: bool) -> Path | None:
        """The snapshot to copy. Who waits for a single run does not wait for one to be taken; but
        who comes a second time will come again."""
        self._asked[ground.key] += 1
        task = self._images.get(ground.key)
        if task is None and (waiting or self._asked[ground.key] > 1):
            task = self._images[ground.key] = asyncio.ensure_future(self.snapshot(ground))
            task.add_done_callback(_tell)
        if task is None or not (waiting or task.done()):
            return None
        try:
            return await asyncio.shield(task)
        except BelljarError:
            return None  # told when it happened

    async def snapshot(self, ground: Ground) -> Path:
        """Starts a sandbox, waits until it has imported all, and lets runsc write it to disk."""
        runsc = await self._found()
        if not runsc.copies:
            raise EngineError(
                "gVisor copies sandboxes for root only"
                if runsc.rootless
                else f"copies of gVisor {runsc.version} are slower than new sandboxes"
            )
        assert self._folder is not None
        path = self._folder.path / f"image-{secrets.token_hex(4)}"
        wall = await self._start(runsc, ground, _WARMING, image=None)
        try:
            wall.stream.setblocking(False)
            await _until_warm(wall.stream)
            words = ("checkpoint", f"--image-path={path}", "--compression=none", wall.folder.name)
            argv = runsc.argv(wall.folder / "state", *words)
            await start.call(argv, what="gvisor's snapshot")
        finally:
            await wall.destroy()
        return path

    def _isolation(self, runsc: Runsc) -> dict[str, str]:
        version = f"cgroup-v{self._hierarchy.version}" if self._hierarchy else ""
        behind = f", {version} behind it" if version else ""
        return {
            "kernel": f"gVisor {runsc.version} ({runsc.platform})",
            "user": "gVisor's uid 1000; outside a user namespace, "
            + ("our own uid" if runsc.rootless else "nobody"),
            "processes_hidden": "gVisor",
            "filesystem": "private read-only root",
            "network": "none (gVisor)",
            "system_calls": "gVisor, seccomp allowlist inside",
            "disk": "tmpfs quota of bytes; memory bounds the number of files",
            "memory": f"watched inside{behind}",
            "processes": f"rlimit in gVisor{behind}",
            "cpu": version or "affinity",
        }

    def _check_required(self, isolation: dict[str, str]) -> None:
        weak = ("absent", "affinity", "watched inside", "rlimit in gVisor")
        for control in self._settings.required:
            if control not in isolation:
                raise EngineUnavailable(
                    f"the required control {control!r} is unknown to gvisor",
                    hint=f"known: {', '.join(sorted(isolation))}",
                )
            if isolation[control] in weak:
                raise EngineUnavailable(
                    f"the required control {control!r} is not in force here"
                    f" (there is only: {isolation[control]})",
                    hint="belljar doctor says what is missing",
                )


def _tell(taking: asyncio.Task[Path]) -> None:
    if not taking.cancelled() and (error := taking.exception()):
        log.warning("gvisor starts every sandbox anew, for lack of a snapshot: %s", error)


async def _until_warm(stream: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    frames = protocol.Reader(protocol.FROM_AGENT)
    try:
        async with asyncio.timeout(WARM_S):
            while data := await loop.sock_recv(stream, 65536):
                for kind, payload in frames.feed(data):
                    if kind == protocol.READY:
                        return
                    said = protocol.unpack(payload).get("message", "")
                    raise EngineError(f"the agent could not start: {said}")
    except (OSError, protocol.BadFrame, TimeoutError) as error:
        raise EngineError(f"the agent did not get ready: {error or 'no answer'}") from error
    raise EngineError("the sandbox ended before it was warm")


def _guest() -> list[str]:
    return [str(path.relative_to(PACKAGE)) for path in (PACKAGE / "runtimes/guest").rglob("*.py")]


def _foreign_packages() -> set[str]:
    """Package folders of the host's interpreter, hidden from sandboxes."""
    prefix, exec_prefix = base_prefix(), str(Path(sys.base_exec_prefix).resolve())
    paths = sysconfig.get_paths(vars={"base": prefix, "platbase": exec_prefix})
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {
        paths["purelib"],
        paths["platlib"],
        f"{prefix}/lib/python{version}/site-packages",
        "/usr/lib/python3/dist-packages",
        f"/usr/lib/python{version}/dist-packages",
    }
