"""QEMU gets its guest's memory to read from, and not to write to.

Every copy maps the snapshot's memory privately. QEMU before 8.2 opens the file for writing all the
same, and a QEMU that was taken over could then change what the next machine starts from. So that
one call is answered by us, with a descriptor that can only be read; mapped privately it serves as
well. No file is opened that way afterwards: without us the call fails.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

from belljar.engines.linux import kernel

_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_ALLOW, _USER_NOTIFICATION = 0x7FFF_0000, 0x7FC0_0000
_X86_64 = 0xC000_003E
_OPENAT = 257
_ARCH, _NUMBER, _FLAGS = 4, 0, 32
"""Offsets in struct seccomp_data; the flags are openat's third argument."""
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NOTIFICATION_BYTES = 80
_RECEIVE, _ADD_DESCRIPTOR = 0xC050_2100, 0x4018_2103
_AND_SEND = 1 << 1

_PROGRAM = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 0, 5, _X86_64),
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 0, 3, _OPENAT),
        (_LOAD, 0, 0, _FLAGS),
        (_EQUAL, 0, 1, os.O_RDWR),  # and nothing else: as QEMU opens a memory file, and only that
        (_RETURN, 0, 0, _USER_NOTIFICATION),
        (_RETURN, 0, 0, _ALLOW),
    )
)


class _Fprog(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def ask(answerer: socket.socket) -> None:
    """In the process that becomes QEMU: from now on such calls wait for an answer."""
    program = _Fprog(len(_PROGRAM) // 8, _PROGRAM)
    listener = kernel.syscall(
        kernel.NUMBERS["seccomp"], _SET_MODE_FILTER, _NEW_LISTENER, ctypes.addressof(program)
    )
    socket.send_fds(answerer, [b"l"], [listener])
    os.close(listener)


def listener(asker: socket.socket) -> int:
    """Where the calls of the process at the other end can be answered."""
    _, descriptors, _, _ = socket.recv_fds(asker, 1, 1)
    if not descriptors:
        raise OSError("the process for QEMU ended early")
    return descriptors[0]


def answer(listener: int, memory: int) -> None:
    """The call that waits there returns a new descriptor of `memory`."""
    notification = bytearray(_NOTIFICATION_BYTES)
    fcntl.ioctl(listener, _RECEIVE, notification)
    (identity,) = struct.unpack_from("=Q", notification)
    fcntl.ioctl(listener, _ADD_DESCRIPTOR, struct.pack("=QIIII", identity, _AND_SEND, memory, 0, 0))
