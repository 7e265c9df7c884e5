"""The kernel as the jail calls it: one small function per system call, each failing with its name.

Standard library only: this runs in the zygote, before there is anything else.
"""

from __future__ import annotations

import ctypes
import os

from . import syscalls

CLONE_PIDFD = 0x0000_1000
CLONE_NEWNS = 0x0002_0000
CLONE_CHILD_SETTID = 0x0100_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000

MNT_DETACH = 0x2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
MOUNT_ATTR_IDMAP = 0x10_0000

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000

OPEN_TREE_CLONE = 0x1
OPEN_TREE_CLOEXEC = 0x8_0000
MOVE_MOUNT_F_EMPTY_PATH = 0x4

PR_SET_DUMPABLE = 4
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_GET_TID_ADDRESS = 40
PR_CAP_AMBIENT = 47

SIGCHLD = 17

NUMBERS = syscalls.numbers(syscalls.this_machine())

Argument = int | bytes | ctypes.Array[ctypes.c_uint64] | ctypes.Array[ctypes.c_char] | None
"""What a register may hold: a number, or the address of a buffer that outlives the call."""


def _raw(library: ctypes.CDLL) -> ctypes._NamedFuncPointer:
    # As c_void_p an int fills the whole register; an untyped one would be cut to 32 bits.
    function = library["syscall"]
    function.restype = ctypes.c_long
    function.argtypes = [ctypes.c_long] + [ctypes.c_void_p] * 6
    return function


libc = ctypes.CDLL(None, use_errno=True)
_syscall = _raw(libc)
# PyDLL keeps the interpreter lock across the call, so the child of a clone is born owning it.
_syscall_locked = _raw(ctypes.PyDLL(None, use_errno=True))

_pthread_self = libc["pthread_self"]
_pthread_self.restype = ctypes.c_void_p
_pthread_self.argtypes = []

_before_fork = ctypes.pythonapi["PyOS_BeforeFork"]
_after_fork_child = ctypes.pythonapi["PyOS_AfterFork_Child"]
_after_fork_parent = ctypes.pythonapi["PyOS_AfterFork_Parent"]
for _hook in (_before_fork, _after_fork_child, _after_fork_parent):
    _hook.restype = None
    _hook.argtypes = []

_ZEROS = (0,) * 6


def _failure(nr: int) -> OSError:
    code = ctypes.get_errno()
    name = next((name for name, number in NUMBERS.items() if number == nr), f"syscall {nr}")
    return OSError(code, f"{name}: {os.strerror(code)}")


def syscall(nr: int, *args: Argument) -> int:
    """Make a system call by number; OSError carries the errno and the call's name."""
    result: int = _syscall(nr, *args, *_ZEROS[len(args) :])
    if result == -1:
        raise _failure(nr)
    return result


def _path(path: str | os.PathLike[str] | None) -> bytes | None:
    return None if path is None else os.fsencode(path)


def unshare(flags: int) -> None:
    syscall(NUMBERS["unshare"], flags)


def setns(fd: int, flags: int = 0) -> None:
    syscall(NUMBERS["setns"], fd, flags)


def mount(
    source: str | os.PathLike[str] | None,
    target: str | os.PathLike[str],
    fstype: str | None = None,
    flags: int = 0,
    data: str | None = None,
) -> None:
    nr = NUMBERS["mount"]
    syscall(nr, _path(source), _path(target), _path(fstype), flags, _path(data))


def umount2(target: str | os.PathLike[str], flags: int = 0) -> None:
    syscall(NUMBERS["umount2"], _path(target), flags)


def pivot_root(new: str | os.PathLike[str], old: str | os.PathLike[str]) -> None:
    syscall(NUMBERS["pivot_root"], _path(new), _path(old))


def mount_setattr(path: str | os.PathLike[str], *, attr_set: int) -> None:
    """Change a mount with all mounts below it: a read-only bind in one call."""
    attributes = (ctypes.c_uint64 * 4)(attr_set, 0, 0, 0)
    syscall(NUMBERS["mount_setattr"], AT_FDCWD, _path(path), AT_RECURSIVE, attributes, 32)


def detached_copy(path: str | os.PathLike[str], *, directory: int = AT_FDCWD) -> int:
    """A copy of the mount at `path`, from that folder or file downwards with all mounts below it,
    that is nowhere to be seen: only this descriptor holds it."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE | AT_EMPTY_PATH
    return syscall(NUMBERS["open_tree"], directory, _path(path), flags)


def change_detached(mount: int, *, attr_set: int = 0, propagation: int = 0, users: int = 0) -> None:
    """As `mount_setattr`, for a detached one. `users`: a user namespace to read its owners by."""
    attributes = (ctypes.c_uint64 * 4)(attr_set, 0, propagation, users)
    syscall(NUMBERS["mount_setattr"], mount, b"", AT_EMPTY_PATH | AT_RECURSIVE, attributes, 32)


def attach(mount: int, target: str | os.PathLike[str]) -> None:
    """Puts a detached mount into our mount namespace. A link at the end of `target` is refused."""
    nr = NUMBERS["move_mount"]
    syscall(nr, mount, b"", AT_FDCWD, _path(target), MOVE_MOUNT_F_EMPTY_PATH)


def close_range(first: int, last: int = 0xFFFF_FFFF, flags: int = 0) -> None:
    syscall(NUMBERS["close_range"], first, last, flags)


def sethostname(name: str) -> None:
    encoded = name.encode()
    syscall(NUMBERS["sethostname"], encoded, len(encoded))


def prctl(option: int, *args: int) -> int:
    return syscall(NUMBERS["prctl"], option, *args)


def end_library_threads() -> int:
    """Ends the threads that libraries keep and start anew when needed; returns how many are left.

    OpenBLAS starts some when numpy is imported. A child of clone3 would wait forever for threads
    it does not have; one ordinary fork makes libc tell such libraries to end theirs.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task"))


def _described_offset() -> int:
    """0 if glibc does not tell debuggers."""
    try:
        size, _, offset = (ctypes.c_uint32 * 3).in_dll(libc, "_thread_db_pthread_tid")
    except ValueError:  # not exported
        return 0
    return offset if size == 32 else 0


_TID_OFFSET = _described_offset()


def _thread_id_address(cleared: int) -> int:
    """Where libc keeps this thread's id, or 0 when that cannot be known.

    A fork by libc rewrites that word; a bare clone leaves the parent's id in it, and then thread
    clocks, affinities and priority-inheriting locks name a thread that is not there. glibc tells
    debuggers where it is in the descriptor of a thread (size in bits, count, offset); before 2.43
    it was also what the kernel clears. Any other address is not glibc's.
    """
    descriptor: int = _pthread_self() or 0
    for address in (descriptor + _TID_OFFSET, cleared):
        if descriptor <= address < descriptor + 4096:
            known = ctypes.c_int32.from_address(address).value
            if known == syscall(NUMBERS["gettid"]):
                return address
    return 0


def _cleared_address() -> int:
    """What the kernel clears when this thread ends, or 0 when it does not tell."""
    word = ctypes.c_uint64()
    address = ctypes.addressof(word)
    if _syscall(NUMBERS["prctl"], PR_GET_TID_ADDRESS, address, 0, 0, 0, 0) == -1:
        return 0
    return word.value


def _robust_list() -> tuple[int, int]:
    head, size = ctypes.c_uint64(), ctypes.c_uint64()
    nr = NUMBERS["get_robust_list"]
    if _syscall(nr, 0, ctypes.addressof(head), ctypes.addressof(size), 0, 0, 0) == -1:
        return 0, 0
    return head.value, size.value


def clone3(flags: int, *, pidfd: bool = False) -> tuple[int, int]:
    """Fork this interpreter into new namespaces: (0, -1) in the child, (pid, pidfd) in the parent.

    The interpreter's own fork hooks run, so locks, random seeds and threading are right in the
    child. libc's handlers do not: the caller must have one thread only (`end_library_threads`).
    The pidfd is -1 unless asked for.
    """
    pidfd_word = ctypes.c_int32(-1)
    cleared = _cleared_address()
    thread_id = _thread_id_address(cleared)
    robust_list = _robust_list()
    if pidfd:
        flags |= CLONE_PIDFD
    if thread_id:
        flags |= CLONE_CHILD_SETTID
    arguments = (ctypes.c_uint64 * 11)(
        flags,
        ctypes.addressof(pidfd_word),
        thread_id,
        0,  # parent_tid
        SIGCHLD,
        0,  # stack
        0,  # stack_size
        0,  # tls
        0,  # set_tid
        0,  # set_tid_size
        0,  # cgroup
    )
    pid = -1
    _before_fork()
    try:
        pid = _syscall_locked(NUMBERS["clone3"], arguments, ctypes.sizeof(arguments), 0, 0, 0, 0)
        failure = _failure(NUMBERS["clone3"]) if pid == -1 else None
    finally:
        if pid == 0:
            _after_fork_child()
        else:
            _after_fork_parent()
    if failure is not None:
        raise failure
    if pid == 0:
        if cleared:
            syscall(NUMBERS["set_tid_address"], cleared)
        if robust_list[0]:
            syscall(NUMBERS["set_robust_list"], *robust_list)
        return 0, -1
    return pid, pidfd_word.value
