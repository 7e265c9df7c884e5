"""From a module's text or binary to machine code; as a program, in a process that may be lost.

    compiler.py FUEL MEMORY_BYTES CPU_S DESCRIPTOR < module

writes the machine code to the file of that descriptor, and `+` and the module's binary to its
output; or `-` and why there is none. It imports nothing of Belljar: its process has wasmtime on its
path and no more.
"""

from __future__ import annotations

import resource
import sys
from typing import Any

MADE, REFUSED = b"+", b"-"
MOST_COMPILED_BYTES = 256 << 20


def engine(*, fuel: bool) -> Any:
    """The one configuration for callers' modules: machine code made with another is refused."""
    import wasmtime

    config = wasmtime.Config()
    config.epoch_interruption = True
    config.consume_fuel = fuel
    config.wasm_threads = False
    config.wasm_memory64 = False
    return wasmtime.Engine(config)


def translate(source: bytes) -> bytes:
    """The binary of a module that may be text."""
    import wasmtime

    return source if source.startswith(b"\0asm") else bytes(wasmtime.wat2wasm(source))


def main(fuel: str, memory_bytes: str, cpu_s: str, descriptor: str) -> None:
    import wasmtime

    for kind, most in (
        (resource.RLIMIT_CORE, 1),  # with no byte at all, a helper that is piped to still dumps
        (resource.RLIMIT_DATA, int(memory_bytes)),
        (resource.RLIMIT_CPU, int(cpu_s)),
    ):
        resource.setrlimit(kind, (most, most))
    out = sys.stdout.buffer
    try:
        binary = translate(sys.stdin.buffer.read())
        code = wasmtime.Module(engine(fuel=bool(int(fuel))), binary).serialize()
    except wasmtime.WasmtimeError as error:
        out.write(REFUSED + str(error).encode("utf-8", "replace"))
        return
    if len(code) > MOST_COMPILED_BYTES:
        out.write(REFUSED + b"its machine code is larger than %d bytes" % MOST_COMPILED_BYTES)
        return
    with open(int(descriptor), "wb") as file:
        file.write(code)
    out.write(MADE + binary)


if __name__ == "__main__":
    main(*sys.argv[1:])
