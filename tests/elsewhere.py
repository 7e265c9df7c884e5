"""An interpreter that is on another system, as far as a program can tell from Python.

    python tests/elsewhere.py win32 -c CODE
    python tests/elsewhere.py darwin -m belljar.cli.main run …

What that system lacks is taken away: modules cannot be imported, functions and constants are gone,
/proc is not there. The standard library itself was loaded before, and keeps what it holds.
"""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import contextlib
import ctypes
import importlib
import importlib.abc
import importlib.machinery
import io
import logging.handlers
import mmap
import os
import platform
import runpy
import select
import selectors
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

LOADED = (asyncio, concurrent.futures, io, logging.handlers, platform, shutil, ssl, subprocess)
LOADED += (tempfile, urllib.request, zipfile)
sysconfig.get_config_vars()
# Libraries of others that know these systems by themselves, and look which one it is when loaded.
for _name in ("anyio._backends._asyncio", "click._termui_impl", "httpx", "rich.console", "typer"):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)

# Names with a star: all that begin so.
NOT_ON_MACOS: dict[ModuleType, str] = {
    os: "memfd_create MFD_* pidfd_open sched_* SCHED_* unshare setns CLONE_* splice SPLICE_*"
    " eventfd* EFD_* setresuid setresgid getresuid getresgid posix_fadvise POSIX_FADV_*"
    " copy_file_range"
    " O_PATH O_TMPFILE O_DIRECT O_NOATIME getrandom GRND_* getxattr setxattr listxattr removexattr"
    " XATTR_* P_PIDFD posix_fallocate fdatasync",
    signal: "pidfd_send_signal SIGRTM* SIGSTKFLT SIGPWR SIGPOLL SIGCLD sigwaitinfo sigtimedwait",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK AF_VSOCK AF_NETLINK AF_ALG AF_PACKET AF_CAN SO_PEERCRED"
    " SO_PASSCRED SO_DOMAIN SO_PROTOCOL MSG_CMSG_CLOEXEC MSG_NOSIGNAL NETLINK_* VMADDR_*",
    select: "epoll EPOLL*",
    mmap: "MADV_HUGEPAGE MADV_DONTFORK MADV_DODUMP MADV_DONTDUMP MAP_POPULATE",
}
NOT_ON_WINDOWS: dict[ModuleType, str] = {
    os: "fork forkpty openpty posix_openpt getuid geteuid getgid getegid getgroups setuid setgid"
    " seteuid setegid setgroups initgroups setreuid setregid getpgid getpgrp setpgid setsid getsid"
    " killpg mkfifo mknod major minor makedev wait wait3 wait4 waitid WNOHANG WEXITED WNOWAIT"
    " chown fchown lchown chroot fchdir pread pwrite preadv pwritev readv writev sendfile statvfs"
    " fstatvfs sysconf uname register_at_fork posix_spawn* nice getpriority setpriority getloadavg"
    " ctermid tcgetpgrp tcsetpgrp ttyname O_NONBLOCK O_CLOEXEC O_NOFOLLOW O_DIRECTORY O_SYNC"
    " O_NOCTTY O_ACCMODE sync pipe2 lockf F_LOCK F_ULOCK F_TLOCK ST_RDONLY ST_NOSUID pathconf"
    " confstr",
    signal: "SIGKILL SIGHUP SIGQUIT SIGALRM SIGCHLD SIGPIPE SIGUSR1 SIGUSR2 SIGCONT SIGSTOP SIGTSTP"
    " SIGWINCH SIGTTIN SIGTTOU SIGXCPU SIGXFSZ SIGIO SIGURG SIGVTALRM SIGPROF SIGTRAP SIGBUS SIGSYS"
    " alarm setitimer getitimer pthread_sigmask pthread_kill sigwait sigpending siginterrupt pause"
    " SIG_BLOCK SIG_UNBLOCK SIG_SETMASK",
    socket: "AF_UNIX SCM_RIGHTS SCM_CREDENTIALS CMSG_* send_fds recv_fds sethostname if_nameindex"
    " MSG_DONTWAIT MSG_EOR SO_REUSEPORT",
    select: "poll POLL*",
    mmap: "MAP_* PROT_* MADV_*",
}
MODULES_NOT_ON_WINDOWS = {
    *("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty", "readline", "syslog", "posix"),
    *("nis", "crypt", "spwd", "ossaudiodev", "curses"),
}


def be(system: str) -> None:
    """From now on this process is on `system`: darwin or win32."""
    blocked: set[str] = {"ossaudiodev", "spwd"}
    taken = [NOT_ON_MACOS]
    if system == "win32":
        blocked |= MODULES_NOT_ON_WINDOWS
        taken.append(NOT_ON_WINDOWS)
        for name in ("add_signal_handler", "remove_signal_handler", "add_reader", "add_writer"):
            setattr(asyncio.SelectorEventLoop, name, _not_implemented)
        socket.socketpair = _socketpair  # type: ignore[assignment]
        for name in ("open", "mkdir", "rename", "unlink", "replace", "link", "symlink", "rmdir"):
            setattr(os, name, _without_dir_fd(getattr(os, name)))
    selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[assignment, misc]
    for names in taken:
        for module, text in names.items():
            for pattern in text.split():
                _take(module, pattern)
    for name in blocked:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Absent(blocked))
    _hide_proc()
    ctypes.CDLL = _no_library  # type: ignore[assignment, misc]
    sys.platform = system


def _take(module: ModuleType, pattern: str) -> None:
    prefix = pattern.rstrip("*")
    whole = prefix == pattern
    for name in [n for n in vars(module) if n == prefix or (not whole and n.startswith(prefix))]:
        delattr(module, name)


class _Absent(importlib.abc.MetaPathFinder):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _hide_proc() -> None:
    real_open, real_os_open, real_stat = builtins.open, os.open, os.stat

    def hidden(path: Any) -> bool:
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        return text.startswith(("/proc", "/sys/"))

    def check(path: Any) -> None:
        if hidden(path):
            raise FileNotFoundError(2, "No such file or directory", path)

    def open_(file: Any, *more: Any, **options: Any) -> Any:
        check(file)
        return real_open(file, *more, **options)

    def os_open(path: Any, *more: Any, **options: Any) -> int:
        check(path)
        return real_os_open(path, *more, **options)

    def stat(path: Any, *more: Any, **options: Any) -> Any:
        check(path)
        return real_stat(path, *more, **options)

    builtins.open = io.open = open_  # type: ignore[assignment]
    os.open = os_open  # type: ignore[assignment]
    os.stat = stat  # type: ignore[assignment]


def _no_library(*_: Any, **__: Any) -> Any:
    raise OSError("no such library on this system")


def _socketpair(*_: Any) -> tuple[socket.socket, socket.socket]:
    """As Windows has it: over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _address = listener.accept()
    return one, other


def _without_dir_fd(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **options: Any) -> Any:
        if any(options.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            raise NotImplementedError("dir_fd: not on this system")
        return real(*given, **options)

    return call


def _not_implemented(*_: Any, **__: Any) -> Any:
    raise NotImplementedError


if __name__ == "__main__":
    _, system, how, what, *arguments = sys.argv
    be(system)
    sys.argv = [what, *arguments]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments]
        exec(compile(what, "<test>", "exec"), {"__name__": "__main__"})
