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
_REFUSAL = re.compile(r"line (\d{1,7}): (.*?)(?=; line \d{1,7}: |$)", re.DOTALL)
_MOST = 50


@functools.cache
def files() -> Mapping[str, bytes]:
    """For the workspace: the program that runs the code, and the library it needs."""
    found = find_spec("RestrictedPython")
    if found is None or not found.submodule_search_locations:
        raise EnvironmentUnavailable(
            "language_level: RestrictedPython is not installed",
            hint=install("restricted"),
        )
    folder = Path(found.submodule_search_locations[0])
    program = Path(__file__).with_name("guest") / "restricted.py"
    return {PROGRAM: program.read_bytes(), LIBRARY: _bundle(folder)}


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


def refusals(error: ErrorInfo | None) -> tuple[Finding, ...]:
    """Why the code was not of the restricted kind; empty when it ran. The guest's own words, which
    can be a lie about its own run like all the others."""
    if error is None or error.name != "RestrictedSyntaxError":
        return ()
    found = [
        Finding(line=int(match[1]), rule=RULE, message=match[2][:500])
        for match in _REFUSAL.finditer(error.message)
    ]
    return tuple(found[:_MOST])
