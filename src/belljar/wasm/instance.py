"""A living module: what it may call, what it may use, and how it is stopped."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from belljar.engines.wasm.wasi import abi, calls, files, table
from belljar.engines.wasm.wasi.memory import Memory
from belljar.errors import InvalidModule, ModuleStopped
from belljar.model import MIB, Dropped
from belljar.runtimes.guest.spool import Spool

from .clock import TICK_S, Clock
from .contents import Contents
from .streams import Given, Kept

if TYPE_CHECKING:
    import wasmtime

INPUT = "/data/input"
NEAR_LIMIT_BYTES = MIB
STATE_SHARE = 4
"""Beside its memory, a module's tables may take this part of `memory_bytes`, and so may what an
instance holds of its functions, globals and segments."""
ELEMENT_BYTES = 8
"""Of a table, in wasmtime."""

Function = Callable[..., Any]

_OUT_OF_MEMORY = ("exceeds memory limits", "minimum size", "GC heap out of memory")


@dataclass(frozen=True, kw_only=True)
class Compiled:
    wasmtime: Any
    """The library, which is loaded when it is needed."""
    engine: wasmtime.Engine
    module: wasmtime.Module
    clock: Clock
    contents: Contents
    imports: tuple[Any, ...]
    exports: Mapping[str, Any]
    """Name → type, in the module's order."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What each instance has, beside its code."""

    functions: Mapping[tuple[str, str], Function]
    memory_bytes: int
    fuel: int | None
    timeout_s: float
    inputs: str | os.PathLike[str] | None
    stdin: bytes
    argv: Sequence[str]
    env: Mapping[str, str]
    output_bytes: int


class Instance:
    """A living module; made by `Module.instance`. Not for two threads at once."""

    def __init__(
        self, compiled: Compiled, terms: Terms, held: contextlib.ExitStack, *, wasi: bool
    ) -> None:
        self._compiled = compiled
        self._terms = terms
        self._wasmtime = compiled.wasmtime
        self._store = self._wasmtime.Store(compiled.engine)
        share = terms.memory_bytes // STATE_SHARE
        self._store.set_limits(
            memory_size=terms.memory_bytes,
            table_elements=share // ELEMENT_BYTES // max(1, compiled.contents.tables),
            instances=1,
            tables=compiled.contents.tables,
            memories=1,
        )
        if compiled.contents.state_bytes > share:
            self._stopped(
                "out_of_memory",
                f"its functions, globals and segments take {compiled.contents.state_bytes} bytes,"
                f" and a quarter of memory_bytes is {share}",
            )
        if terms.fuel is not None:
            self._store.set_fuel(terms.fuel)
        self._deadline = time.monotonic() + terms.timeout_s
        self._spools = {1: Spool(terms.output_bytes), 2: Spool(terms.output_bytes)}
        self._heads = {1: bytearray(), 2: bytearray()}
        self._exports = self._wasmtime.Linker(compiled.engine)
        linker = self._wasmtime.Linker(compiled.engine)
        system = self._system(held) if wasi else None
        self._link(linker, system)
        held.callback(self._store.close)
        with self._guarded():
            made = linker.instantiate(self._store, compiled.module)
            # Asked for by name: wasmtime's list of all exports takes time in the square of them.
            self._exports.define_instance(self._store, "", made)
        memory = self._export("memory")
        self.memory: Memory | None = None
        if isinstance(memory, self._wasmtime.Memory):
            self.memory = Memory(memory, self._store)
        if system and self.memory:
            system.memory = self.memory

    def call(self, name: str, *arguments: int | float) -> Any:
        function = self._export(name)
        if not isinstance(function, self._wasmtime.Func):
            kind, exports = self._wasmtime.FuncType, self._compiled.exports
            known = [n for n, item in exports.items() if isinstance(item, kind)]
            raise InvalidModule(
                f"the module has no function {name!r}", hint=f"it has {', '.join(known[:20])}"
            )
        wanted = function.type(self._store).params
        if len(wanted) != len(arguments):
            raise InvalidModule(f"{name} takes {len(wanted)} arguments, not {len(arguments)}")
        for kind, value in zip(wanted, arguments, strict=True):
            _check_argument(name, str(kind), value)
        self._deadline = time.monotonic() + self._terms.timeout_s
        with self._guarded():
            return function(self._store, *arguments)
        raise AssertionError("unreachable")

    def _export(self, name: str) -> Any:
        known = name in self._compiled.exports
        return self._exports.get(self._store, "", name) if known else None

    @property
    def fuel_left(self) -> int | None:
        return self._store.get_fuel() if self._terms.fuel is not None else None

    def facts(self) -> dict[str, Any]:
        """What it wrote and used, for a ModuleResult."""
        texts, dropped = {}, {}
        for number, name in ((1, "stdout"), (2, "stderr")):
            tail, dropped[name] = self._spools[number].finish()
            head = bytes(self._heads[number])
            if dropped[name]:
                head += b"\n[belljar: %d bytes dropped here]\n" % dropped[name]
            texts[name] = head + tail
        fuel, left = self._terms.fuel, self.fuel_left
        return {
            **texts,
            "dropped": Dropped(**dropped),
            "fuel_used": None if fuel is None or left is None else fuel - left,
            "memory_bytes": self.memory.size if self.memory else 0,
        }

    # -- what it may call ------------------------------------------------------------------------

    def _system(self, held: contextlib.ExitStack) -> calls.Wasi:
        system = files.FileSystem(files.Quota(disk_bytes=0, disk_files=0))
        if self._terms.inputs is not None:
            try:
                root = os.open(self._terms.inputs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise InvalidModule(f"inputs: {error.strerror}: {self._terms.inputs}") from error
            held.callback(os.close, root)
            folder = system.folder(INPUT, frozen=True)
            system.show(root, folder)
            held.callback(_close_all, system, folder)
        streams: dict[int, table.Stream] = {
            0: Given(self._terms.stdin),
            1: Kept(self._spools[1], self._heads[1]),
            2: Kept(self._spools[2], self._heads[2]),
        }
        return calls.Wasi(
            file_system=system,
            streams=streams,
            argv=self._terms.argv,
            env=self._terms.env,
            open_files=256,
            leave=_leave,
            pause=self._pause,
            check=self._check,
        )

    def _link(self, linker: wasmtime.Linker, system: calls.Wasi | None) -> None:
        """Each import by its name, or a refusal that names it."""
        wasi = system.functions() if system else {}
        linked: set[tuple[str, str]] = set()
        for item in self._compiled.imports:
            place = (item.module, item.name or "")
            shown = f"{place[0]}.{place[1]}"
            if place in linked:  # a module may import a function twice
                continue
            linked.add(place)
            if not isinstance(item.type, self._wasmtime.FuncType):
                raise InvalidModule(
                    f"the module imports {shown}, which is not a function",
                    hint="memories, tables and globals of the host are never shared",
                )
            if place in self._terms.functions:
                function = self._given(self._terms.functions[place])
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
        wants_memory = getattr(function, "wants_memory", False)

        def call(*arguments: Any) -> Any:
            self._check()
            if not wants_memory:
                return function(*arguments)
            if self.memory is None:
                raise InvalidModule("a host function wants memory, and the module exports none")
            return function(self.memory, *arguments)

        return call

    # -- limits ----------------------------------------------------------------------------------

    def _check(self) -> None:
        if time.monotonic() >= self._deadline:
            raise _OutOfTime

    def _pause(self, seconds: float) -> None:
        left = self._deadline - time.monotonic()
        time.sleep(max(0.0, min(seconds, left)))
        if seconds >= left:
            raise _OutOfTime

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Runs with the clock on; says in our words how the module was stopped."""
        ticks = max(1, round(self._terms.timeout_s / TICK_S))
        self._store.set_epoch_deadline(ticks)
        try:
            with self._compiled.clock.ticking(self._compiled.engine):
                yield
        except _OutOfTime:
            self._stopped("timeout", f"it took longer than {self._terms.timeout_s:g} s")
        except self._wasmtime.Trap as trap:
            self._trapped(trap)
        except self._wasmtime.WasmtimeError as error:
            text = first_lines(error)
            if any(sign in str(error) for sign in _OUT_OF_MEMORY):
                self._stopped("out_of_memory", f"it wants more memory than it may have: {text}")
            raise InvalidModule(f"the module cannot be used: {text}") from error

    def _trapped(self, trap: wasmtime.Trap) -> NoReturn:
        code, codes = trap.trap_code, self._wasmtime.TrapCode
        if code == codes.INTERRUPT:
            self._stopped("timeout", f"it took longer than {self._terms.timeout_s:g} s", trap)
        if code == codes.OUT_OF_FUEL:
            self._stopped("out_of_fuel", f"its fuel of {self._terms.fuel} was used up", trap)
        text = trap.message.strip().splitlines()
        reason = next((line.strip() for line in text if "wasm trap" in line), text[0])
        held, most = self.memory.size if self.memory else 0, self._terms.memory_bytes
        if held + NEAR_LIMIT_BYTES > most:
            reason = f"it broke off with {held} of {most} bytes of memory in use: {reason}"
            self._stopped("out_of_memory", reason, trap)
        self._stopped("trap", reason, trap)

    def _stopped(self, status: str, why: str, cause: Exception | None = None) -> NoReturn:
        raise ModuleStopped(f"the module was stopped: {why}", status=status) from cause


class Left(BaseException):
    """proc_exit"""

    def __init__(self, code: int) -> None:
        self.code = code


class _OutOfTime(BaseException):
    pass


def _leave(code: int) -> NoReturn:
    raise Left(code)


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


def first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:3])
