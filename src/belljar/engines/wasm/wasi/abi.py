"""The numbers and layouts of WASI preview 1."""

from __future__ import annotations

import struct

MODULE = "wasi_snapshot_preview1"

SUCCESS = 0
EACCES, EBADF, EEXIST, EFAULT, EINVAL, EIO = 2, 8, 20, 21, 28, 29
EISDIR, ELOOP, EMFILE, EMLINK, ENAMETOOLONG, ENOENT = 31, 32, 33, 34, 37, 44
ENOSPC, ENOSYS, ENOTDIR, ENOTEMPTY, ENOTSUP, EPERM = 51, 52, 54, 55, 58, 63
EROFS, ESPIPE = 69, 70

UNKNOWN, CHARACTER_DEVICE, DIRECTORY, REGULAR_FILE, SYMBOLIC_LINK = 0, 2, 3, 4, 7

# fdflags, oflags, lookup flags, rights: only those that change something here
APPEND = 1
CREATE, WANT_DIRECTORY, EXCLUSIVE, TRUNCATE = 1, 2, 4, 8
FOLLOW = 1
RIGHT_READ, RIGHT_SEEK, RIGHT_TELL, RIGHT_WRITE = 1 << 1, 1 << 2, 1 << 5, 1 << 6
ALL_RIGHTS = (1 << 30) - 1

SET, CURRENT, END = 0, 1, 2
REALTIME, MONOTONIC, PROCESS_CPU, THREAD_CPU = 0, 1, 2, 3
ATIME, ATIME_NOW, MTIME, MTIME_NOW = 1, 2, 4, 8

ON_CLOCK, ON_READ, ON_WRITE = 0, 1, 2
ABSOLUTE = 1

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
IOVEC = struct.Struct("<II")
PRESTAT = struct.Struct("<B3xI")
FDSTAT = struct.Struct("<BxH4xQQ")
FILESTAT = struct.Struct("<QQB7xQQQQQ")
DIRENT = struct.Struct("<QQIB3x")
SUBSCRIPTION = struct.Struct("<QB7xI4xQQH6x")
EVENT = struct.Struct("<QHB5xQH6x")

SIGNATURES: dict[str, tuple[str, str]] = {
    "args_get": ("ii", "i"),
    "args_sizes_get": ("ii", "i"),
    "environ_get": ("ii", "i"),
    "environ_sizes_get": ("ii", "i"),
    "clock_res_get": ("ii", "i"),
    "clock_time_get": ("iIi", "i"),
    "fd_advise": ("iIIi", "i"),
    "fd_allocate": ("iII", "i"),
    "fd_close": ("i", "i"),
    "fd_datasync": ("i", "i"),
    "fd_fdstat_get": ("ii", "i"),
    "fd_fdstat_set_flags": ("ii", "i"),
    "fd_fdstat_set_rights": ("iII", "i"),
    "fd_filestat_get": ("ii", "i"),
    "fd_filestat_set_size": ("iI", "i"),
    "fd_filestat_set_times": ("iIIi", "i"),
    "fd_pread": ("iiiIi", "i"),
    "fd_prestat_dir_name": ("iii", "i"),
    "fd_prestat_get": ("ii", "i"),
    "fd_pwrite": ("iiiIi", "i"),
    "fd_read": ("iiii", "i"),
    "fd_readdir": ("iiiIi", "i"),
    "fd_renumber": ("ii", "i"),
    "fd_seek": ("iIii", "i"),
    "fd_sync": ("i", "i"),
    "fd_tell": ("ii", "i"),
    "fd_write": ("iiii", "i"),
    "path_create_directory": ("iii", "i"),
    "path_filestat_get": ("iiiii", "i"),
    "path_filestat_set_times": ("iiiiIIi", "i"),
    "path_link": ("iiiiiii", "i"),
    "path_open": ("iiiiiIIii", "i"),
    "path_readlink": ("iiiiii", "i"),
    "path_remove_directory": ("iii", "i"),
    "path_rename": ("iiiiii", "i"),
    "path_symlink": ("iiiii", "i"),
    "path_unlink_file": ("iii", "i"),
    "poll_oneoff": ("iiii", "i"),
    "proc_exit": ("i", ""),
    "proc_raise": ("i", "i"),
    "random_get": ("ii", "i"),
    "sched_yield": ("", "i"),
    "sock_accept": ("iii", "i"),
    "sock_recv": ("iiiiii", "i"),
    "sock_send": ("iiiii", "i"),
    "sock_shutdown": ("ii", "i"),
}
"""Name → (parameters, results); i is 32 bits, I is 64."""


class WasiError(Exception):
    """A call that fails with a number."""

    def __init__(self, errno: int) -> None:
        super().__init__(f"WASI errno {errno}")
        self.errno = errno
