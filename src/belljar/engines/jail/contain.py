"""How a process becomes a sandbox: the steps in order, each failing closed under its own name.

It starts as a fork of the zygote in new user, pid, mount, ipc and uts namespaces, already counted
by its cgroup, with all capabilities *inside its own user namespace* and none outside.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence

from belljar.engines.linux import capabilities, kernel, landlock, places, seccomp
from belljar.runtimes.guest import runner

from . import given, mounts

HOST_NAME = "belljar"
MOST_BRANCHES = 256
_FIRST_PID, _PIDS = 300, 30_000
"""Where the pids of a branch begin; no kernel's largest pid is below 32,768."""


class Blueprint:
    """What the zygote worked out once for all its sandboxes."""

    def __init__(
        self,
        proc_files: list[str],
        proc_folders: list[str],
        program: bytes,
        landlock_abi: int,
        own_modules: list[str],
        rehearsal: str,
        counted: bool,
        live_kept: Callable[[Sandbox, int], None] | None,
    ) -> None:
        self.proc_files = proc_files
        self.proc_folders = proc_folders
        self.program = program
        self.landlock_abi = landlock_abi
        self.own_modules = own_modules
        self.rehearsal = rehearsal
        self.counted = counted
        """Whether a cgroup counts what sandboxes use."""
        self.live_kept = live_kept
        """How a sandbox lives that is kept from run to run, and can be branched."""
        self.kept = live_kept is not None


class Sandbox:
    """A sandbox under construction."""

    def __init__(
        self,
        blueprint: Blueprint,
        disk_bytes: int,
        disk_files: int,
        cpus: list[int] | None,
        *,
        rehearse: bool,
        given: Sequence[given.Given],
        hosts: str = "",
        family: int = -1,
    ) -> None:
        self.blueprint = blueprint
        self.disk_bytes = disk_bytes
        self.disk_files = disk_files
        self.cpus = cpus
        """The cores it may use, where no cgroup limits its share."""
        self.rehearse = rehearse
        """It will wait for its run; otherwise somebody waits for it."""
        self.given = given
        """Mounts of the host's files that it is to have."""
        self.hosts = hosts
        """Its /etc/hosts, if it has doors to the gateway."""
        self.family = family
        """A socket to the sandbox that this one is a branch of."""
        self.roots: dict[str, int] = {}


class StepFailed(Exception):
    def __init__(self, step: str, error: Exception, hint: str) -> None:
        super().__init__(f"{step}: {error}")
        self.step = step
        self.hint = hint


def _identity(sandbox: Sandbox) -> None:
    """An ordinary user without groups (I1)."""
    os.setresgid(places.GID, places.GID, places.GID)
    os.setresuid(places.UID, places.UID, places.UID)


def _groups_of_its_own(sandbox: Sandbox) -> None:
    """The cgroup it was put into becomes the root of all it can see."""
    kernel.unshare(kernel.CLONE_NEWCGROUP)


def _host_name(sandbox: Sandbox) -> None:
    kernel.sethostname(HOST_NAME)


def _writable_places(sandbox: Sandbox) -> None:
    sandbox.roots = mounts.writable_places(
        disk_bytes=sandbox.disk_bytes,
        disk_files=sandbox.disk_files,
        kept=sandbox.blueprint.kept,
        given=sandbox.given,
    )


def _what_is_given(sandbox: Sandbox) -> None:
    given.attach(sandbox.given)
    if sandbox.blueprint.kept:
        # As the code sees it: the agent's own way there leads below the mounts.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        sandbox.roots["input_seen"] = os.open(places.INPUT, flags)


def _names(sandbox: Sandbox) -> None:
    """Hosts that the gateway may be asked for (N1)."""
    if sandbox.hosts:
        hosts = mounts.HostsFile(sandbox.hosts)
        hosts.make()
        hosts.attach()


def _processes(sandbox: Sandbox) -> None:
    mounts.own_proc()


def _quotas(sandbox: Sandbox) -> None:
    """Kernel objects counted per user: one sandbox must not use up its neighbours' (RS-18).

    No watches at all: the folders of the private root are the host's own, and a watch would tell
    what the host and the neighbours do in them."""
    for name, most in (
        ("max_inotify_instances", 16),
        ("max_inotify_watches", 0),
        # No process inside can make one; branches are made in here by the zygote.
        ("max_user_namespaces", MOST_BRANCHES if sandbox.blueprint.kept else 0),
    ):
        descriptor = os.open(f"/proc/sys/user/{name}", os.O_WRONLY)
        os.write(descriptor, str(most).encode())
        os.close(descriptor)


def _numbers(sandbox: Sandbox) -> None:
    """A branch's first process gets a pid that its original, in another namespace, has hardly had:
    libraries take new seeds when their pid has changed (interpreter.py makes sure of it)."""
    if sandbox.family < 0:
        return
    try:
        descriptor = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)
    except OSError:  # a kernel without CONFIG_CHECKPOINT_RESTORE
        return
    os.write(descriptor, b"%d" % (_FIRST_PID + int.from_bytes(os.urandom(2), "big") % _PIDS))
    os.close(descriptor)


def _kernel_information(sandbox: Sandbox) -> None:
    mounts.cover_proc(sandbox.blueprint.proc_files, sandbox.blueprint.proc_folders)


def _terminals(sandbox: Sandbox) -> None:
    mounts.own_terminals()


def _resource_limits(sandbox: Sandbox) -> None:
    for kind, most in (
        # One byte, not none: a core dump piped to a helper on the host ignores any other limit.
        (resource.RLIMIT_CORE, 1),
        (resource.RLIMIT_MEMLOCK, 64 * 1024),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_SIGPENDING, 1024),
    ):
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)  # never above what we were given
        resource.setrlimit(kind, (most, most))
    if sandbox.cpus is not None:
        os.sched_setaffinity(0, sandbox.cpus)


def _no_more_capabilities(sandbox: Sandbox) -> None:
    capabilities.bound()


def _capabilities(sandbox: Sandbox) -> None:
    capabilities.empty()


def _system_calls(sandbox: Sandbox) -> None:
    """Also sets no-new-privileges, without which the kernel takes no filter."""
    seccomp.install(sandbox.blueprint.program)


def _agent_hidden(sandbox: Sandbox) -> None:
    """The code has the agent's uid: this keeps /proc/1/mem and /proc/1/fd closed to it."""
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


Steps = tuple[tuple[str, Callable[[Sandbox], None], str], ...]

FIRST: Steps = (
    ("identity", _identity, "the sandbox's uid is not mapped; is the id range in use?"),
    ("cgroup namespace", _groups_of_its_own, "needs Linux 4.6 or newer"),
    ("resource limits", _resource_limits, ""),
    ("no more capabilities", _no_more_capabilities, ""),
)
"""Then pid 1 forks off the process that will run the code."""

SHARED: Steps = (
    ("host name", _host_name, ""),
    ("writable places", _writable_places, "tmpfs in a user namespace needs Linux 4.18 or newer"),
    ("what is given", _what_is_given, "mounts of the host's files need Linux 5.12 or newer"),
    ("names", _names, "a network for sandboxes needs Linux 5.12 or newer"),
    ("processes", _processes, "inside a container, /proc must be unmasked: systempaths=unconfined"),
    ("quotas", _quotas, ""),
    ("process numbers", _numbers, ""),
    ("kernel information", _kernel_information, ""),
    ("terminals", _terminals, ""),
)
"""Pid 1 builds these for both."""

EACH: Steps = (
    ("capabilities", _capabilities, ""),
    ("system calls", _system_calls, "the kernel needs CONFIG_SECCOMP_FILTER"),
)
"""What a process can only do to itself."""

AGENT: Steps = (("agent hidden", _agent_hidden, ""),)


def begin(sandbox: Sandbox) -> None:
    _take(FIRST, sandbox)


def build(sandbox: Sandbox) -> None:
    """In pid 1."""
    _take(SHARED, sandbox)
    _take(EACH, sandbox)
    _take(AGENT, sandbox)


def join(sandbox: Sandbox, walls_stand: Callable[[], None]) -> None:
    """In the code's process, while pid 1 builds."""
    _take(EACH, sandbox)
    _prefer_to_kill()
    runner.prepare(hidden=sandbox.blueprint.own_modules)
    walls_stand()
    _fence(sandbox)


def harden_runner(sandbox: Sandbox) -> None:
    """In a process that pid 1 forks off later, behind the walls."""
    _prefer_to_kill()
    runner.prepare(hidden=sandbox.blueprint.own_modules)
    _fence(sandbox)


def _take(steps: Steps, sandbox: Sandbox) -> None:
    """The first step that fails ends the sandbox."""
    for name, step, hint in steps:
        try:
            step(sandbox)
        except (OSError, ValueError) as error:
            raise StepFailed(name, error, hint) from error


def _prefer_to_kill() -> None:
    """The kernel's choice when memory runs out should be the code, not the agent."""
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(descriptor, b"500")
    os.close(descriptor)


def _fence(sandbox: Sandbox) -> None:
    if sandbox.blueprint.landlock_abi:
        # A branch lives on another tmpfs than the rules of its parent know, and cannot shed them.
        writable = ("/",) if sandbox.blueprint.kept else places.WRITABLE
        landlock.restrict(writable=writable)
    if sandbox.rehearse and not sandbox.blueprint.kept:
        runner.rehearse(sandbox.blueprint.rehearsal)
