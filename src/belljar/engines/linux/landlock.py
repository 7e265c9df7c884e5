"""Landlock: a second fence around files, beside the mounts, that a process puts on itself (I2).

Behind it a process reads and executes what it sees, writes only below the writable folders, and
uses devices only below /dev, even if a mount were wrong. It signals and connects to nobody
outside: its own children are inside, the agent that started it is not.
"""

from __future__ import annotations

import os
import struct
from errno import ENOSYS

from . import kernel

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR = 1 << 4, 1 << 5, 1 << 6, 1 << 7
MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK = 1 << 8, 1 << 9, 1 << 10, 1 << 11
MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV, RESOLVE_UNIX = 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16

_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1, 2
_LOG_SAME_EXEC_OFF, _LOG_SUBDOMAINS_OFF = 1, 4

# What each version of the kernel's interface added: (version, rights on files).
_FILE_RIGHTS = (
    (1, (1 << 13) - 1),
    (2, REFER),
    (3, TRUNCATE),
    (5, IOCTL_DEV),
    (9, RESOLVE_UNIX),
)
_SCOPES_SINCE, _SCOPES = 6, _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL

_READ = EXECUTE | READ_FILE | READ_DIR
_DEVICE = READ_FILE | READ_DIR | WRITE_FILE | IOCTL_DEV
_WRITE = ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV)

_CREATE_RULESET = kernel.NUMBERS["landlock_create_ruleset"]
_ADD_RULE = kernel.NUMBERS["landlock_add_rule"]
_RESTRICT_SELF = kernel.NUMBERS["landlock_restrict_self"]
_VERSION_QUESTION, _PATH_BENEATH = 1, 1


def abi() -> int:
    """The version of Landlock in this kernel; 0 where it is absent or switched off."""
    try:
        return kernel.syscall(_CREATE_RULESET, 0, 0, _VERSION_QUESTION)
    except OSError:
        return 0


def handled(version: int) -> tuple[int, int]:
    """The rights on files and the scopes that a version knows; asking for more is an error."""
    files = sum(rights for since, rights in _FILE_RIGHTS if since <= version)
    return files, _SCOPES if version >= _SCOPES_SINCE else 0


def prepare(*, writable: tuple[str, ...], readable: tuple[str, ...] | None = None) -> int:
    """The fence as a descriptor, to be put on with `enforce`: now, or in a child. `readable`: only
    this much of the files, and no device."""
    version = abi()
    if not version:
        raise OSError(ENOSYS, "landlock: absent from this kernel, or not among its active LSMs")
    files, scopes = handled(version)
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("=QQQ", files, 0, scopes)
    ruleset = kernel.syscall(_CREATE_RULESET, attributes, size, 0)
    try:
        for path in ("/",) if readable is None else readable:
            _allow(ruleset, path, files & _READ)
        if readable is None:
            _allow(ruleset, "/dev", files & _DEVICE)
        for path in writable:
            _allow(ruleset, path, files & _WRITE)
    except OSError:
        os.close(ruleset)
        raise
    return ruleset


def enforce(ruleset: int) -> None:
    """Puts the fence on this process and all it will start."""
    # A guest must not be able to fill the host's audit log with its denials.
    flags = _LOG_SAME_EXEC_OFF | _LOG_SUBDOMAINS_OFF if abi() >= 7 else 0
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    kernel.syscall(_RESTRICT_SELF, ruleset, flags)


def restrict(*, writable: tuple[str, ...], readable: tuple[str, ...] | None = None) -> None:
    """`prepare` and `enforce` in one; OSError with ENOSYS where Landlock is absent."""
    ruleset = prepare(writable=writable, readable=readable)
    try:
        enforce(ruleset)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        # struct landlock_path_beneath_attr is packed
        kernel.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, folder), 0)
    finally:
        os.close(folder)
