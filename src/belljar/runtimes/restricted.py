"""`language_level="restricted"`: what goes into a sandbox beside the code, and what comes of it.

RestrictedPython is never imported here: its source is sent along as a file, and compiles the code
where the code is. Thus it works behind every wall, and hostile source is not parsed on the host.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from belljar.errors import EnvironmentUnavailable
from belljar.extras import install
from belljar.model import MIB, ErrorInfo, Finding

PROGRAM = "_belljar_restricted.py"
LIBRARY = "_belljar_restricted.zip"
RULE = "restricted"
MINIMUM_DISK_BYTES = MIB

_PARTS = ("compile", "transformer", "Guards", "_compat", "_types")
"""What the guest's program needs; the package's own __init__ would load three times as much."""
_SEAL = b"@belljar-seal@"
"""In the guest's program; replaced for each run."""
_REFUSAL = re.compile(r"line (\d{1,7}): (.*?)(?=; line \d{1,7}: |$)", re.DOTALL)
_MOST = 50


def files(seal: str) -> Mapping[str, bytes]:
    """For the workspace: the program that runs the code, and the library it needs. `seal`: what a
    refusal begins with. The code is compiled before it can learn it, so no code can refuse itself
    after it ran."""
    program, library = _parts()
    return {PROGRAM: program.replace(_SEAL, seal.encode()), LIBRARY: library}


@functools.cache
def _parts() -> tuple[bytes, bytes]:
    found = find_spec("RestrictedPython")
    if found is None or not found.submodule_search_locations:
        raise EnvironmentUnavailable(
            "language_level: RestrictedPython is not installed",
            hint=install("restricted"),
        )
    folder = Path(found.submodule_search_locations[0])
    program = Path(__file__).with_name("guest") / "restricted.py"
    return program.read_bytes(), _bundle(folder)


def mechanism() -> str:
    from importlib.metadata import version  # loads more than a whole run needs

    return f"RestrictedPython {version('RestrictedPython')}"


def _bundle(folder: Path) -> bytes:
    """Not compressed, since not every Python inside has zlib. With byte code for this Python, which
    is often the one inside too: compiling the library would take longer than most runs."""
    import io
    import py_compile
    import tempfile
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as bundle, tempfile.TemporaryDirectory() as scratch:
        bundle.writestr("RestrictedPython/__init__.py", "")
        for name in _PARTS:
            bundle.write(folder / f"{name}.py", f"RestrictedPython/{name}.py")
            compiled = Path(scratch, f"{name}.pyc")
            py_compile.compile(
                str(folder / f"{name}.py"),
                str(compiled),
                dfile=f"RestrictedPython/{name}.py",
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            bundle.write(compiled, f"RestrictedPython/{name}.pyc")
    return packed.getvalue()


def refusals(error: ErrorInfo | None, seal: str) -> tuple[Finding, ...]:
    """Why the code was not of the restricted kind; empty when it ran. Told by the seal, never by
    the exception's name, which code can choose."""
    if error is None or not seal or not error.message.startswith(seal):
        return ()
    found = [
        Finding(line=int(match[1]), rule=RULE, message=match[2][:500])
        for match in _REFUSAL.finditer(error.message[len(seal) :])
    ]
    return tuple(found[:_MOST])
