"""The languages, as data: which file the code becomes, how it is compiled and started (R2).

Another package can add one. It offers a `Language` under the entry point group
`belljar.languages`, in the name callers will use; built-in names cannot be replaced.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from belljar.errors import UnknownLanguage
from belljar.model import MIB, Limits

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "belljar.languages"
WORKSPACE = "/workspace"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How one run starts: compile unless `compile_argv` is empty, then `argv`, in /workspace."""

    argv: tuple[str, ...]
    compile_argv: tuple[str, ...]
    """A stage of its own: when it fails, its exit code and standard error are the run's."""
    variables: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A program that holds the state of a kept sandbox (runtimes/guest/translator.py)."""

    argv: tuple[str, ...]
    """With the placeholders of a Language, and {script}: the text of `script`."""
    script: Path
    cells: Literal["json", "shell"]


@dataclass(frozen=True, kw_only=True)
class Language:
    """One language, a plug-in.

    Words of `argv` and `compile_argv` and values of `variables` may hold placeholders:
    {environment} the folder the environment is mounted at, {interpreter} the Python to use,
    {file}, {memory_mib}, {cpus} (whole, at least 1). A literal brace is doubled.
    """

    name: str
    aliases: tuple[str, ...] = ()
    file_name: str
    argv: tuple[str, ...]
    compile_argv: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    environment: str = "base"
    """Used when the caller named none."""
    minimum_memory_bytes: int
    minimum_processes: int
    """Threads count as processes; below this the runtime hangs or aborts before the code starts."""
    driver: Driver | None = None
    """None: it cannot be kept, or is Python, which holds its state itself."""

    def launch(
        self, *, environment_path: str, limits: Limits, interpreter: str = "python3"
    ) -> Launch:
        """Fill the placeholders for one run."""

        def filled(text: str) -> str:
            return fill(
                text,
                limits=limits,
                environment=environment_path,
                interpreter=interpreter,
                file=self.file_name,
            )

        variables = {**COMMON_VARIABLES, **self.variables}
        return Launch(
            argv=tuple(map(filled, self.argv)),
            compile_argv=tuple(map(filled, self.compile_argv)),
            variables={name: filled(value) for name, value in variables.items()},
        )

    def drive(self, *, environment_path: str, limits: Limits) -> dict[str, Any] | None:
        """What a kept sandbox is told about its driver."""
        if self.driver is None:
            return None
        script = self.driver.script.read_text(encoding="utf-8")
        words = {"environment": environment_path, "script": script}
        return {
            "argv": [fill(word, limits=limits, **words) for word in self.driver.argv],
            "script": script,
            "cells": self.driver.cells,
        }


def fill(text: str, *, limits: Limits, **words: str) -> str:
    """Replace the placeholders that depend on the limits, and those given."""
    return text.format(
        memory_mib=limits.memory_bytes // MIB, cpus=max(1, math.ceil(limits.cpus)), **words
    )


COMMON_VARIABLES: Mapping[str, str] = {
    "PATH": "{environment}/bin:/opt/belljar/bin:/usr/local/bin:/usr/bin:/bin",
    # `cd` and `~` lead to the place whose files come back; what tools strew there does not.
    "HOME": WORKSPACE,
    "XDG_CACHE_HOME": "/tmp/.cache",
    "XDG_CONFIG_HOME": "/tmp/.config",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
}

# V8 sizes its heap after the machine's memory, which is not what the run may use, and then collects
# too late and is killed. With the run's own limit it collects in time. The limit itself is not
# lowered: a program that really needs more must end in the wall's out-of-memory verdict, not in
# V8's abort.
_NODE = ("{environment}/bin/node", "--max-old-space-size={memory_mib}")

_DRIVERS = Path(__file__).parent / "drivers"


def _node_driver(language: str) -> Driver:
    return Driver(
        # The internals are for import(), which Node offers to scripts that it compiled itself.
        argv=(
            *_NODE,
            "--expose-internals",
            "--disable-warning=internal/test/binding",
            "--disable-warning=ExperimentalWarning",
            "-e",
            "{script}",
            "--",
            language,
        ),
        script=_DRIVERS / "javascript.js",
        cells="json",
    )


# Measured: node needs 11 threads; go build with GOMAXPROCS=1 needs 13 to 16.
_NODE_PROCESSES = 16
_GO_PROCESSES = 24

_GO_PROGRAM = "/tmp/.belljar/main"

BUILT_IN: tuple[Language, ...] = (
    Language(
        name="python",
        aliases=("py", "python3"),
        file_name="main.py",
        argv=("{interpreter}", "-s", "{file}"),
        variables={"PYTHONDONTWRITEBYTECODE": "1"},
        minimum_memory_bytes=16 * MIB,
        minimum_processes=2,
    ),
    # Node decides between CommonJS and ES module by reading the code, so require, import and
    # top-level await all work in main.js and main.ts.
    Language(
        name="javascript",
        aliases=("js", "node"),
        file_name="main.js",
        argv=(*_NODE, "{file}"),
        environment="node",
        minimum_memory_bytes=64 * MIB,
        minimum_processes=_NODE_PROCESSES,
        driver=_node_driver("javascript"),
    ),
    # Stripping types alone would refuse enums, namespaces and parameter properties.
    Language(
        name="typescript",
        aliases=("ts",),
        file_name="main.ts",
        argv=(
            *_NODE,
            "--experimental-transform-types",
            "--disable-warning=ExperimentalWarning",
            "{file}",
        ),
        environment="node",
        minimum_memory_bytes=64 * MIB,
        minimum_processes=_NODE_PROCESSES,
        driver=_node_driver("typescript"),
    ),
    Language(
        name="bash",
        aliases=("sh", "shell"),
        file_name="main.sh",
        argv=("/bin/bash", "{file}"),
        minimum_memory_bytes=8 * MIB,
        minimum_processes=2,
        driver=Driver(
            argv=("/bin/bash", "--noprofile", "--norc", "--noediting", "+m", "-i"),
            script=_DRIVERS / "bash.sh",
            cells="shell",
        ),
    ),
    # Go counts the machine's cores, not the run's share: on a large machine its threads alone
    # would reach the limit of processes.
    Language(
        name="go",
        aliases=("golang",),
        file_name="main.go",
        argv=(_GO_PROGRAM,),
        compile_argv=("{environment}/bin/belljar-go-build", _GO_PROGRAM),
        variables={"GOMAXPROCS": "{cpus}"},
        environment="go",
        minimum_memory_bytes=128 * MIB,
        minimum_processes=_GO_PROCESSES,
    ),
)

_BY_NAME = {name: language for language in BUILT_IN for name in (language.name, *language.aliases)}


def get(name: str) -> Language:
    """The language called `name`, by any of its names, in any case."""
    known = name.lower() if isinstance(name, str) else ""
    found = _BY_NAME.get(known) or _from_entry_point(known)
    if found is None:
        raise UnknownLanguage(
            f"language: {str(name)[:40]!r} is unknown",
            hint=f"known languages: {', '.join(names())}",
        )
    return found


def names() -> list[str]:
    """Every language by its own name: those built in, then those that other packages add."""
    added = {entry.name for entry in _entry_points()}
    return [*(language.name for language in BUILT_IN), *sorted(added - _BY_NAME.keys())]


def _entry_points() -> tuple[EntryPoint, ...]:
    """Of other packages. Looking for them costs as much as a whole run, and whoever asks a server
    for languages that do not exist would have it looked for each time: so only once, until
    something is installed."""
    from importlib.metadata import entry_points

    places = tuple((path, _changed(path)) for path in sys.path)
    return _looked_for(entry_points, places)


@functools.lru_cache(maxsize=1)
def _looked_for(entry_points: Callable[..., Any], places: object) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _changed(path: str) -> int:
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return 0


def _from_entry_point(name: str) -> Language | None:
    for entry in _entry_points():
        if entry.name != name:
            continue
        hint = "mend or uninstall the package that adds it"
        try:
            language = entry.load()
        except Exception as error:  # whatever a stranger's module does when it is imported
            raise UnknownLanguage(f"language {name!r} is broken: {error!r}", hint=hint) from error
        if not isinstance(language, Language):
            message = f"language {name!r} is broken: {entry.value} is not a Language"
            raise UnknownLanguage(message, hint=hint)
        return language
    return None
