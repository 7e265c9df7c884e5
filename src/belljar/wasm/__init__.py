"""A caller's own WebAssembly modules, with nothing but what was explicitly linked (I7).

    from belljar import wasm

    module = wasm.Module("sum.wasm", functions={("env", "log"): print}, fuel=1_000_000)
    module.call("sum", 1, 2)

    wasm.Module("command.wasm", stdin=b"…", inputs="folder").run().stdout

The module runs in this process: the functions it may call are the caller's own, so a process around
it would only stand between the two. WebAssembly itself is the wall; fuel, time and memory are
bounded by wasmtime, output, files and calls into WASI by us. Compiling cannot be interrupted, so
all but small modules are compiled in a process of their own.
"""

from belljar import linux_only

linux_only.check()  # before what cannot be loaded elsewhere

from belljar.engines.wasm.wasi.memory import Memory  # noqa: E402

from .instance import Instance  # noqa: E402
from .module import Module, ModuleResult, ModuleStatus, with_memory  # noqa: E402

__all__ = ["Instance", "Memory", "Module", "ModuleResult", "ModuleStatus", "with_memory"]
