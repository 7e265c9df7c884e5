"""Which system calls code in a sandbox may make, as data: every name, its verdict and the reason.

Default deny (I3). A name is in exactly one of three tables:
- ALLOWED: always, grouped by purpose.
- RULED: depending on its arguments.
- REFUSED: never, grouped by the errno the caller sees: EPERM where a program understands
  "forbidden", ENOSYS where it would fall back to an older way of doing the same.
A number that is not listed at all is newer than this table and answers ENOSYS.

A rule is a list of clauses, the first that matches decides. A clause is a verdict and the checks
that must all hold; a check compares `argument & mask` with some values. LOW is the mask for what
the kernel reads as an `int`: it ignores the upper half of the register, so the check must too.
"""

from __future__ import annotations

import os
import sys
from errno import (
    EACCES,
    EAFNOSUPPORT,
    EINVAL,
    ENOMEM,
    ENOPROTOOPT,
    ENOSYS,
    ENOTTY,
    EOPNOTSUPP,
    EPERM,
    EPROTONOSUPPORT,
)

from .socket_options import (
    BUFFERS,
    SETTABLE,
    SOL_SOCKET,
    SOL_TCP,
    TCP_ZEROCOPY_RECEIVE,
    settable,
)

Check = tuple[int, int, tuple[int, ...]]
"""(argument index, mask, the values one of which it must have)"""
Clause = tuple[int, tuple[Check, ...]]
"""(verdict, checks); the verdict is ALLOW, PRETEND or an errno"""
Clauses = tuple[Clause, ...]

ALLOW = 0
PRETEND = -1
"""Say yes and do nothing."""
LOW = 0xFFFF_FFFF
FULL = 0xFFFF_FFFF_FFFF_FFFF

ALLOWED: dict[str, dict[str, str]] = {
    "reading and writing": {
        "the core": (
            "read pread64 readv preadv preadv2 write pwrite64 writev pwritev pwritev2 lseek"
        ),
        "copies without a buffer: shutil, coreutils, Go": "sendfile copy_file_range splice tee",
        "sizes and hints": "truncate ftruncate fallocate readahead",
        "advisory locks: sqlite, git": "flock",
    },
    "files and folders": {
        "opening; the mounts decide what is there": "open openat openat2 creat close close_range",
        "asking": (
            "stat lstat fstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink "
            "readlinkat getdents getdents64 getcwd chdir fchdir umask"
        ),
        "changing folders": (
            "mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink "
            "symlinkat"
        ),
        "one's own files; set-uid does nothing under no-new-privileges": (
            "chmod fchmod fchmodat fchmodat2 chown lchown fchown fchownat"
        ),
        "time stamps: tar, git, make": "utime utimes futimesat utimensat",
        "attributes: shutil.copystat, cp -a; writing is in REFUSED": (
            "getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr "
            "lremovexattr fremovexattr getxattrat listxattrat removexattrat"
        ),
        "watching one's files": "inotify_init inotify_init1 inotify_add_watch inotify_rm_watch",
    },
    "descriptors and waiting": {
        "plumbing": "dup dup2 dup3 pipe pipe2 eventfd eventfd2 signalfd signalfd4",
        "event loops": (
            "select pselect6 poll ppoll epoll_create epoll_create1 epoll_ctl epoll_wait "
            "epoll_pwait epoll_pwait2 timerfd_create timerfd_settime timerfd_gettime"
        ),
    },
    "memory": {
        "allocators, interpreters that compile": "mprotect munmap mremap brk mincore",
        "bounded by RLIMIT_MEMLOCK": "mlock mlock2 munlock mlockall munlockall",
        "V8 guards its code pages": "pkey_mprotect pkey_alloc pkey_free mseal",
        "glibc on processors with shadow stacks": "map_shadow_stack",
        "V8, allocators, user-space RCU": "membarrier",
    },
    "processes and threads": {
        "the process limit and no-new-privileges bound them": (
            "fork vfork execve execveat exit exit_group wait4 waitid"
        ),
        "job control": "getpid getppid gettid getpgid getpgrp setpgid getsid setsid",
        "threads": (
            "futex futex_waitv futex_wake futex_wait futex_requeue set_tid_address set_robust_list "
            "rseq"
        ),
        "signals; the pid namespace holds only the sandbox's own processes": (
            "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal"
        ),
        "asking the scheduler": (
            "sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_getattr getcpu "
            "sched_get_priority_max sched_get_priority_min sched_rr_get_interval getpriority"
        ),
        "one's own limits; hard ones cannot be raised": "getrlimit setrlimit getrusage times",
        "where the kernel enters when the host traces a shared library; refusing crashes the run": (
            "uretprobe uprobe"
        ),
    },
    "signals and time": {
        "signal handling": (
            "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend "
            "sigaltstack restart_syscall pause"
        ),
        "time-outs": (
            "alarm getitimer setitimer timer_create timer_settime timer_gettime timer_getoverrun "
            "timer_delete"
        ),
        "reading clocks": (
            "nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time"
        ),
    },
    "identity": {
        "asking": "getuid geteuid getgid getegid getgroups getresuid getresgid",
        "programs drop privileges they do not have; nothing is gained without capabilities": (
            "setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups"
        ),
        "an empty set can only be lowered": "capget capset",
        "restrictions only add up; the runner takes on its own after this filter": (
            "landlock_create_ruleset landlock_add_rule landlock_restrict_self"
        ),
        "harmless facts and random numbers": "uname sysinfo getrandom",
    },
    "sockets": {
        "of the families in RULED; the network namespace decides what is reachable": (
            "bind connect listen accept accept4 shutdown getsockname getpeername "
            "sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg"
        ),
    },
}

REFUSED: dict[int, dict[str, str]] = {
    EPERM: {
        "reach into another process; the agent is one": (
            "ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_madvise "
            "process_mrelease get_robust_list"
        ),
        "change what the file system is": (
            "mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick "
            "mount_setattr open_tree_attr"
        ),
        "open or watch files behind the mount tree": (
            "open_by_handle_at name_to_handle_at fanotify_init fanotify_mark"
        ),
        "a nested user namespace gives back every capability": "setns unshare",
        "large kernel surface, tools of many exploits": "bpf perf_event_open userfaultfd",
        "keyrings are not per namespace and outlive a process": "add_key request_key keyctl",
        "administer the host": (
            "kexec_load kexec_file_load reboot init_module finit_module delete_module swapon "
            "swapoff acct quotactl quotactl_fd vhangup syslog iopl ioperm sethostname setdomainname"
        ),
        "set the host's clock": "settimeofday clock_settime adjtimex clock_adjtime",
        "flush the host's disks, a stall for everyone; sync() has no errors": "sync syncfs",
        "memory nodes are the host's business; libnuma takes EPERM for an answer": (
            "mbind set_mempolicy get_mempolicy set_mempolicy_home_node move_pages migrate_pages"
        ),
        "disk priority is the host's business": "ioprio_set ioprio_get",
    },
    EOPNOTSUPP: {
        # 64 KB of access list or attribute for each file, which tmpfs keeps and nobody counts.
        # Copying tools take this for an answer: tmpfs had no user.* before Linux 6.6.
        "access lists are kept in uncounted kernel memory": (
            "setxattr lsetxattr fsetxattr setxattrat"
        ),
    },
    ENOSYS: {
        "its flags lie in memory, out of a filter's sight; libc falls back to clone": "clone3",
        "does file and socket work that no filter sees; libuv falls back": (
            "io_uring_setup io_uring_enter io_uring_register"
        ),
        "draw on a count that all of the host shares (fs.aio-max-nr)": (
            "io_setup io_destroy io_getevents io_submit io_cancel io_pgetevents"
        ),
        # One sandbox full of filters could leave the next one without its own.
        "filters take from a host-wide store (net.core.bpf_jit_limit)": "seccomp",
        "objects that outlive processes; Python and others use files in /dev/shm": (
            "shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl "
            "mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr"
        ),
        "gifts pages to a pipe; bugs in that wrote to read-only files": "vmsplice",
        "unused, and the second hides memory from the host": "remap_file_pages memfd_secret",
        "new, nothing needs them, callers fall back": (
            "statmount listmount listns cachestat lsm_get_self_attr lsm_set_self_attr "
            "lsm_list_modules file_getattr file_setattr"
        ),
        "segments for 16- and 32-bit code": "modify_ldt set_thread_area get_thread_area",
        "gone, or never there": (
            "lookup_dcookie nfsservctl uselib ustat sysfs _sysctl create_module get_kernel_syms "
            "query_module getpmsg putpmsg afs_syscall tuxcall security vserver epoll_ctl_old "
            "epoll_wait_old"
        ),
    },
}

# fmt: off
IOCTLS = {
    # terminals: pty, termios, shells, editors
    "TCGETS": 0x5401, "TCSETS": 0x5402, "TCSETSW": 0x5403, "TCSETSF": 0x5404, "TCGETA": 0x5405,
    "TCSETA": 0x5406, "TCSETAW": 0x5407, "TCSETAF": 0x5408, "TCSBRK": 0x5409, "TCXONC": 0x540A,
    "TCFLSH": 0x540B, "TIOCEXCL": 0x540C, "TIOCNXCL": 0x540D, "TIOCSCTTY": 0x540E,
    "TIOCGPGRP": 0x540F, "TIOCSPGRP": 0x5410, "TIOCOUTQ": 0x5411, "TIOCGWINSZ": 0x5413,
    "TIOCSWINSZ": 0x5414, "TIOCPKT": 0x5420, "TIOCNOTTY": 0x5422, "TIOCGETD": 0x5424,
    "TCSBRKP": 0x5425, "TIOCGSID": 0x5429, "TCGETS2": 0x802C542A, "TCSETS2": 0x402C542B,
    "TCSETSW2": 0x402C542C, "TCSETSF2": 0x402C542D, "TIOCGPTN": 0x80045430,
    "TIOCSPTLCK": 0x40045431, "TIOCGPKT": 0x80045438, "TIOCGPTLCK": 0x80045439,
    "TIOCGEXCL": 0x80045440, "TIOCGPTPEER": 0x5441,
    # any descriptor
    "FIONREAD": 0x541B, "FIONBIO": 0x5421, "FIONCLEX": 0x5450, "FIOCLEX": 0x5451,
    "FIOASYNC": 0x5452, "FIOQSIZE": 0x5460,
    # reading the network interfaces: if_nameindex, psutil
    "SIOCATMARK": 0x8905, "SIOCGIFNAME": 0x8910, "SIOCGIFCONF": 0x8912, "SIOCGIFFLAGS": 0x8913,
    "SIOCGIFADDR": 0x8915, "SIOCGIFDSTADDR": 0x8917, "SIOCGIFBRDADDR": 0x8919,
    "SIOCGIFNETMASK": 0x891B, "SIOCGIFMTU": 0x8921, "SIOCGIFHWADDR": 0x8927,
    "SIOCGIFINDEX": 0x8933,
}
IOCTLS_FORBIDDEN = {
    # type on another's terminal, take the console, load a line discipline
    "TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCCONS": 0x541D, "TIOCSETD": 0x5423,
    # a file made immutable defeats the clean-up
    "FS_IOC_SETFLAGS": 0x40086602, "FS_IOC32_SETFLAGS": 0x40046602,
    "FS_IOC_FSSETXATTR": 0x401C5820,
}
PRCTLS = {
    "SET_PDEATHSIG": 1, "GET_PDEATHSIG": 2, "GET_DUMPABLE": 3, "SET_DUMPABLE": 4,
    "GET_KEEPCAPS": 7, "SET_KEEPCAPS": 8, "GET_TIMING": 13, "SET_NAME": 15, "GET_NAME": 16,
    "GET_SECCOMP": 21, "CAPBSET_READ": 23, "GET_TSC": 25, "GET_SECUREBITS": 27,
    "SET_TIMERSLACK": 29, "GET_TIMERSLACK": 30, "SET_CHILD_SUBREAPER": 36,
    "GET_CHILD_SUBREAPER": 37, "SET_NO_NEW_PRIVS": 38, "GET_NO_NEW_PRIVS": 39,
    "GET_TID_ADDRESS": 40, "SET_THP_DISABLE": 41, "GET_THP_DISABLE": 42, "SVE_SET_VL": 50,
    "SVE_GET_VL": 51, "GET_SPECULATION_CTRL": 52, "PAC_RESET_KEYS": 54,
    "SET_TAGGED_ADDR_CTRL": 55, "GET_TAGGED_ADDR_CTRL": 56, "PAC_GET_ENABLED_KEYS": 61,
    "SME_SET_VL": 63, "SME_GET_VL": 64, "SET_MDWE": 65, "GET_MDWE": 66, "GET_AUXV": 0x41555856,
}
PRCTLS_FORBIDDEN = {
    "CAPBSET_DROP": 24, "SET_SECUREBITS": 28, "MCE_KILL": 33, "SET_MM": 35, "CAP_AMBIENT": 47,
    "SET_SPECULATION_CTRL": 53, "SET_IO_FLUSHER": 57, "SET_SYSCALL_USER_DISPATCH": 59,
    "SCHED_CORE": 62, "SET_MEMORY_MERGE": 67, "SET_PTRACER": 0x59616D61,
}
ARCH_PRCTLS = (  # thread pointers, cpuid, AMX permission, address tags, shadow stacks
    0x1001, 0x1002, 0x1003, 0x1004, 0x1011, 0x1021, 0x1022, 0x1023, 0x4001, 0x4002, 0x4003,
    0x5001, 0x5002, 0x5003, 0x5005,
)
# fmt: on
PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_CAP_AMBIENT = 24, 28, 47
CLONE_PARENT = 0x8000
CLONE_NEW_ANY = 0x7E02_0080
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET} and NEWTIME, whose bit clone takes for a signal."""
MAP_HUGETLB, MFD_HUGETLB = 0x40000, 4
MADV_HWPOISON, MADV_SOFT_OFFLINE = 100, 101
# Not 12, page merging, through which one tenant can feel another's memory; not 20 and 21, which
# push pages that the host also uses out of memory.
MADVICE = (*range(5), 8, 9, 10, 11, *range(14, 20), *range(22, 26), 102, 103)
# Leases hold up the host's next writer; notes tell who uses a folder, and the system's folders are
# also the host's and the neighbours'; of locks that belong to no process nobody can say whose they
# are, and the host counts locks (`locks.py`).
F_SETLEASE, F_NOTIFY, F_OFD_SETLK, F_OFD_SETLKW, F_SETPIPE_SZ = 1024, 1026, 37, 38, 1031
FCNTLS = (
    *range(11 + 1),  # duplicates, flags, locks, owner and signal
    15, 16, 17, 36,  # F_{SET,GET}OWN_EX, F_GETOWNER_UIDS, F_OFD_GETLK
    1025, 1027, 1030, 1032, 1033, 1034,  # lease?, same file?, F_DUPFD_CLOEXEC, pipe size?, seals
)  # fmt: skip
A_PIPE = 0x10000
"""The size that every pipe has: what all pipes of a user hold together has one limit."""
MS_SYNC, POSIX_FADV_DONTNEED = 4, 4
S_IFMT, PLAIN_NODES = 0xF000, (0, 0x8000, 0x1000, 0xC000)  # default, regular, FIFO, socket
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
STREAM, DGRAM, RAW, SEQPACKET, PACKET = 1, 2, 3, 5, 10
TYPE = 0xF  # the rest of socket's type argument is SOCK_CLOEXEC and SOCK_NONBLOCK
TCP, UDP = 6, 17

_SELF_ONLY: Clauses = ((ALLOW, ((0, LOW, (0,)),)), (EPERM, ()))
_LOCAL: Clause = (ALLOW, ((0, LOW, (AF_UNIX,)), (1, TYPE, (STREAM, DGRAM, SEQPACKET))))
_INET: Check = (0, LOW, (AF_INET, AF_INET6))

RULED: dict[str, tuple[str, Clauses]] = {
    "clone": (
        "threads and processes; no new namespace, no child given away to the agent",
        ((ALLOW, ((0, CLONE_NEW_ANY | CLONE_PARENT, (0,)),)), (EPERM, ())),
    ),
    "prlimit64": ("one's own limits only", _SELF_ONLY),
    "sched_setaffinity": ("one's own thread only; `affinity=False` refuses it", _SELF_ONLY),
    "sched_setscheduler": ("one's own thread only", _SELF_ONLY),
    "sched_setparam": ("one's own thread only", _SELF_ONLY),
    "sched_setattr": ("one's own thread only", _SELF_ONLY),
    "setpriority": (
        "nice(): one's own thread only",
        ((ALLOW, ((0, LOW, (0,)), (1, LOW, (0,)))), (EPERM, ())),
    ),
    "socket": (
        # Raw and packet sockets forge traffic, vsock ignores network namespaces, and rare
        # protocols (SCTP, L2TP, MPTCP) make the kernel load modules for anyone who asks.
        "local, TCP and UDP sockets; what waits in a netlink socket is in no memory limit",
        (
            _LOCAL,
            (ALLOW, (_INET, (1, TYPE, (STREAM,)), (2, LOW, (0, TCP)))),
            (ALLOW, (_INET, (1, TYPE, (DGRAM,)), (2, LOW, (0, UDP)))),
            (EPERM, (_INET, (1, TYPE, (RAW, PACKET)))),
            (EPROTONOSUPPORT, ((0, LOW, (AF_UNIX, AF_INET, AF_INET6)),)),
            (EAFNOSUPPORT, ()),
        ),
    ),
    "socketpair": ("asyncio, multiprocessing", (_LOCAL, (EAFNOSUPPORT, ()))),
    "setsockopt": (
        "the options of `socket_options`; buffers keep the size the wall gave them",
        (
            *((ALLOW, ((1, LOW, (level,)), (2, LOW, settable(level)))) for level in SETTABLE),
            (PRETEND, ((1, LOW, (SOL_SOCKET,)), (2, LOW, BUFFERS))),
            (ENOPROTOOPT, ()),
        ),
    ),
    "getsockopt": (
        "asking; one option maps what was received, and its memory is then counted nowhere",
        ((ENOPROTOOPT, ((1, LOW, (SOL_TCP,)), (2, LOW, (TCP_ZEROCOPY_RECEIVE,)))), (ALLOW, ())),
    ),
    **dict.fromkeys(
        ("fsync", "fdatasync", "sync_file_range"),
        (
            "databases; all that can be written is memory, so all this could reach is the disk "
            "below the read-only folders, and its journal makes everyone wait",
            ((PRETEND, ()),),
        ),
    ),
    "msync": (
        "numpy; with MS_SYNC it is fsync by another name",
        (
            (ALLOW, ((2, MS_SYNC, (0,)),)),
            (PRETEND, ((0, 0xFFF, (0,)),)),
            (EINVAL, ()),  # not the first byte of a page, as the kernel itself would say
        ),
    ),
    "fadvise64": (
        "hints; not the one that pushes the host's files out of memory",
        ((PRETEND, ((3, LOW, (POSIX_FADV_DONTNEED,)),)), (ALLOW, ())),
    ),
    "ioctl": (
        "terminals, descriptors, interfaces; devices and file systems have hundreds more",
        (
            (ALLOW, ((1, LOW, tuple(IOCTLS.values())),)),
            (EPERM, ((1, LOW, tuple(IOCTLS_FORBIDDEN.values())),)),
            (ENOTTY, ()),
        ),
    ),
    "prctl": (
        "names, death signals, questions; not what rewrites a process or invites a tracer",
        (
            (ALLOW, ((0, LOW, tuple(PRCTLS.values())),)),
            (ALLOW, ((0, LOW, (PR_CAP_AMBIENT,)), (1, FULL, (1, 4)))),  # is set?, clear all
            (EPERM, ((0, LOW, tuple(PRCTLS_FORBIDDEN.values())),)),
            (EINVAL, ()),
        ),
    ),
    "arch_prctl": (
        "thread pointers and processor features",
        ((ALLOW, ((0, LOW, ARCH_PRCTLS),)), (EINVAL, ())),
    ),
    "personality": (
        "ask, or keep the plain one; others switch address randomisation off",
        ((ALLOW, ((0, LOW, (0, 0xFFFF_FFFF)),)), (EPERM, ())),
    ),
    "mknod": (
        "FIFOs and sockets; no device, not even a white-out",
        ((ALLOW, ((1, S_IFMT, PLAIN_NODES),)), (EPERM, ())),
    ),
    "mknodat": ("as mknod", ((ALLOW, ((2, S_IFMT, PLAIN_NODES),)), (EPERM, ()))),
    "mmap": (
        "all but the host's reserved huge pages, which no memory limit counts",
        ((ALLOW, ((3, MAP_HUGETLB, (0,)),)), (ENOMEM, ())),
    ),
    "memfd_create": (
        "memory with a descriptor, huge pages as above; `memfd=False` refuses it",
        ((ALLOW, ((1, MFD_HUGETLB, (0,)),)), (ENOMEM, ())),
    ),
    "madvise": (
        "allocators; what it does to one's own memory",
        (
            (ALLOW, ((2, LOW, MADVICE),)),
            (EPERM, ((2, LOW, (MADV_HWPOISON, MADV_SOFT_OFFLINE)),)),
            (EINVAL, ()),
        ),
    ),
    "fcntl": (
        "descriptors and locks; pipes no larger than they are",
        (
            (ALLOW, ((1, LOW, FCNTLS),)),
            (ALLOW, ((1, LOW, (F_SETPIPE_SZ,)), (2, ~0xFFFF & LOW, (0,)))),
            (ALLOW, ((1, LOW, (F_SETPIPE_SZ,)), (2, LOW, (A_PIPE,)))),
            (EPERM, ((1, LOW, (F_SETPIPE_SZ,)),)),
            (EACCES, ((1, LOW, (F_SETLEASE, F_NOTIFY)),)),
            (EINVAL, ()),
        ),
    ),
}

_NUMBERS = """
read:0:63 write:1:64 open:2:- close:3:57 stat:4:- fstat:5:80 lstat:6:- poll:7:- lseek:8:62
mmap:9:222 mprotect:10:226 munmap:11:215 brk:12:214 rt_sigaction:13:134 rt_sigprocmask:14:135
rt_sigreturn:15:139 ioctl:16:29 pread64:17:67 pwrite64:18:68 readv:19:65 writev:20:66 access:21:-
pipe:22:- select:23:- sched_yield:24:124 mremap:25:216 msync:26:227 mincore:27:232 madvise:28:233
shmget:29:194 shmat:30:196 shmctl:31:195 dup:32:23 dup2:33:- pause:34:- nanosleep:35:101
getitimer:36:102 alarm:37:- setitimer:38:103 getpid:39:172 sendfile:40:71 socket:41:198
connect:42:203 accept:43:202 sendto:44:206 recvfrom:45:207 sendmsg:46:211 recvmsg:47:212
shutdown:48:210 bind:49:200 listen:50:201 getsockname:51:204 getpeername:52:205 socketpair:53:199
setsockopt:54:208 getsockopt:55:209 clone:56:220 fork:57:- vfork:58:- execve:59:221 exit:60:93
wait4:61:260 kill:62:129 uname:63:160 semget:64:190 semop:65:193 semctl:66:191 shmdt:67:197
msgget:68:186 msgsnd:69:189 msgrcv:70:188 msgctl:71:187 fcntl:72:25 flock:73:32 fsync:74:82
fdatasync:75:83 truncate:76:45 ftruncate:77:46 getdents:78:- getcwd:79:17 chdir:80:49 fchdir:81:50
rename:82:- mkdir:83:- rmdir:84:- creat:85:- link:86:- unlink:87:- symlink:88:- readlink:89:-
chmod:90:- fchmod:91:52 chown:92:- fchown:93:55 lchown:94:- umask:95:166 gettimeofday:96:169
getrlimit:97:163 getrusage:98:165 sysinfo:99:179 times:100:153 ptrace:101:117 getuid:102:174
syslog:103:116 getgid:104:176 setuid:105:146 setgid:106:144 geteuid:107:175 getegid:108:177
setpgid:109:154 getppid:110:173 getpgrp:111:- setsid:112:157 setreuid:113:145 setregid:114:143
getgroups:115:158 setgroups:116:159 setresuid:117:147 getresuid:118:148 setresgid:119:149
getresgid:120:150 getpgid:121:155 setfsuid:122:151 setfsgid:123:152 getsid:124:156 capget:125:90
capset:126:91 rt_sigpending:127:136 rt_sigtimedwait:128:137 rt_sigqueueinfo:129:138
rt_sigsuspend:130:133 sigaltstack:131:132 utime:132:- mknod:133:- uselib:134:- personality:135:92
ustat:136:- statfs:137:43 fstatfs:138:44 sysfs:139:- getpriority:140:141 setpriority:141:140
sched_setparam:142:118 sched_getparam:143:121 sched_setscheduler:144:119 sched_getscheduler:145:120
sched_get_priority_max:146:125 sched_get_priority_min:147:126 sched_rr_get_interval:148:127
mlock:149:228 munlock:150:229 mlockall:151:230 munlockall:152:231 vhangup:153:58 modify_ldt:154:-
pivot_root:155:41 _sysctl:156:- prctl:157:167 arch_prctl:158:- adjtimex:159:171 setrlimit:160:164
chroot:161:51 sync:162:81 acct:163:89 settimeofday:164:170 mount:165:40 umount2:166:39
swapon:167:224 swapoff:168:225 reboot:169:142 sethostname:170:161 setdomainname:171:162 iopl:172:-
ioperm:173:- create_module:174:- init_module:175:105 delete_module:176:106 get_kernel_syms:177:-
query_module:178:- quotactl:179:60 nfsservctl:180:42 getpmsg:181:- putpmsg:182:- afs_syscall:183:-
tuxcall:184:- security:185:- gettid:186:178 readahead:187:213 setxattr:188:5 lsetxattr:189:6
fsetxattr:190:7 getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10 listxattr:194:11 llistxattr:195:12
flistxattr:196:13 removexattr:197:14 lremovexattr:198:15 fremovexattr:199:16 tkill:200:130
time:201:- futex:202:98 sched_setaffinity:203:122 sched_getaffinity:204:123 set_thread_area:205:-
io_setup:206:0 io_destroy:207:1 io_getevents:208:4 io_submit:209:2 io_cancel:210:3
get_thread_area:211:- lookup_dcookie:212:18 epoll_create:213:- epoll_ctl_old:214:-
epoll_wait_old:215:- remap_file_pages:216:234 getdents64:217:61 set_tid_address:218:96
restart_syscall:219:128 semtimedop:220:192 fadvise64:221:223 timer_create:222:107
timer_settime:223:110 timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111
clock_settime:227:112 clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115
exit_group:231:94 epoll_wait:232:- epoll_ctl:233:21 tgkill:234:131 utimes:235:- vserver:236:-
mbind:237:235 set_mempolicy:238:237 get_mempolicy:239:236 mq_open:240:180 mq_unlink:241:181
mq_timedsend:242:182 mq_timedreceive:243:183 mq_notify:244:184 mq_getsetattr:245:185
kexec_load:246:104 waitid:247:95 add_key:248:217 request_key:249:218 keyctl:250:219
ioprio_set:251:30 ioprio_get:252:31 inotify_init:253:- inotify_add_watch:254:27
inotify_rm_watch:255:28 migrate_pages:256:238 openat:257:56 mkdirat:258:34 mknodat:259:33
fchownat:260:54 futimesat:261:- newfstatat:262:79 unlinkat:263:35 renameat:264:38 linkat:265:37
symlinkat:266:36 readlinkat:267:78 fchmodat:268:53 faccessat:269:48 pselect6:270:72 ppoll:271:73
unshare:272:97 set_robust_list:273:99 get_robust_list:274:100 splice:275:76 tee:276:77
sync_file_range:277:84 vmsplice:278:75 move_pages:279:239 utimensat:280:88 epoll_pwait:281:22
signalfd:282:- timerfd_create:283:85 eventfd:284:- fallocate:285:47 timerfd_settime:286:86
timerfd_gettime:287:87 accept4:288:242 signalfd4:289:74 eventfd2:290:19 epoll_create1:291:20
dup3:292:24 pipe2:293:59 inotify_init1:294:26 preadv:295:69 pwritev:296:70
rt_tgsigqueueinfo:297:240 perf_event_open:298:241 recvmmsg:299:243 fanotify_init:300:262
fanotify_mark:301:263 prlimit64:302:261 name_to_handle_at:303:264 open_by_handle_at:304:265
clock_adjtime:305:266 syncfs:306:267 sendmmsg:307:269 setns:308:268 getcpu:309:168
process_vm_readv:310:270 process_vm_writev:311:271 kcmp:312:272 finit_module:313:273
sched_setattr:314:274 sched_getattr:315:275 renameat2:316:276 seccomp:317:277 getrandom:318:278
memfd_create:319:279 kexec_file_load:320:294 bpf:321:280 execveat:322:281 userfaultfd:323:282
membarrier:324:283 mlock2:325:284 copy_file_range:326:285 preadv2:327:286 pwritev2:328:287
pkey_mprotect:329:288 pkey_alloc:330:289 pkey_free:331:290 statx:332:291 io_pgetevents:333:292
rseq:334:293 uretprobe:335:- uprobe:336:- pidfd_send_signal:424:424 io_uring_setup:425:425
io_uring_enter:426:426 io_uring_register:427:427 open_tree:428:428 move_mount:429:429
fsopen:430:430 fsconfig:431:431 fsmount:432:432 fspick:433:433 pidfd_open:434:434 clone3:435:435
close_range:436:436 openat2:437:437 pidfd_getfd:438:438 faccessat2:439:439 process_madvise:440:440
epoll_pwait2:441:441 mount_setattr:442:442 quotactl_fd:443:443 landlock_create_ruleset:444:444
landlock_add_rule:445:445 landlock_restrict_self:446:446 memfd_secret:447:447
process_mrelease:448:448 futex_waitv:449:449 set_mempolicy_home_node:450:450 cachestat:451:451
fchmodat2:452:452 map_shadow_stack:453:453 futex_wake:454:454 futex_wait:455:455
futex_requeue:456:456 statmount:457:457 listmount:458:458 lsm_get_self_attr:459:459
lsm_set_self_attr:460:460 lsm_list_modules:461:461 mseal:462:462 setxattrat:463:463
getxattrat:464:464 listxattrat:465:465 removexattrat:466:466 open_tree_attr:467:467
file_getattr:468:468 file_setattr:469:469 listns:470:470
"""
"""name:x86_64:aarch64, `-` where the architecture never had the call."""

MACHINES = ("x86_64", "aarch64")

_PLAIN: dict[str, int] = {
    name: ALLOW for group in ALLOWED.values() for names in group.values() for name in names.split()
} | {
    name: code
    for code, group in REFUSED.items()
    for names in group.values()
    for name in names.split()
}


def this_machine() -> str:
    """The architecture of this process, which for a 32-bit one is not the kernel's."""
    machine = os.uname().machine
    return machine if sys.maxsize > LOW else f"32-bit process on {machine}"


def numbers(machine: str) -> dict[str, int]:
    """The architecture's system calls by name."""
    if machine not in MACHINES:
        raise ValueError(f"no system call table for {machine!r}, only for {', '.join(MACHINES)}")
    column = 1 + MACHINES.index(machine)
    rows = (entry.split(":") for entry in _NUMBERS.split())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def clauses(
    name: str, *, memfd: bool = True, affinity: bool = True, joining: bool = False
) -> Clauses:
    """What the tables say about one call, as a rule."""
    if joining and name == "setns":
        return ((ALLOW, ()),)
    if joining and name == "prctl":
        return ((ALLOW, ((0, LOW, (PR_CAPBSET_DROP, PR_SET_SECUREBITS)),)), *RULED[name][1])
    if name == "memfd_create" and not memfd:
        return ((ENOSYS, ()),)
    if name == "sched_setaffinity" and not affinity:
        return ((EPERM, ()),)
    return RULED[name][1] if name in RULED else ((_PLAIN[name], ()),)
