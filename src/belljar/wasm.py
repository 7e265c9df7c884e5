"""A caller's own WebAssembly modules, with nothing but what was explicitly linked (I7).

    from belljar import wasm

    module = wasm.Module("sum.wasm", functions={("env", "log"): print}, fuel=1_000_000)
    module.call("sum", 1, 2)

    wasm.Module("command.wasm", stdin=b"…", inputs="folder").run().stdout

The module runs in this process: the functions it may call are the caller's own, so a process around
it would only stand between the two. WebAssembly itself is the wall; fuel, time and memory are
bounded by wasmtime, output and files by us. Compiling happens in this process too and cannot be
interrupted, which is why the size of a module is bounded.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from belljar.engines.wasm.wasi import abi, calls, files, table
from belljar.engines.wasm.wasi.abi import WasiError
from belljar.engines.wasm.wasi.memory import Memory
from belljar.errors import EngineUnavailable, InvalidModule, ModuleStopped
from belljar.extras import install
from belljar.model import MIB, Dropped
from belljar.runtimes.guest.spool import Spool

if TYPE_CHECKING:
    import wasmtime

__all__ = ["Instance", "Memory", "Module", "ModuleResult", "ModuleStatus", "with_memory"]

INPUT = "/data/input"
TICK_S = 0.01
"""How exactly time-outs are kept."""
NEAR_LIMIT_BYTES = MIB
MOST_TABLE_ELEMENTS = 1_000_000

ModuleStatus = Literal["ok", "error", "timeout", "out_of_memory", "out_of_fuel", "trap"]
Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class ModuleResult:
    """How a WASI command ended."""

    status: ModuleStatus
    exit_code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    dropped: Dropped = field(default_factory=Dropped)
    """Bytes that were written but not kept, in the middle of a stream."""
    error: str = ""
    """Why it was stopped, if it was."""
    fuel_used: int | None = None
    memory_bytes: int = 0
    duration_ms: float = 0.0

    @property
    def success(self) -> bool:
        return self.status == "ok"


def with_memory(function: Function) -> Function:
    """A host function that gets the module's memory before its arguments:
    `with_memory(lambda memory, address, count: print(memory.read(address, count)))`."""

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.wants_memory = True  # type: ignore[attr-defined]
    return call


class Module:
    """A compiled module. Each call and each run has a new instance of it."""

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        *,
        functions: Mapping[tuple[str, str], Function] | None = None,
        wasi: bool = False,
        memory_bytes: int = 256 * MIB,
        fuel: int | None = None,
        timeout_s: float = 30.0,
        inputs: str | os.PathLike[str] | None = None,
        stdin: bytes = b"",
        argv: Sequence[str] = ("module",),
        env: Mapping[str, str] | None = None,
        output_bytes: int = MIB,
        module_bytes: int = 32 * MIB,
    ) -> None:
        """`source`: a path, or the module itself, binary or as text (.wat).

        `functions`: everything it may call, by (module, name). `wasi`: WASI too for `call`; `run`
        always has it. `inputs`: a folder it may read, as /data/input. `fuel`: about one unit per
        instruction; None is without."""
        self._wasmtime = _wasmtime()
        self._functions = dict(functions or {})
        self._wasi = wasi
        self._memory_bytes = memory_bytes
        self._fuel = fuel
        self._timeout_s = timeout_s
        self._inputs = inputs
        self._stdin = stdin
        self._argv = tuple(argv)
        self._env = dict(env or {})
        self._output_bytes = output_bytes
        self._clock = _Clock()
        config = self._wasmtime.Config()
        config.epoch_interruption = True
        config.consume_fuel = fuel is not None
        config.wasm_threads = False
        config.wasm_memory64 = False
        self._engine = self._wasmtime.Engine(config)
        binary = self._binary(source, module_bytes)
        try:
            self._module = self._wasmtime.Module(self._engine, binary)
        except self._wasmtime.WasmtimeError as error:
            raise InvalidModule(f"not a WebAssembly module: {_first(error)}") from error

    @property
    def imports(self) -> list[tuple[str, str]]:
        """What it wants to call or share, by (module, name)."""
        return [(item.module, item.name or "") for item in self._module.imports]

    @property
    def exports(self) -> list[str]:
        return [item.name for item in self._module.exports]

    def call(self, name: str, *arguments: int | float) -> Any:
        """The value of an exported function, in a new instance. Raises ModuleStopped when it did
        not return: it trapped, or its fuel or time was used up."""
        with self.instance() as instance:
            return instance.call(name, *arguments)

    @contextlib.contextmanager
    def instance(self) -> Iterator[Instance]:
        """An instance to be called more than once; its memory and globals stay between calls."""
        with contextlib.ExitStack() as held:
            yield Instance(self, held, wasi=self._wasi)

    def run(self) -> ModuleResult:
        """Runs a WASI command (`_start`) to its end."""
        begun = time.monotonic()
        with contextlib.ExitStack() as held:
            status: ModuleStatus = "ok"
            code: int | None = 0
            problem = ""
            instance = None
            try:
                instance = Instance(self, held, wasi=True)
                if "_start" not in self.exports:
                    raise InvalidModule(
                        "the module has no `_start`: it is a library, not a command",
                        hint=f"call one of {', '.join(self.exports[:10])}",
                    )
                instance.call("_start")
            except _Left as left:
                code = left.code
                status = "ok" if code == 0 else "error"
            except ModuleStopped as stopped:
                status, code, problem = stopped.status, None, stopped.message  # type: ignore[assignment]
            return ModuleResult(
                status=status,
                exit_code=code,
                error=problem,
                duration_ms=(time.monotonic() - begun) * 1000,
                **(instance.facts() if instance else {}),
            )

    def _binary(self, source: str | os.PathLike[str] | bytes, most: int) -> bytes:
        if not isinstance(source, bytes):
            path = Path(source)
            try:
                with path.open("rb") as file:
                    source = file.read(most + 1)
            except OSError as error:
                raise InvalidModule(f"{path}: {error.strerror}") from error
        if len(source) > most:
            raise InvalidModule(
                f"the module is larger than {most} bytes", hint="raise module_bytes"
            )
        if source.startswith(b"\0asm"):
            return source
        try:
            return bytes(self._wasmtime.wat2wasm(source))
        except self._wasmtime.WasmtimeError as error:
            raise InvalidModule(f"not a WebAssembly module: {_first(error)}") from error


class Instance:
    """A living module; made by `Module.instance`. Not for two threads at once."""

    def __init__(self, module: Module, held: contextlib.ExitStack, *, wasi: bool) -> None:
        self._module = module
        self._wasmtime = module._wasmtime
        self._store = self._wasmtime.Store(module._engine)
        self._store.set_limits(
            memory_size=module._memory_bytes,
            table_elements=MOST_TABLE_ELEMENTS,
            instances=1,
            memories=1,
        )
        if module._fuel is not None:
            self._store.set_fuel(module._fuel)
        self._deadline = time.monotonic() + module._timeout_s
        self._spools = {1: Spool(module._output_bytes), 2: Spool(module._output_bytes)}
        self._heads = {1: bytearray(), 2: bytearray()}
        self._exports: Any = {}
        linker = self._wasmtime.Linker(module._engine)
        system = self._system(held) if wasi else None
        self._link(linker, system)
        held.callback(self._store.close)
        with self._guarded():
            made = linker.instantiate(self._store, module._module)
            self._exports = made.exports(self._store)
        memory = self._exports.get("memory")
        self.memory: Memory | None = None
        if isinstance(memory, self._wasmtime.Memory):
            self.memory = Memory(memory, self._store)
        if system and self.memory:
            system.memory = self.memory

    def call(self, name: str, *arguments: int | float) -> Any:
        function = self._exports.get(name) if name in self._module.exports else None
        if not isinstance(function, self._wasmtime.Func):
            known = [
                n for n, item in self._exports.items() if isinstance(item, self._wasmtime.Func)
            ]
            raise InvalidModule(
                f"the module has no function {name!r}", hint=f"it has {', '.join(known[:20])}"
            )
        wanted = function.type(self._store).params
        if len(wanted) != len(arguments):
            raise InvalidModule(f"{name} takes {len(wanted)} arguments, not {len(arguments)}")
        for kind, value in zip(wanted, arguments, strict=True):
            _check_argument(name, str(kind), value)
        self._deadline = time.monotonic() + self._module._timeout_s
        with self._guarded():
            return function(self._store, *arguments)
        raise AssertionError("unreachable")

    @property
    def fuel_left(self) -> int | None:
        return self._store.get_fuel() if self._module._fuel is not None else None

    def facts(self) -> dict[str, Any]:
        """What it wrote and used, for a ModuleResult."""
        texts, dropped = {}, {}
        for number, name in ((1, "stdout"), (2, "stderr")):
            tail, dropped[name] = self._spools[number].finish()
            head = bytes(self._heads[number])
            if dropped[name]:
                head += b"\n[belljar: %d bytes dropped here]\n" % dropped[name]
            texts[name] = head + tail
        fuel, left = self._module._fuel, self.fuel_left
        return {
            **texts,
            "dropped": Dropped(**dropped),
            "fuel_used": None if fuel is None or left is None else fuel - left,
            "memory_bytes": self.memory.size if self.memory else 0,
        }

    # -- what it may call ------------------------------------------------------------------------

    def _system(self, held: contextlib.ExitStack) -> calls.Wasi:
        system = files.FileSystem(files.Quota(disk_bytes=0, disk_files=0))
        if self._module._inputs is not None:
            try:
                root = os.open(self._module._inputs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise InvalidModule(f"inputs: {error.strerror}: {self._module._inputs}") from error
            held.callback(os.close, root)
            folder = system.folder(INPUT, frozen=True)
            system.show(root, folder)
            held.callback(_close_all, system, folder)
        streams: dict[int, table.Stream] = {
            0: _Given(self._module._stdin),
            1: _Kept(self._spools[1], self._heads[1]),
            2: _Kept(self._spools[2], self._heads[2]),
        }
        return calls.Wasi(
            file_system=system,
            streams=streams,
            argv=self._module._argv,
            env=self._module._env,
            open_files=256,
            leave=_leave,
            pause=self._pause,
        )

    def _link(self, linker: wasmtime.Linker, system: calls.Wasi | None) -> None:
        """Each import by its name, or a refusal that names it."""
        wasi = system.functions() if system else {}
        for item in self._module._module.imports:
            place = (item.module, item.name or "")
            shown = f"{place[0]}.{place[1]}"
            if not isinstance(item.type, self._wasmtime.FuncType):
                raise InvalidModule(
                    f"the module imports {shown}, which is not a function",
                    hint="memories, tables and globals of the host are never shared",
                )
            if place in self._module._functions:
                function = self._given(self._module._functions[place])
            elif place[0] == abi.MODULE and place[1] in wasi:
                function = wasi[place[1]]
            else:
                raise InvalidModule(
                    f"the module imports {shown}, which is not linked",
                    hint="it is a WASI command: use run(), or wasi=True"
                    if place[0] == abi.MODULE and not system
                    else f"functions={{({place[0]!r}, {place[1]!r}): …}} would link it",
                )
            linker.define_func(*place, item.type, function)

    def _given(self, function: Function) -> Function:
        if not getattr(function, "wants_memory", False):
            return function

        def call(*arguments: Any) -> Any:
            if self.memory is None:
                raise InvalidModule("a host function wants memory, and the module exports none")
            return function(self.memory, *arguments)

        return call

    # -- limits ----------------------------------------------------------------------------------

    def _pause(self, seconds: float) -> None:
        left = self._deadline - time.monotonic()
        time.sleep(max(0.0, min(seconds, left)))
        if seconds >= left:
            raise _OutOfTime

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Runs with the clock on; says in our words how the module was stopped."""
        ticks = max(1, round(self._module._timeout_s / TICK_S))
        self._store.set_epoch_deadline(ticks)
        try:
            with self._module._clock.ticking(self._module._engine):
                yield
        except _OutOfTime:
            self._stopped("timeout", f"it took longer than {self._module._timeout_s:g} s")
        except self._wasmtime.Trap as trap:
            self._trapped(trap)
        except self._wasmtime.WasmtimeError as error:
            text = _first(error)
            if "exceeds memory limits" in text or "minimum size" in text:
                self._stopped("out_of_memory", f"it wants more memory than it may have: {text}")
            raise InvalidModule(f"the module cannot be used: {text}") from error

    def _trapped(self, trap: wasmtime.Trap) -> NoReturn:
        code, codes = trap.trap_code, self._wasmtime.TrapCode
        if code == codes.INTERRUPT:
            self._stopped("timeout", f"it took longer than {self._module._timeout_s:g} s", trap)
        if code == codes.OUT_OF_FUEL:
            self._stopped("out_of_fuel", f"its fuel of {self._module._fuel} was used up", trap)
        text = trap.message.strip().splitlines()
        reason = next((line.strip() for line in text if "wasm trap" in line), text[0])
        held, most = self.memory.size if self.memory else 0, self._module._memory_bytes
        if held + NEAR_LIMIT_BYTES > most:
            reason = f"it broke off with {held} of {most} bytes of memory in use: {reason}"
            self._stopped("out_of_memory", reason, trap)
        self._stopped("trap", reason, trap)

    def _stopped(self, status: str, why: str, cause: Exception | None = None) -> NoReturn:
        raise ModuleStopped(f"the module was stopped: {why}", status=status) from cause


class _Clock:
    """Moves a module's epoch on while something of it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0

    @contextlib.contextmanager
    def ticking(self, engine: wasmtime.Engine) -> Iterator[None]:
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._over = over = threading.Event()
                threading.Thread(target=self._tick, args=(engine, over), daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._over.set()

    @staticmethod
    def _tick(engine: wasmtime.Engine, over: threading.Event) -> None:
        while not over.wait(TICK_S):
            engine.increment_epoch()


class _Left(BaseException):
    """proc_exit"""

    def __init__(self, code: int) -> None:
        self.code = code


class _OutOfTime(BaseException):
    pass


class _Given:
    """Standard input that is all there."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, count: int) -> bytes:
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def write(self, data: bytes) -> None:
        raise WasiError(abi.EBADF)

    def ready(self, timeout_s: float | None) -> bool:
        return True


class _Kept:
    """Output of which the beginning and the end are kept."""

    def __init__(self, spool: Spool, head: bytearray) -> None:
        self._spool = spool
        self._head = head

    def write(self, data: bytes) -> None:
        self._head += self._spool.feed(data)

    def read(self, count: int) -> bytes:
        raise WasiError(abi.EBADF)

    def ready(self, timeout_s: float | None) -> bool:
        return True


def _leave(code: int) -> NoReturn:
    raise _Left(code)


def _close_all(system: files.FileSystem, folder: files.Folder) -> None:
    for _, node in system.walk(folder):
        if isinstance(node, files.HostFile):
            node.close()


def _check_argument(name: str, kind: str, value: object) -> None:
    if kind in ("i32", "i64"):
        bits = int(kind[1:])
        if type(value) is not int or not -(1 << (bits - 1)) <= value < 1 << bits:
            raise InvalidModule(f"{name}: {value!r} is no {kind}")
    elif kind in ("f32", "f64"):
        if type(value) not in (int, float):
            raise InvalidModule(f"{name}: {value!r} is no {kind}")
    else:
        raise InvalidModule(f"{name} takes a {kind}, which cannot be given from here")


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:3])


def _wasmtime() -> Any:
    try:
        import wasmtime
    except ImportError:
        raise EngineUnavailable("wasmtime is not installed", hint=install("wasm")) from None
    return wasmtime
