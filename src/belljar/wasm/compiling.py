"""Compiles a module within limits.

Compiling is the one thing that wasmtime cannot interrupt: 3.6 MB of empty functions take it 40 s
and 4.8 GB. So all but small modules are compiled by a process of their own, which may be killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from belljar.errors import InvalidModule
from belljar.model import GIB, KIB

from . import compiler, contents

SMALL_SOURCE_BYTES, SMALL_BYTES, FEW_LOCALS = 16 * KIB, 4 * KIB, 10_000
"""A module within all three is compiled in this process, which takes less time than to start
another: a few hundredths of a second at the worst."""
MEMORY_BYTES = 2 * GIB


def compile_module(
    engine: Any, source: bytes, *, fuel: bool, timeout_s: float
) -> tuple[Any, contents.Contents]:
    """The compiled module, and what it declares."""
    import wasmtime

    if len(source) <= SMALL_SOURCE_BYTES:
        source = compiler.translate(source)
        if _is_small(source):
            return wasmtime.Module(engine, source), contents.read(source)
    code = os.memfd_create("belljar-wasm")
    try:
        binary = _ask(source, code, fuel=fuel, timeout_s=timeout_s)
        # Mapped, not read: machine code may be many times as large as its module.
        module = wasmtime.Module.deserialize_file(engine, f"/proc/self/fd/{code}")
    finally:
        os.close(code)
    return module, contents.read(binary)


def _is_small(binary: bytes) -> bool:
    try:
        return len(binary) <= SMALL_BYTES and contents.most_locals(binary) <= FEW_LOCALS
    except IndexError:  # it is no module, which wasmtime says better
        return True


def _ask(source: bytes, code: int, *, fuel: bool, timeout_s: float) -> bytes:
    """Has the machine code written to `code`; returns the module's binary."""
    import wasmtime

    site = str(Path(wasmtime.__file__).parent.parent)
    cpu_s = max(1, round(timeout_s * (os.cpu_count() or 1)))
    start = f"import sys; sys.path.append({site!r}); import runpy; sys.argv[:1] = []; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    program = [sys.executable, "-SsEB", "-c", start, compiler.__file__]
    program += [str(int(fuel)), str(MEMORY_BYTES), str(cpu_s), str(code)]
    try:
        done = subprocess.run(
            program,
            input=source,
            capture_output=True,
            env={"LANG": "C.UTF-8"},
            cwd="/",
            timeout=timeout_s,
            check=False,
            pass_fds=(code,),
        )
    except subprocess.TimeoutExpired:
        raise InvalidModule(
            f"compiling the module took longer than {timeout_s:g} s", hint="raise compile_s"
        ) from None
    if done.stdout.startswith(compiler.REFUSED):
        lines = [line.strip() for line in done.stdout[1:].decode().splitlines() if line.strip()]
        raise InvalidModule(f"not a WebAssembly module: {'; '.join(lines[:3])}")
    if done.returncode or not done.stdout.startswith(compiler.MADE):
        raise InvalidModule(
            f"the module could not be compiled with {MEMORY_BYTES >> 20} MiB of memory and"
            f" {cpu_s} s of CPU time (exit status {done.returncode})"
        )
    return done.stdout[len(compiler.MADE) :]
