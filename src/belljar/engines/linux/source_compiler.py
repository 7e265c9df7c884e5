"""Compiles Python sources that nobody vouches for, in a process that can do nothing else.

Python's parser is large, and reads a stranger's text. Whoever found a hole in it would have this
process: its memory, one socket, and two dozen system calls that open, make and start nothing. What
it answers is taken for what it is, the stranger's: bytecode that only sandboxes load.

    request    lengths of the name and the source (4 bytes each), the name, the source
    answer     length (4 bytes), the code, marshalled; nothing at all if it is no Python
"""

from __future__ import annotations

import contextlib
import marshal
import os
import resource
import socket
import struct
import warnings
from errno import EPERM

from belljar.engines.linux import capabilities, kernel, seccomp
from belljar.engines.linux.syscalls import ALLOW, Clauses

REQUEST = struct.Struct(">II")
ANSWER = struct.Struct(">I")
MEMORY_BYTES = 1 << 30
_NICER = 10
_NOBODY = 65534
_PROT_EXEC = 4
_CODECS = ("utf-8", "ascii", "latin-1", "cp1252")
"""Loaded ahead: a source in another encoding stays uncompiled."""

CALLS: dict[str, str] = {
    "the socket": "read write recvfrom sendto recvmsg sendmsg close",
    "memory that is not code": "munmap mremap madvise brk",
    "being a process": (
        "futex rseq getpid gettid exit exit_group rt_sigaction rt_sigprocmask rt_sigreturn"
        " sigaltstack restart_syscall"
    ),
    "clocks and chance": "clock_gettime gettimeofday getrandom",
}
_DATA_ONLY: Clauses = ((ALLOW, ((2, _PROT_EXEC, (0,)),)), (EPERM, ()))
RULED: dict[str, Clauses] = {"mmap": _DATA_ONLY, "mprotect": _DATA_ONLY}


def live(descriptor: int) -> None:
    """Until the other end is closed."""
    warnings.simplefilter("ignore")
    for codec in _CODECS:
        b"".decode(codec)
    compile(b"# -*- coding: latin-1 -*-\npass", "warm", "exec", dont_inherit=True)
    with socket.socket(fileno=descriptor) as host, host.makefile("rwb") as stream:
        _confine()
        while head := stream.read(REQUEST.size):
            name, source = (stream.read(length) for length in REQUEST.unpack(head))
            code = _compiled(source, name.decode("utf-8", "surrogateescape"))
            stream.write(ANSWER.pack(len(code)) + code)
            stream.flush()


def _compiled(source: bytes, name: str) -> bytes:
    try:
        return marshal.dumps(compile(source, name, "exec", dont_inherit=True))
    except (SyntaxError, ValueError, OSError, LookupError, RecursionError, MemoryError):
        return b""  # not Python, or not this one


def _confine() -> None:
    os.nice(_NICER)
    for kind, most in (
        # One byte, not none: a core dump piped to a helper on the host ignores any other limit.
        (resource.RLIMIT_CORE, 1),
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    if os.geteuid() == 0:
        capabilities.bound()
        with contextlib.suppress(OSError):  # a container may have no such user
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        capabilities.empty()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    seccomp.install(seccomp.only(CALLS, RULED))
