"""The system calls that QEMU may make, as data: what a machine needs to boot, to be saved, to be
restored and to run, seen with QEMU 7.2 and 10, and what their neighbours and KVM need beside it.

QEMU's own filter (`-sandbox`) comes on top. That one is a list of what is forbidden, with bpf,
io_uring, userfaultfd, ptrace and every kind of socket left open to whoever took QEMU over. Here a
call that is not named does not exist.
"""

from __future__ import annotations

from errno import EINVAL, ENOPROTOOPT, ENOTTY, EPERM

from belljar.engines.linux import seccomp
from belljar.engines.linux.syscalls import ALLOW, FULL, LOW, Clauses

CALLS: dict[str, str] = {
    # Ours, once. QEMU's own filter then takes it away.
    "becoming QEMU": "execve",
    "what it inherits, its libraries and firmware; nothing that it can open can be changed": (
        "read pread64 readv preadv preadv2 write pwrite64 writev pwritev pwritev2 lseek"
        " open openat close close_range dup dup2 dup3 fcntl pipe2 fadvise64"
    ),
    "asking about files": (
        "stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2"
        " readlink readlinkat getcwd"
    ),
    "the guest's memory, and translated code": (
        "mmap munmap mprotect mremap madvise brk membarrier"
    ),
    "threads": (
        "futex set_robust_list rseq set_tid_address arch_prctl gettid exit exit_group"
        " sched_yield sched_getaffinity getcpu restart_syscall tgkill"
    ),
    "its loop": (
        "poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2"
        " eventfd2 signalfd4 timerfd_create timerfd_settime timerfd_gettime"
    ),
    "signals, by which it wakes a virtual CPU": (
        "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait rt_sigpending rt_sigsuspend"
        " sigaltstack"
    ),
    "sockets that it was given; it can make none": (
        "sendmsg recvmsg sendto recvfrom getsockname getpeername getsockopt shutdown"
    ),
    "clocks, chance, who and where it is": (
        "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage"
        " getrandom uname sysinfo getpid getppid getuid geteuid getgid getegid"
    ),
    "its own filter": "seccomp",
}

_THREAD = 0x0001_0100  # CLONE_VM | CLONE_THREAD
_TCGETS, _TCSETS, _FIONBIO = 0x5401, 0x5402, 0x5421
_KVM_KIND = 0xAE00
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_CAPBSET_READ = 21, 22, 23
_PR_SET_NAME, _PR_GET_NAME, _PR_SET_TIMERSLACK = 15, 16, 29
_PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 38, 39
_PRCTL = (
    _PR_SET_NAME, _PR_GET_NAME, _PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_CAPBSET_READ,
    _PR_SET_TIMERSLACK, _PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS,
)  # fmt: skip


def ruled(*, kvm: bool) -> dict[str, Clauses]:
    devices: Clauses = ((ALLOW, ((1, 0xFF00, (_KVM_KIND,)),)),) if kvm else ()
    return {
        "ioctl": ((ALLOW, ((1, LOW, (_TCGETS, _TCSETS, _FIONBIO)),)), *devices, (ENOTTY, ())),
        "clone": ((ALLOW, ((0, _THREAD, (_THREAD,)),)), (EPERM, ())),
        "prctl": ((ALLOW, ((0, LOW, _PRCTL),)), (EINVAL, ())),
        # To ask, not to set; of itself.
        "prlimit64": ((ALLOW, ((0, LOW, (0,)), (2, FULL, (0,)))), (EPERM, ())),
        "setsockopt": ((ENOPROTOOPT, ()),),
    }


def allowed_calls(*, kvm: bool) -> bytes:
    """The filter, to be built once per launcher."""
    return seccomp.only(CALLS, ruled(kvm=kvm))
