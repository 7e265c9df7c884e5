"""The second wall, around the process that runs the module: what it could not do even if the first
one had a hole.

It has no file, no socket, no other process and no new machine code within reach, because there is
no system call left to get one with.
"""

from __future__ import annotations

import os
import resource
from errno import EPERM

from belljar.engines.linux import capabilities, kernel, seccomp
from belljar.engines.linux.syscalls import ALLOW, LOW, Clauses

PR_SET_PDEATHSIG = 1
SIGKILL = 9
_NOBODY = 65534
_FIRST_ID, _ID_SLOTS = 0x6000_0000, 1 << 24
_PROT_EXEC = 4
_THREAD = 0x0001_0100  # CLONE_VM | CLONE_THREAD
HOST_BYTES = 256 << 20
"""What this process may hold beside the module's memory and files: mostly streams on their way."""

CALLS: dict[str, str] = {
    "the host's stream": "read write poll ppoll close",
    "memory that is not code": "munmap mremap madvise brk",
    "the listening thread": (
        "futex set_robust_list rseq gettid getpid exit exit_group sched_yield restart_syscall"
    ),
    "traps arrive as signals": "rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack",
    "clocks, sleep, chance, usage": (
        "clock_gettime clock_getres gettimeofday nanosleep clock_nanosleep getrandom getrusage"
    ),
}
_NO: Clauses = ((EPERM, ()),)
RULED: dict[str, Clauses] = {
    "mmap": ((ALLOW, ((2, _PROT_EXEC, (0,)),)), *_NO),
    "mprotect": ((ALLOW, ((2, _PROT_EXEC, (0,)),)), *_NO),
    "clone": ((ALLOW, ((0, _THREAD, (_THREAD,)),)), *_NO),
    "prlimit64": ((ALLOW, ((0, LOW, (0,)),)), *_NO),
}


def allowed_calls() -> bytes:
    """The filter, to be built once per zygote. A call that is not named does not exist."""
    return seccomp.only(CALLS, RULED)


def forget_privileges() -> str:
    """Done by the zygote once it has read its files. Returns how it is set apart."""
    identity = "the caller's uid"
    if os.geteuid() == 0:
        _empty_bounding_set()
        os.setgroups([])
        own = _FIRST_ID + os.getpid() % _ID_SLOTS
        try:
            os.setresgid(own, own, own)
            os.setresuid(own, own, own)
            identity = "own uid"
        except OSError:  # in a container few ids may exist
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            identity = "nobody"
    _drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    return identity


def confine(program: bytes, zygote: int) -> None:
    """Done by each sandbox before it hears from the host."""
    kernel.prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != zygote:  # it died before we could say that we want to die with it
        os._exit(1)
    for kind, most in (
        # One byte, not none: a core dump piped to a helper on the host ignores any other limit.
        (resource.RLIMIT_CORE, 1),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    seccomp.install(program)


def bound_memory(module_bytes: int, disk_bytes: int) -> None:
    """The kernel's own limit behind the module's: private memory that was made writable."""
    most = module_bytes + 2 * disk_bytes + HOST_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _empty_bounding_set() -> None:
    """While there is still the right to: the change of uid takes it away."""
    for capability in range(64):
        try:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:
            return  # this kernel knows no more


def _drop_capabilities() -> None:
    try:
        capabilities.drop()
    except OSError:
        # An ordinary user cannot empty the bounding set, and has nothing in the others.
        if capabilities.current()["CapPrm"]:
            raise
