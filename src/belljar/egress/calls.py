"""The system calls that the gateway keeps: to move bytes, to look up names, and none to start a
program, to look at another process or to change the machine."""

from __future__ import annotations

import socket
from errno import EPERM

from belljar.engines.linux import seccomp
from belljar.engines.linux.syscalls import ALLOW, LOW, Clauses

_PROT_WRITE, _PROT_EXEC = 2, 4
_THREAD = 0x0001_0100  # CLONE_VM | CLONE_THREAD
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK)

CALLS: dict[str, str] = {
    "connections": (
        "connect accept accept4 bind getsockname getpeername sendto sendmsg sendmmsg recvfrom "
        "recvmsg recvmmsg setsockopt getsockopt shutdown socketpair"
    ),
    "waiting": (
        "epoll_create1 epoll_ctl epoll_wait epoll_pwait poll ppoll select pselect6 eventfd2 pipe2"
    ),
    "streams, and the files of name resolution": (
        "read readv pread64 write writev close lseek open openat stat fstat lstat newfstatat statx "
        "access faccessat faccessat2 readlink readlinkat getdents64 getcwd fcntl ioctl dup dup2 "
        "dup3 close_range"
    ),
    "certificates and long messages in memory": "memfd_create ftruncate",
    "memory": "munmap mremap madvise brk",
    "threads that look up names": (
        "futex set_robust_list rseq set_tid_address gettid getpid getppid exit exit_group "
        "sched_yield restart_syscall sched_getaffinity"
    ),
    "signals": "rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack rt_sigpending",
    "clocks, chance, who and where we are": (
        "clock_gettime clock_getres gettimeofday time nanosleep clock_nanosleep getrandom "
        "getrusage getuid geteuid getgid getegid uname sysinfo"
    ),
}
_NO: Clauses = ((EPERM, ()),)
RULED: dict[str, Clauses] = {
    "socket": ((ALLOW, ((0, LOW, tuple(int(one) for one in _FAMILIES)),)), *_NO),
    # Libraries of the name service are loaded by look-ups; written code is never run.
    "mmap": ((ALLOW, ((2, _PROT_EXEC | _PROT_WRITE, (0, _PROT_WRITE, _PROT_EXEC)),)), *_NO),
    "mprotect": ((ALLOW, ((2, _PROT_EXEC, (0,)),)), *_NO),
    "clone": ((ALLOW, ((0, _THREAD, (_THREAD,)),)), *_NO),
    "prlimit64": ((ALLOW, ((0, LOW, (0,)),)), *_NO),
}


def keep_these() -> None:
    """For good. Others do not exist: ENOSYS, for which the C library has other ways."""
    seccomp.install(seccomp.only(CALLS, RULED))
