"""How the agent gets into a container: over its standard input, so that any image with a Python
will do, on any daemon, and its agent is always the one that belongs to this Belljar.

What travels is one pack: the guest's source, its byte code for our own Python (used when the
container's is the same, since compiling takes longer than all the rest), and the system-call filter
for each architecture.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import marshal
import zlib
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from belljar.engines.linux import seccomp, syscalls
from belljar.runtimes import guest

PACKAGE = "belljar_guest"
_MODULES = ("__init__", "protocol", "spool", "wake", "places", "watch", "agent", "ending", "runner")
_MAIN = "standalone"

# Runs in the container before anything else, as `python3 -I -c BOOT SIZE CONFIGURATION`. Works on
# Python 3.9. The importer is gone again before the code comes: nothing finds the agent by import.
BOOT = r"""
import os, sys
def boot():
    size, data = int(sys.argv[1]), b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    import ctypes, json, marshal, zlib
    from _frozen_importlib_external import MAGIC_NUMBER
    from binascii import a2b_base64
    pack = json.loads(zlib.decompress(data))
    configuration = json.loads(sys.argv[2])
    wanted = configuration["python"]
    if wanted and list(sys.version_info[:2]) != wanted:
        raise RuntimeError("the image has Python %d.%d, its packages are for %d.%d"
                           % (*sys.version_info[:2], *wanted))
    if sys.version_info < (3, 9):
        raise RuntimeError("the image has Python %d.%d; 3.9 is needed" % sys.version_info[:2])
    program = a2b_base64(pack["filters"][os.uname().machine])
    libc = ctypes.CDLL(None, use_errno=True)
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))
    filter = Program(len(program) // 8, program)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(filter), 0, 0):
        raise OSError(ctypes.get_errno(), "the system-call filter was refused")
    ready = pack["code"] if pack["magic"] == MAGIC_NUMBER.hex() else {}
    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name in pack["source"]:
                return type(sys.__spec__)(name, Finder, is_package=name == "belljar_guest")
        @staticmethod
        def create_module(spec):
            return None
        @staticmethod
        def exec_module(module):
            name = module.__name__
            if name in ready:
                code = marshal.loads(a2b_base64(ready[name]))
            else:
                code = compile(pack["source"][name], "<belljar>", "exec", dont_inherit=True)
            exec(code, module.__dict__)
    sys.meta_path.insert(0, Finder)
    import belljar_guest.standalone as standalone
    sys.meta_path.remove(Finder)
    return standalone.main
try:
    main = boot()
except BaseException as error:
    text = b'{"step": "boot", "message": %s, "hint": ""}'
    import json
    text = text % json.dumps("%s: %s" % (type(error).__name__, error)).encode()
    os.write(1, bytes((23,)) + len(text).to_bytes(4, "big") + text)
    os._exit(1)
main(sys.argv[2])
"""


@cache
def pack() -> bytes:
    source: dict[str, str] = {}
    code: dict[str, str] = {}
    folder = Path(guest.__file__).parent
    for module in (*_MODULES, _MAIN):
        name = PACKAGE if module == "__init__" else f"{PACKAGE}.{module}"
        source[name] = (folder / f"{module}.py").read_text()
        code[name] = _base64(marshal.dumps(_compiled(source[name])))
    filters = {
        machine: _base64(seccomp.build(arch=machine)) for machine in sorted(syscalls.MACHINES)
    }
    content = {
        "magic": importlib.util.MAGIC_NUMBER.hex(),
        "source": source,
        "code": code,
        "filters": filters,
    }
    return zlib.compress(json.dumps(content).encode(), 6)


def command(python: str, configuration: dict[str, Any]) -> list[str]:
    return [python, "-I", "-c", BOOT, str(len(pack())), json.dumps(configuration)]


def _compiled(source: str) -> CodeType:
    return compile(source, "<belljar>", "exec", dont_inherit=True)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
