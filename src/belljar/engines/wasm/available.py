"""Whether the wasm engine can be used here; answered without loading it."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from belljar.engines.base import Missing
from belljar.extras import install
from belljar.settings import Settings

from . import runtimes

MACHINES = ("x86_64", "aarch64")


def why_not(settings: Settings) -> Missing | None:
    if not sys.platform.startswith("linux") or os.uname().machine not in MACHINES:
        return Missing(
            why="its processes are walled in with Linux's own means",
            hint=f"use Linux on {' or '.join(MACHINES)}",
        )
    if find_spec("wasmtime") is None:
        return Missing(why="wasmtime is not installed", hint=install("wasm"))
    if not settings.build_environments and runtimes.missing(settings):
        return Missing(
            why="its interpreters are not here, and fetching them on first use is turned off",
            hint="belljar image build --wasm",
        )
    return None
