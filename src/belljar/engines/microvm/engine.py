"""microVMs, seen from the host: one snapshot per warm interpreter, one copy of it per sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from belljar import threads
from belljar.engines.base import Capabilities, Control, Ground, Inside, Seen
from belljar.engines.linux import cgroups
from belljar.engines.linux.cgroups.removal import removed
from belljar.engines.linux.pidfd import exited, kill
from belljar.engines.making import DestroyedOnce, Making
from belljar.errors import EngineError, EngineUnavailable, LimitExceeded
from belljar.model import MIB, Limits, Usage
from belljar.runtimes.guest import standalone
from belljar.settings import Settings

from . import accelerator, available, contents, disks, image, launch, machine, monitor, snapshots
from .process import make_snapshot, message

RESERVE_BYTES = 256 * MIB
"""What a machine has beyond the code's memory: the guest's kernel, root and agent."""
OVERHEAD_BYTES = 256 * MIB
"""And QEMU beyond its guest's memory, most of it translated code."""
OVERHEAD_CPUS = 0.25
"""The guest's kernel keeps the code to its share; a machine that the host had to hold back would
count the time it stood still as time it used."""
QEMU_PROCESSES = 128
"""Threads: one per virtual CPU, the main loop, and up to 64 that read the disk."""


class MicrovmEngine:
    name = "microvm"
    capabilities = Capabilities(most_waiting=4, kept=True, network=True)
    interpreter = contents.INTERPRETER

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._program = ""
        self._version = ""
        self._launcher: asyncio.Task[launch.Launcher] | None = None
        self._snapshots: dict[str, asyncio.Task[snapshots.Snapshot]] = {}
        self._kind: asyncio.Task[machine.Machine] | None = None
        self._walls: set[MicrovmWall] = set()
        self._making = Making[MicrovmWall]()
        self._hierarchy = cgroups.claim_ours()

    def controls(self) -> list[Control]:
        from . import checks

        return checks.controls(self._settings, cgroups=self._hierarchy is not None)

    async def create(self, ground: Ground, limits: Limits, *, waiting: bool) -> MicrovmWall:
        """Not to be cancelled half-way: the launcher's answer would be taken for the next one's."""
        return await self._making.make(self._make(ground, limits, waiting=waiting))

    async def _make(self, ground: Ground, limits: Limits, *, waiting: bool) -> MicrovmWall:
        self.check(limits)
        kind = await self._machine()
        snapshot = await self._snapshot(kind, ground)
        isolation = self._isolation(kind)
        self._check_required(isolation)
        kind = dataclasses.replace(kind, has_disk=ground.folder is not None)
        with contextlib.ExitStack() as undo:
            group = self._group(limits)
            if group:
                undo.callback(group.remove)
            with contextlib.ExitStack() as passed:
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
                passed.enter_context(theirs)
                talk, their_talk = socket.socketpair()
                undo.callback(talk.close)
                passed.enter_context(their_talk)
                log = os.memfd_create("belljar-qemu")
                undo.callback(os.close, log)
                state = os.memfd_create("belljar-state")
                passed.callback(os.close, state)
                os.write(state, snapshot.state)
                os.lseek(state, 0, os.SEEK_SET)
                launcher = await self._ready_launcher(kind)
                inherited = [snapshot.ram, theirs.fileno(), their_talk.fileno(), state]
                if ground.folder:
                    disk = await threads.ENGINES.do_for(
                        threads.OURS, disks.disk, ground.folder, self._settings
                    )
                    inherited.append(await launcher.open(disk.path))
                    passed.callback(os.close, inherited[-1])
                entrances = group.open_entrances() if group else []
                for entrance in entrances:
                    passed.callback(os.close, entrance)
                numbers = [launch.descriptor(index) for index in range(len(inherited))]
                descriptors = machine.Descriptors(
                    ram=numbers[0],
                    stream=numbers[1],
                    monitor=numbers[2],
                    state=numbers[3],
                    disk=numbers[4] if ground.folder else -1,
                )
                argv = machine.copy(kind, descriptors)
                pidfd = await launcher.qemu(
                    argv, log, inherited, entrances=entrances, lend=not kind.reads_memory
                )
            undo.pop_all()
        told = {"disk_bytes": limits.disk_bytes, "disk_files": limits.disk_files}
        with contextlib.suppress(BrokenPipeError):  # gone already: whoever waits for it is told why
            talk.send(monitor.restore(descriptors.state))
            ours.send(message(told) + (standalone.REHEARSE if waiting else standalone.AT_ONCE))
        ours.setblocking(False)
        wall = MicrovmWall(self, ours, talk, pidfd, log, group, isolation, limits)
        self._walls.add(wall)
        return wall

    def check(self, limits: Limits) -> None:
        most = self._settings.microvm_memory_bytes
        if limits.memory_bytes > most:
            raise LimitExceeded(
                f"memory_bytes: a microVM has at most {most // MIB} MiB",
                hint="raise settings.microvm_memory_bytes, or take another engine",
            )

    def _group(self, limits: Limits) -> cgroups.Group | None:
        if not self._hierarchy:
            return None
        return cgroups.limited(self._hierarchy, _around(limits), reserve=0)

    async def close(self) -> None:
        await self._making.settled()
        await asyncio.gather(
            *(wall.destroy() for wall in list(self._walls)), return_exceptions=True
        )
        tasks: list[asyncio.Task[snapshots.Snapshot] | asyncio.Task[launch.Launcher]]
        tasks = [*self._snapshots.values(), *([self._launcher] if self._launcher else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(BaseException):
                (await task).close()
        self._snapshots.clear()
        self._launcher = None
        if self._hierarchy:
            self._hierarchy.close()

    # -- what is made once -------------------------------------------------------------------------

    async def _machine(self) -> machine.Machine:
        if self._kind is None or (self._kind.done() and self._kind.exception()):
            self._kind = asyncio.ensure_future(self._find_machine())
        return await asyncio.shield(self._kind)

    async def _find_machine(self) -> machine.Machine:
        settings = self._settings
        if missing := available.why_not(settings):
            raise EngineUnavailable(f"microvm: {missing.why}", hint=missing.hint)
        program = available.program(settings)
        built = image.locate(settings)
        assert program and built
        await threads.ENGINES.do_for(threads.OURS, snapshots.sweep, settings)
        self._version = await threads.ENGINES.do_for(threads.OURS, qemu_version, program)
        chosen = settings.microvm_accelerator
        if chosen == "auto":
            chosen = "kvm" if await accelerator.works(settings, built, program) else "tcg"
        cpus = settings.microvm_cpus or min(2 if chosen == "kvm" else 1, os.cpu_count() or 1)
        return machine.Machine(
            program=program,
            accelerator=chosen,
            memory_bytes=settings.microvm_memory_bytes // MIB * MIB + RESERVE_BYTES,
            cpus=cpus,
            has_disk=False,
            reads_memory=version_of(self._version) >= (8, 2),
        )

    async def _ready_launcher(self, kind: machine.Machine) -> launch.Launcher:
        task = self._launcher
        if task is None or (task.done() and (task.exception() or not task.result().alive)):
            task = self._launcher = asyncio.ensure_future(
                launch.Launcher.start(
                    kind.program,
                    snapshots.home_of(self._settings),
                    kvm=kind.accelerator == "kvm",
                )
            )
        return await asyncio.shield(task)

    async def _snapshot(self, kind: machine.Machine, ground: Ground) -> snapshots.Snapshot:
        """From memory, from disk, or made now; two callers never make two."""
        task = self._snapshots.get(ground.key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.ensure_future(self._find_snapshot(kind, ground))
            self._snapshots[ground.key] = task
        return await asyncio.shield(task)

    async def _find_snapshot(self, kind: machine.Machine, ground: Ground) -> snapshots.Snapshot:
        built = image.locate(self._settings)
        if built is None:
            raise EngineUnavailable(
                "the guest's image is gone", hint="belljar image build --microvm"
            )
        disk = None
        if ground.folder:
            disk = await threads.ENGINES.do_for(
                threads.OURS, disks.disk, ground.folder, self._settings
            )
            kind = dataclasses.replace(kind, has_disk=True)
        name = await threads.ENGINES.do_for(threads.OURS, snapshots.key, kind, built, ground)
        found = await threads.ENGINES.do_for(threads.OURS, snapshots.load, self._settings, name)
        launcher = await self._ready_launcher(kind)
        if found is None:
            ram, state = await make_snapshot(
                launcher, kind, built, ground, disk, self._settings.defaults
            )
            try:
                await threads.ENGINES.finish_for(
                    threads.OURS, snapshots.save, self._settings, name, ram=ram, state=state
                )
            finally:
                os.close(ram)
            found = await threads.ENGINES.do_for(threads.OURS, snapshots.load, self._settings, name)
        if found is None:
            raise EngineError(
                "the snapshot was not kept", hint=f"is {self._settings.home} writable, with room?"
            )
        file = snapshots.folder_of(self._settings) / name / "ram"
        os.close(found.ram)
        return dataclasses.replace(found, ram=await launcher.open(file))

    def _isolation(self, kind: machine.Machine) -> dict[str, str]:
        limited = self._hierarchy.describe() if self._hierarchy else {}
        return {
            "kernel": f"own (QEMU {self._version}, {kind.accelerator})",
            "user": "own uid in a machine of its own",
            "processes_hidden": "machine of its own",
            "filesystem": "read-only root in memory, read-only disk",
            "network": "none (no device)",
            "system_calls": "seccomp allowlist",
            "landlock": "inside",
            "disk": "tmpfs quota",
            "memory": f"cgroup-v2 inside, {limited.get('memory', 'size of the machine')} around",
            "processes": "rlimit of a uid of its own",
            "cpu": f"cgroup-v2 inside, {limited.get('cpu', 'virtual CPUs')} around",
        }

    def _check_required(self, isolation: Mapping[str, str]) -> None:
        for control in self._settings.required:
            if control not in isolation:
                raise EngineUnavailable(
                    f"the required control {control!r} is unknown to microvm",
                    hint=f"known: {', '.join(sorted(isolation))}",
                )


class MicrovmWall(DestroyedOnce):
    """One machine."""

    def __init__(
        self,
        engine: MicrovmEngine,
        stream: socket.socket,
        talk: socket.socket,
        pidfd: int,
        log: int,
        group: cgroups.Group | None,
        isolation: Mapping[str, str],
        limits: Limits,
    ) -> None:
        self.stream = stream
        self.isolation = isolation
        self.inputs: Path | None = None
        self._engine = engine
        self._talk = talk
        self._pidfd = pidfd
        self._log = log
        self._group = group
        self._limits = limits

    def settle(self) -> None:
        if self._group:
            self._group.baseline()

    def apply(self, limits: Limits) -> Inside:
        self._engine.check(limits)
        if self._group:
            self._group.begin()
            if limits != self._limits:
                self._group.apply(_around(limits), reserve=0)
                self._limits = limits
        return Inside(
            rlimits={"RLIMIT_NOFILE": limits.open_files, "RLIMIT_NPROC": limits.processes},
            watch_memory_bytes=limits.memory_bytes,
            cpus=limits.cpus,
            woken=True,
        )

    def look(self) -> Seen | None:
        """The guest's kernel counts what the code uses; from here only the whole machine is seen.
        But if that was too large, nobody inside is left to tell."""
        try:
            if self._group is None or not self._group.oom_kills():
                return None
            used = self._group.usage()
        except (FileNotFoundError, KeyError):  # destroyed meanwhile
            return None
        usage = Usage(cpu_ms=used.cpu_ms, peak_memory_bytes=used.peak_memory_bytes)
        return Seen(usage=usage, out_of_memory=True)

    def kill(self) -> None:
        if self._pidfd >= 0:
            kill(self._pidfd)

    async def _destroy(self) -> None:
        self.kill()
        await exited(self._pidfd)
        try:
            self.stream.close()
            self._talk.close()
            os.close(self._log)
            os.close(self._pidfd)
            self._pidfd = -1
            if self._group:
                await removed(self._group)
        finally:
            self._engine._walls.discard(self)


def _around(limits: Limits) -> Limits:
    """What the host lets QEMU have for a guest with these limits."""
    return dataclasses.replace(
        limits,
        memory_bytes=limits.memory_bytes + RESERVE_BYTES + OVERHEAD_BYTES,
        processes=QEMU_PROCESSES,
        cpus=limits.cpus + OVERHEAD_CPUS,
    )


def qemu_version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True)
    words = done.stdout.split()
    return words[words.index("version") + 1] if "version" in words[:-1] else "of unknown version"


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
