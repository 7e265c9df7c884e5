"""QuickJS, behind the wall: JavaScript as far as a module without an operating system has it.

The module is a library: the host evaluates code in it by calling its exports. The language is
QuickJS's own; what programs expect of a host (console, timers, files, `require`) is guest/boot.js,
which reaches us through one function, `host(operation, …)`.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import wasmtime

from .wasi import abi, calls, files
from .wasi.abi import WasiError

if TYPE_CHECKING:
    from .zygote import Zygote

_MODULE, _COMPILE_ONLY, _BACKTRACE_BARRIER = 1 << 0, 1 << 5, 1 << 6
_REJECTED = 2
_FAILED = {
    abi.ENOENT: "ENOENT: no such file or directory",
    abi.EEXIST: "EEXIST: file already exists",
    abi.EISDIR: "EISDIR: illegal operation on a directory",
    abi.ENOTDIR: "ENOTDIR: not a directory",
    abi.ENOTEMPTY: "ENOTEMPTY: directory not empty",
    abi.ENOSPC: "ENOSPC: no space left on device",
    abi.EROFS: "EROFS: read-only file system",
    abi.ENAMETOOLONG: "ENAMETOOLONG: name too long",
}


class Thrown(Exception):
    """To be thrown as an Error inside."""


class QuickJs:
    def __init__(self, zygote: Zygote, boot: str) -> None:
        self._zygote = zygote
        self._boot = boot
        self._exports: dict[str, Callable[..., int]] = {}
        self._rejected: dict[int, str] = {}
        self._built_in: dict[str, list[str]] = {}
        self._path = ""
        self._env: dict[str, str] = {}
        self._begun = 0.0
        self._size = 0
        self._operations: dict[str, Callable[..., str | int | None]] = {
            name.removeprefix("_do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_do_")
        }
        self.wasi = calls.Wasi(
            file_system=zygote.files,
            streams={},
            argv=(),
            env={},
            open_files=8,
            leave=self._leave,
        )

    def start(self) -> None:
        """Warms up, forks, and runs the code in each sandbox."""
        self._link()
        exports = self._zygote.instantiate(self.wasi)
        store = self._zygote.store
        for name, item in exports.items():
            if isinstance(item, wasmtime.Func) and name.startswith(
                ("qjs_", "wasm_", "_initialize")
            ):
                self._exports[name] = _bound(item, store)
        self._exports["_initialize"]()
        if self._exports["qjs_init"]():
            raise RuntimeError("QuickJS does not start")
        self._exports["qjs_set_promise_rejection_handler"](1)
        self._exports["qjs_set_module_loader"](1)
        self._size = self._exports["wasm_malloc"](4)
        self._offer_host()
        built_in = self._text(self._evaluate(self._boot, "boot.js"))
        self._built_in = json.loads(built_in)
        self._zygote.fork(self.wasi)
        order = self._zygote.take_order(self.wasi)
        self._path, self._env = order["path"], order["env"]
        self._begun = time.monotonic()
        self._leave(self._run())

    def _run(self) -> int:
        try:
            source = self._read(self._path).decode("utf-8", "replace")
            self._complain(self._evaluate("globalThis[Symbol.for('belljar')].begin()", "boot.js"))
            # As node does it: a script unless it can only be a module.
            tried = self._evaluate(source, self._path, _COMPILE_ONLY)
            if self._exports["qjs_is_exception"](tried):
                self._exports["qjs_free_value"](self._exports["qjs_get_exception"]())
                result = self._evaluate(source, self._path, _MODULE)
            else:
                self._exports["qjs_free_value"](tried)
                self._evaluate("globalThis[Symbol.for('belljar')].main()", "boot.js")
                result = self._evaluate(source, self._path)
            self._complain(result)
            self._loop()
            is_promise = self._exports["qjs_is_promise"](result)
            if is_promise and self._exports["qjs_promise_state"](result) == _REJECTED:
                raise Thrown(self._describe(self._exports["qjs_promise_result"](result)))
        except Thrown as uncaught:
            return self._uncaught(str(uncaught))
        status = self._text(
            self._evaluate("String(globalThis[Symbol.for('belljar')].status())", "boot.js")
        )
        return int(status) & 0xFF if status.lstrip("-").isdigit() else 0

    def _loop(self) -> None:
        """Promises first, then timers, until nothing is left to wait for."""
        while True:
            while self._exports["qjs_is_job_pending"]():
                if self._exports["qjs_execute_pending_job"]() < 0:
                    raise Thrown(self._describe(self._exports["qjs_get_exception"]()))
            if self._rejected:
                raise Thrown(next(iter(self._rejected.values())))
            tick = self._evaluate("String(globalThis[Symbol.for('belljar')].tick())", "boot.js")
            self._complain(tick)
            wait_ms = float(self._text(tick))
            if self._exports["qjs_is_job_pending"]():
                continue
            if wait_ms < 0:
                return
            time.sleep(wait_ms / 1000)

    def _uncaught(self, text: str) -> int:
        worker = self._zygote.worker
        assert worker is not None
        worker.stderr.write(f"Uncaught {text}\n".encode("utf-8", "replace"))
        worker.lacks_memory = "InternalError: out of memory" in text
        return 1

    def _leave(self, code: int) -> NoReturn:
        if self._zygote.worker is None:
            raise RuntimeError(f"QuickJS ended with status {code} before it was ready")
        self._zygote.worker.finish(code & 0xFF)

    # -- what the module imports -----------------------------------------------------------------

    def _link(self) -> None:
        self._zygote.link(self.wasi)
        i32 = wasmtime.ValType.i32()
        for name, parameters, results, function in (
            ("host_call", 5, 1, self._host_call),
            ("host_interrupt", 0, 1, lambda: 0),
            ("host_promise_rejection", 3, 0, self._rejection),
            ("host_module_normalize", 2, 1, self._normalize),
            ("host_module_load", 2, 1, self._load),
            ("host_get_timezone_offset", 2, 1, lambda high, low: 0),
        ):
            signature = wasmtime.FuncType([i32] * parameters, [i32] * results)
            self._zygote.linker.define_func("env", name, signature, function)

    def _host_call(self, name: int, length: int, this: int, count: int, table: int) -> int:
        """A function of `host` was called; returns a value, or 0 with an Error thrown."""
        try:
            memory = self.wasi.memory
            operation = memory.read(name & 0xFFFF_FFFF, min(length & 0xFFFF_FFFF, 64)).decode()
            function = self._operations[operation]
            if count != function.__code__.co_argcount - 1:
                raise Thrown(f"{operation}: wrong number of arguments")
            raw = memory.read(table & 0xFFFF_FFFF, 4 * count)
            pointers = struct.unpack(f"<{count}I", raw)
            result = function(*(self._text(pointer, free=False) for pointer in pointers))
            if result is None:
                return self._exports["qjs_get_undefined"]()
            return result if isinstance(result, int) else self._string(result)
        except WasiError as error:
            return self._throw(_FAILED.get(error.errno, f"EIO: error {error.errno}"))
        except (Thrown, ValueError) as error:
            return self._throw(str(error))

    def _rejection(self, promise: int, reason: int, handled: int) -> None:
        identity = self._exports["qjs_get_value_ptr"](promise)
        if handled:
            self._rejected.pop(identity, None)
        else:
            self._rejected[identity] = self._describe(reason)
        self._exports["qjs_free_value"](promise)
        self._exports["qjs_free_value"](reason)

    def _normalize(self, base: int, name: int) -> int:
        wanted = self._c_text(name)
        if wanted.startswith("."):
            folder = os.path.dirname(self._c_text(base)) or "/workspace"
            wanted = os.path.normpath(os.path.join(folder, wanted))
        return self._place(wanted.encode())[0]

    def _load(self, name: int, length: int) -> int:
        wanted = self._c_text(name)
        bare = wanted.removeprefix("node:")
        try:
            if bare in self._built_in:
                names = ", ".join(self._built_in[bare])
                source = (
                    f"const m = globalThis[Symbol.for('belljar')].require({json.dumps(bare)});"
                    f"export default m; export const {{ {names} }} = m;"
                ).encode()
            else:
                source = self._read(wanted)
        except (WasiError, Thrown):
            self._throw(f"Cannot find module '{wanted}'")
            return 0
        address, size = self._place(source)
        self.wasi.memory.put_u32(length & 0xFFFF_FFFF, size)
        return address

    # -- what boot.js asks for -------------------------------------------------------------------

    def _do_print(self, text: str) -> None:
        self._worker().stdout.write(text.encode("utf-8", "replace"))

    def _do_complain(self, text: str) -> None:
        self._worker().stderr.write(text.encode("utf-8", "replace"))

    def _do_compile(self, source: str, name: str) -> int:
        """A function from the source of a CommonJS module; on one line with its first, so that
        line numbers are the file's own."""
        around = "(function (exports, require, module, __filename, __dirname) { " + source + "\n})"
        function = self._evaluate(around, name)
        if self._exports["qjs_is_exception"](function):
            return 0  # thrown already
        return function

    def _do_exit(self, status: str) -> None:
        self._leave(int(status))

    def _do_start(self) -> str:
        return json.dumps({"path": self._path, "env": self._env})

    def _do_now(self) -> str:
        return repr((time.monotonic() - self._begun) * 1000)

    def _do_random(self, count: str) -> str:
        return os.urandom(min(65536, int(count))).decode("latin-1")

    def _do_input(self) -> str:
        stdin = self._worker().stdin
        pieces = []
        while piece := stdin.read(65536):
            pieces.append(piece)
        return b"".join(pieces).decode("latin-1")

    def _do_read(self, path: str) -> str:
        return self._read(path).decode("latin-1")

    def _do_readText(self, path: str) -> str:
        return self._read(path).decode("utf-8", "replace")

    def _do_write(self, path: str, content: str) -> None:
        self._write(path, content.encode("latin-1"), append=False)

    def _do_append(self, path: str, content: str) -> None:
        self._write(path, content.encode("latin-1"), append=True)

    def _do_list(self, path: str) -> str:
        node = self._find(path)
        if not isinstance(node, files.Folder):
            raise WasiError(abi.ENOTDIR)
        return json.dumps(sorted(node.entries))

    def _do_status(self, path: str) -> str:
        node = self._find(path)
        folder = isinstance(node, files.Folder)
        return json.dumps({"size": node.size, "folder": folder, "ms": node.modified_ns / 1e6})

    def _do_makeFolder(self, path: str) -> None:
        self._zygote.files.make_folder(self._folder(), path)

    def _do_remove(self, path: str) -> None:
        self._zygote.files.remove(self._folder(), path)

    def _do_removeFolder(self, path: str) -> None:
        self._zygote.files.remove_folder(self._folder(), path)

    def _do_rename(self, path: str, new: str) -> None:
        self._zygote.files.rename(self._folder(), path, self._folder(), new)

    def _worker(self) -> Any:
        if self._zygote.worker is None:
            raise Thrown("not yet")
        return self._zygote.worker

    def _folder(self) -> files.Folder:
        return self._zygote.files.folder("/workspace")

    def _find(self, path: str) -> files.Node:
        return self._zygote.files.find(self._folder(), path)

    def _read(self, path: str) -> bytes:
        node = self._find(path)
        if isinstance(node, files.Folder):
            raise WasiError(abi.EISDIR)
        return bytes(node.data) if isinstance(node, files.File) else b""

    def _write(self, path: str, content: bytes, *, append: bool) -> None:
        system = self._zygote.files
        folder, name, _ = system.parent(self._folder(), path)
        try:
            node = self._find(path)
        except WasiError as error:
            if error.errno != abi.ENOENT:
                raise
            node = system.create(folder, name)
        if not isinstance(node, files.File):
            if isinstance(node, files.Null):
                return
            raise WasiError(abi.EISDIR)
        if node.frozen:
            raise WasiError(abi.EROFS)
        if not append:
            system.resize(node, 0)
        while content:
            content = content[system.write(node, node.size, content) :]

    # -- values ----------------------------------------------------------------------------------

    def _evaluate(self, source: str, name: str, flags: int = 0) -> int:
        address, length = self._place(source.encode("utf-8", "surrogatepass"))
        file, _ = self._place(name.encode())
        result = self._exports["qjs_eval"](address, length, file, flags | _BACKTRACE_BARRIER)
        self._exports["wasm_free"](address)
        self._exports["wasm_free"](file)
        return result

    def _complain(self, result: int) -> None:
        """Raises what a call threw."""
        if self._exports["qjs_is_exception"](result):
            raise Thrown(self._describe(self._exports["qjs_get_exception"]()))

    def _describe(self, error: int) -> str:
        """An Error with its stack, or whatever else was thrown."""
        text = self._text(error, free=False)
        key, _ = self._place(b"stack")
        stack = self._exports["qjs_get_prop_string"](error, key)
        self._exports["wasm_free"](key)
        lines = self._text(stack)
        return text if lines in ("", "undefined", "<null>") else f"{text}\n{lines.rstrip()}"

    def _text(self, value: int, *, free: bool = True) -> str:
        memory = self.wasi.memory
        address = self._exports["qjs_get_string_len"](value, self._size) & 0xFFFF_FFFF
        text = ""
        if address:
            data = memory.read(address, memory.u32(self._size))
            text = data.decode("utf-8", "surrogatepass")
            self._exports["qjs_free_cstring"](address)
        if free:
            self._exports["qjs_free_value"](value)
        return text

    def _c_text(self, address: int) -> str:
        address &= 0xFFFF_FFFF
        memory = self.wasi.memory
        data = memory.read(address, min(4096, memory.size - address))
        return data.partition(b"\0")[0].decode("utf-8", "replace")

    def _string(self, text: str) -> int:
        address, length = self._place(text.encode("utf-8", "surrogatepass"))
        value = self._exports["qjs_new_string"](address, length)
        self._exports["wasm_free"](address)
        return value

    def _throw(self, text: str) -> int:
        error = self._exports["qjs_new_error"]()
        key, _ = self._place(b"message")
        self._exports["qjs_set_prop_string"](error, key, self._string(text))
        self._exports["wasm_free"](key)
        self._exports["qjs_throw"](error)
        self._exports["qjs_free_value"](error)
        return 0

    def _place(self, data: bytes) -> tuple[int, int]:
        """Copies bytes into the module's memory, a zero behind them."""
        address = self._exports["wasm_malloc"](len(data) + 1) & 0xFFFF_FFFF
        if not address:
            raise Thrown("InternalError: out of memory")
        self.wasi.memory.write(address, data + b"\0")
        return address, len(data)

    def _offer_host(self) -> None:
        """`host`, an object with one function per operation; boot.js takes it off the global."""
        host = self._exports["qjs_new_object"]()
        for operation in self._operations:
            name, length = self._place(operation.encode())
            function = self._exports["qjs_new_host_function"](name, length, 0)
            self._exports["qjs_set_prop_string"](host, name, function)
            self._exports["wasm_free"](name)
        name, _ = self._place(b"host")
        self._exports["qjs_set_prop_string"](self._exports["qjs_get_global"](), name, host)


def _bound(function: wasmtime.Func, store: wasmtime.Store) -> Callable[..., int]:
    def call(*arguments: int) -> int:
        result = function(store, *arguments)
        return result if isinstance(result, int) else 0

    return call
