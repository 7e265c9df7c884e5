"""The first thing that runs in a container, as `python3 -I -c THIS SIZE CONFIGURATION`.

Reads the pack that `boot.py` made from standard input, puts the system-call filter on, and becomes
the agent. Standard library only, Python 3.9. The importer is gone again before the code comes:
nothing finds the agent by import.
"""

from __future__ import annotations

import ctypes
import json
import marshal
import os
import struct
import sys
import zlib
from binascii import a2b_base64
from typing import Any, Callable

PACKAGE = "belljar_guest"
_FAULT = 23
_PAGE_ROUND = 65536
_PR_SET_SECCOMP, _MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_VERSION_QUESTION, _PATH_BENEATH, _QUIETLY = 1, 1, 1 | 4

libc = ctypes.CDLL(None, use_errno=True)


class Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def take(size: int) -> dict[str, Any]:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    pack: dict[str, Any] = json.loads(zlib.decompress(data))
    return pack


def check(wanted: list[int] | None) -> None:
    if sys.version_info < (3, 9):
        raise RuntimeError("the image has Python %d.%d; 3.9 is needed" % sys.version_info[:2])
    if wanted and list(sys.version_info[:2]) != wanted:
        raise RuntimeError(
            "the image has Python %d.%d, its packages are for %d.%d"
            % (*sys.version_info[:2], *wanted)
        )


def check_places(writable: list[str], disk_bytes: int) -> None:
    """A daemon that ignores what it does not know must not leave a place without a quota."""
    for path in writable:
        found = os.statvfs(path)
        if found.f_blocks * found.f_frsize > disk_bytes + _PAGE_ROUND:
            raise RuntimeError("%s has no quota" % path)
        if not os.access(path, os.W_OK):
            raise RuntimeError("%s cannot be written" % path)


def filter_calls(filters: dict[str, str]) -> None:
    program = a2b_base64(filters[os.uname().machine])
    both = Program(len(program) // 8, program)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(both), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "the system-call filter was refused")


def fence(rights: dict[str, Any], writable: list[str]) -> None:
    """Landlock, where the kernel has it: files can be changed in the writable places only."""
    call = libc.syscall
    call.restype = ctypes.c_long
    version = call(_CREATE_RULESET, None, 0, _VERSION_QUESTION)
    if version <= 0:
        return
    files, scopes = rights["handled"][min(version, len(rights["handled"]) - 1)]
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = call(_CREATE_RULESET, struct.pack("=QQQ", files, 0, scopes), size, 0)
    places = [("/", rights["read"]), ("/dev", rights["device"])]
    places += [(path, rights["write"]) for path in writable]
    for path, allowed in places:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", files & allowed, folder), 0):
            raise OSError(ctypes.get_errno(), "Landlock refused a rule")
        os.close(folder)
    if call(_RESTRICT_SELF, ruleset, _QUIETLY if version >= 7 else 0):
        raise OSError(ctypes.get_errno(), "Landlock was refused")
    os.close(ruleset)


def oom_kills() -> int:
    """How many the kernel has killed in this container for lack of memory, as far as we see it."""
    for path in ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events"):
        try:
            with open(path) as file:
                found = dict(line.split() for line in file)
            return int(found.get("oom_kill", 0))
        except (OSError, ValueError):
            continue
    return 0


def importer(pack: dict[str, Any]) -> Any:
    from _frozen_importlib_external import MAGIC_NUMBER

    ready = pack["code"] if pack["magic"] == MAGIC_NUMBER.hex() else {}

    class Importer:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> Any:
            if name in pack["source"]:
                kind: Any = type(sys.__spec__)
                return kind(name, Importer, is_package=name == PACKAGE)
            return None

        @staticmethod
        def create_module(spec: object) -> None:
            return None

        @staticmethod
        def exec_module(module: Any) -> None:
            name = module.__name__
            if name in ready:
                code = marshal.loads(a2b_base64(ready[name]))
            else:
                code = compile(pack["source"][name], "<belljar>", "exec", dont_inherit=True)
            exec(code, module.__dict__)

    return Importer


def boot() -> Callable[[], None]:
    """The agent's main function, with what this wall adds to it."""
    pack = take(int(sys.argv[1]))
    configuration = json.loads(sys.argv[2])
    check(configuration["python"])
    store = [configuration["roots"]["store"]] if configuration["kept"] else []
    check_places([*configuration["writable"], *store], configuration["disk_bytes"])
    filter_calls(pack["filters"])
    finder = importer(pack)
    sys.meta_path.insert(0, finder)
    from belljar_guest import standalone  # type: ignore[import-not-found]

    if configuration["kept"]:
        from belljar_guest import resident  # noqa: F401
    sys.meta_path.remove(finder)

    class Counted(standalone.watch.Watched):  # type: ignore[misc]
        """Asked where the host cannot look: the kernel may have been faster than we."""

        def __init__(self, memory_bytes: int, disk: int) -> None:
            super().__init__(memory_bytes, disk)
            self._kills = oom_kills()

        def summary(self) -> dict[str, Any]:
            told: dict[str, Any] = super().summary()
            told["out_of_memory"] = told["out_of_memory"] or oom_kills() > self._kills
            return told

    class Container(standalone.Place):  # type: ignore[misc]
        watched = Counted

        def seal(self) -> None:
            fence(pack["landlock"], configuration["writable"])

    return lambda: standalone.main(sys.argv[2], Container())


if __name__ == "__main__":
    try:
        main = boot()
    except BaseException as error:
        fault = {"step": "boot", "message": "%s: %s" % (type(error).__name__, error), "hint": ""}
        text = json.dumps(fault).encode()
        os.write(1, struct.pack(">BI", _FAULT, len(text)) + text)
        os._exit(1)
    main()
