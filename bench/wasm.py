"""Who takes part for WebAssembly: plain wasmtime with the same CPython, and Belljar's `wasm`.

`python -m bench --only walls --wall wasm` measures these alone.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from belljar import Belljar, Settings
from belljar.engines import registry
from belljar.engines.wasm import compiled, fetch, runtimes
from bench.contenders import BASE, REST_S, command
from bench.timing import Absent, Contender

GROUP = "wasm"

# What somebody would write with wasmtime alone: its own WASI, one run per process.
_PLAIN = """
import sys, wasmtime
engine = wasmtime.Engine()
if sys.argv[2] == "compiled":
    module = wasmtime.Module.deserialize_file(engine, sys.argv[1])
else:
    module = wasmtime.Module.from_file(engine, sys.argv[1])
linker = wasmtime.Linker(engine)
linker.define_wasi()
store = wasmtime.Store(engine)
wasi = wasmtime.WasiConfig()
wasi.argv = ("python3", "-c", sys.argv[3])
wasi.inherit_stdout()
store.set_wasi(wasi)
start = linker.instantiate(store, module).exports(store)["_start"]
try:
    start(store)
except wasmtime.ExitTrap as leaving:
    sys.exit(leaving.code)
"""


def contenders(pooled: Belljar, unpooled: Belljar) -> list[Contender | Absent]:
    """Both jars with `engine="wasm"`."""
    if missing := registry.why_not("wasm", Settings()):
        return [Absent(name="wasm", group=GROUP, why=missing.why)]
    folder = fetch.build(Settings())
    module = folder / runtimes.CPYTHON.file_name
    return [
        _process("wasmtime, compiling", module, "source", every=10),
        _process("wasmtime, compiled ahead", _ahead(module), "compiled"),
        Contender(name="wasmtime, same process", group=GROUP, once=_in_process(folder)),
        Contender(
            name="belljar wasm, pool off",
            group=GROUP,
            once=_in_jar(unpooled),
            settle=lambda: time.sleep(REST_S),
        ),
        Contender(
            name="belljar wasm, pooled",
            group=GROUP,
            once=_in_jar(pooled),
            settle=lambda: _refill(pooled),
        ),
    ]


def _process(name: str, module: Path, how: str, *, every: int = 1) -> Contender:
    argv = [sys.executable, "-c", _PLAIN, str(module), how, BASE]
    return Contender(name=name, group=GROUP, once=command(argv, env={}), every=every)


def _ahead(module: Path) -> Path:
    """Compiled with wasmtime's defaults, as the script expects it."""
    import wasmtime

    scratch = tempfile.mkdtemp(prefix="belljar-bench-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    file = Path(scratch) / "python.cwasm"
    file.write_bytes(wasmtime.Module.from_file(wasmtime.Engine(), str(module)).serialize())
    return file


def _in_process(folder: Path) -> Callable[[], None]:
    """A program that holds the compiled module and instantiates it for each run: no snapshot."""
    import wasmtime

    engine = compiled.engine()
    module = compiled.load(engine, str(compiled.path_for(runtimes.CPYTHON, folder)))

    def once() -> None:
        linker = wasmtime.Linker(engine)
        linker.define_wasi()
        store = wasmtime.Store(engine)
        with tempfile.NamedTemporaryFile() as output:
            wasi = wasmtime.WasiConfig()
            wasi.argv = ("python3", "-c", BASE)
            wasi.stdout_file = output.name
            store.set_wasi(wasi)
            start = linker.instantiate(store, module).exports(store)["_start"]
            assert isinstance(start, wasmtime.Func)
            start(store)
            if output.read() != b"1\n":
                raise RuntimeError("wrong output")

    return once


def _in_jar(jar: Belljar) -> Callable[[], None]:
    def once() -> None:
        result = jar.run(BASE, engine="wasm")
        if result.stdout != "1\n" or not result.success:
            raise RuntimeError(f"{result.status}: {result.stderr[-200:]}")

    return once


def _refill(jar: Belljar) -> None:
    jar.warm("base", jar.settings.pool_size, engine="wasm")
    time.sleep(REST_S)
