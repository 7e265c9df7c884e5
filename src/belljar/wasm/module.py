"""A compiled module, and how a command ended."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from belljar.errors import EngineUnavailable, InvalidModule, ModuleStopped
from belljar.extras import install
from belljar.model import MIB, Dropped

from . import compiler, compiling
from .clock import Clock
from .instance import Compiled, Function, Instance, Left, Terms, first_lines

ModuleStatus = Literal["ok", "error", "timeout", "out_of_memory", "out_of_fuel", "trap"]


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
        compile_s: float = 120.0,
    ) -> None:
        """`source`: a path, or the module itself, binary or as text (.wat).

        `functions`: everything it may call, by (module, name). `wasi`: WASI too for `call`; `run`
        always has it. `inputs`: a folder it may read, as /data/input. `fuel`: about one unit per
        instruction; None is without. `compile_s`: how long compiling may take."""
        self._wasmtime = _wasmtime()
        self._wasi = wasi
        self._terms = Terms(
            functions=dict(functions or {}),
            memory_bytes=memory_bytes,
            fuel=fuel,
            timeout_s=timeout_s,
            inputs=inputs,
            stdin=stdin,
            argv=tuple(argv),
            env=dict(env or {}),
            output_bytes=output_bytes,
        )
        content = _content(source, module_bytes)
        engine = compiler.engine(fuel=fuel is not None)
        try:
            module, counted = compiling.compile_module(
                engine, content, fuel=fuel is not None, timeout_s=compile_s
            )
        except self._wasmtime.WasmtimeError as error:
            raise InvalidModule(f"not a WebAssembly module: {first_lines(error)}") from error
        self._compiled = Compiled(
            wasmtime=self._wasmtime,
            engine=engine,
            module=module,
            clock=Clock(),
            contents=counted,
            imports=tuple(module.imports),
            exports={item.name: item.type for item in module.exports},
        )

    @property
    def imports(self) -> list[tuple[str, str]]:
        """What it wants to call or share, by (module, name)."""
        return [(item.module, item.name or "") for item in self._compiled.imports]

    @property
    def exports(self) -> list[str]:
        return list(self._compiled.exports)

    def call(self, name: str, *arguments: int | float) -> Any:
        """The value of an exported function, in a new instance. Raises ModuleStopped when it did
        not return: it trapped, or its fuel or time was used up."""
        with self.instance() as instance:
            return instance.call(name, *arguments)

    @contextlib.contextmanager
    def instance(self) -> Iterator[Instance]:
        """An instance to be called more than once; its memory and globals stay between calls."""
        with contextlib.ExitStack() as held:
            yield Instance(self._compiled, self._terms, held, wasi=self._wasi)

    def run(self) -> ModuleResult:
        """Runs a WASI command (`_start`) to its end."""
        begun = time.monotonic()
        with contextlib.ExitStack() as held:
            status: ModuleStatus = "ok"
            code: int | None = 0
            problem = ""
            instance = None
            try:
                instance = Instance(self._compiled, self._terms, held, wasi=True)
                if "_start" not in self.exports:
                    raise InvalidModule(
                        "the module has no `_start`: it is a library, not a command",
                        hint=f"call one of {', '.join(self.exports[:10])}",
                    )
                instance.call("_start")
            except Left as left:
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


def _content(source: str | os.PathLike[str] | bytes, most: int) -> bytes:
    if not isinstance(source, bytes):
        path = Path(source)
        try:
            with path.open("rb") as file:
                source = file.read(most + 1)
        except OSError as error:
            raise InvalidModule(f"{path}: {error.strerror}") from error
    if len(source) > most:
        raise InvalidModule(f"the module is larger than {most} bytes", hint="raise module_bytes")
    return source


def _wasmtime() -> Any:
    try:
        import wasmtime
    except ImportError:
        raise EngineUnavailable("wasmtime is not installed", hint=install("wasm")) from None
    return wasmtime
