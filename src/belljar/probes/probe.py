"""The catalogue: one script per probe, one table (TOML) per boundary, and `behind.toml`: what does
not apply behind which wall, with the reason."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

LANGUAGES = {
    ".py": "python",
    ".js": "javascript",
    ".ts": "typescript",
    ".go": "go",
    ".sh": "bash",
}
INSIDE = "inside"
KEPT = "kept"
"""Among the walls of `behind.toml`: a sandbox that lives from run to run, whatever it is behind;
and "jail+kept" where that matters."""

_PLACEHOLDER = re.compile(r"\{\{([A-Z0-9_]+)\}\}")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One attack and what must come of it."""

    id: str
    boundary: str
    title: str
    expected: str
    source: str
    """The public incident behind it, where there is one."""
    broken_when: str
    """How it was seen to say BROKEN: a probe that cannot is no evidence."""
    language: str
    """Of `code`; "library" when the judge attacks the library's own arguments."""
    code: str
    judge: str = INSIDE
    """`inside`: the printed line is the verdict. Otherwise a function of `judges`."""
    runs: int = 1
    """More than one: in so many sandboxes one after the other; the first verdict does not count."""
    not_behind: Mapping[str, str] = field(default_factory=dict)
    """Engine → why the probe says nothing about that wall. Behind every other it must hold."""
    accepts_kill: bool = False
    """No verdict because the limit killed the run counts as held."""
    alone: bool = False
    """Judged by what the host uses meanwhile, so nothing else may run beside it."""
    unwalled: bool = False
    """Safe to run without any wall, where it says BROKEN for every user. Tests do."""
    needs: str = ""
    """What Belljar does not have yet and the probe attacks; it is then not applicable."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `run`."""

    @property
    def fixtures(self) -> tuple[str, ...]:
        """The placeholders that a run has to fill in."""
        return tuple(sorted(set(_PLACEHOLDER.findall(self.code)) - {"PROBE_ID"}))

    def render(self, values: Mapping[str, str]) -> str:
        """The code to run. A placeholder without a value is a mistake of the judge (KeyError)."""
        known = {**values, "PROBE_ID": self.id}
        return _PLACEHOLDER.sub(lambda match: known[match[1]], self.code)


@functools.cache
def load() -> tuple[Probe, ...]:
    """Every probe, by boundary and id."""
    catalogue = files(__package__) / "catalogue"
    tables = sorted(
        (entry for entry in catalogue.iterdir() if entry.name.endswith(".toml")),
        key=lambda entry: entry.name,
    )
    probes: list[Probe] = []
    exceptions = _exceptions()
    for table in tables:
        if table.name.startswith("."):
            continue
        boundary = table.name.removesuffix(".toml")
        rows = tomllib.loads(table.read_text("utf-8"))
        scripts = _scripts(catalogue / boundary)
        for probe_id, row in sorted(rows.items()):
            language, body = scripts.pop(probe_id, ("library", ""))
            before = _preambles(catalogue, language, raw_syscalls=row.pop("raw_syscalls", False))
            known = exceptions.pop(probe_id, {})
            probes.append(
                Probe(
                    id=probe_id,
                    boundary=boundary,
                    language=row.pop("language", language),
                    code=before + body if body else "",
                    not_behind={**exceptions.get(boundary, {}), **known},
                    **row,
                )
            )
        if scripts:
            raise ValueError(f"scripts without a row in {table.name}: {sorted(scripts)}")
        exceptions.pop(boundary, None)
    if exceptions:
        raise ValueError(f"exceptions for what does not exist: {sorted(exceptions)}")
    return tuple(probes)


def _exceptions() -> dict[str, dict[str, str]]:
    """By probe or boundary: engine → reason."""
    found: dict[str, dict[str, str]] = {}
    for case in tomllib.loads((files(__package__) / "behind.toml").read_text("utf-8"))["case"]:
        for name in case["probes"]:
            for engine in case["engines"]:
                if engine in found.setdefault(name, {}):
                    raise ValueError(f"{name} has two reasons behind {engine}")
                found[name][engine] = case["why"]
    return found


def _scripts(folder: Traversable) -> dict[str, tuple[str, str]]:
    found = {}
    for entry in folder.iterdir():
        stem, dot, suffix = entry.name.rpartition(".")
        language = LANGUAGES.get(dot + suffix)
        if language:
            found[stem] = (language, entry.read_text("utf-8"))
    return found


def _preambles(catalogue: Traversable, language: str, *, raw_syscalls: bool) -> str:
    if language != "python":
        return ""
    names = ["_verdict.py", "_syscalls.py"] if raw_syscalls else ["_verdict.py"]
    return "\n".join((catalogue / name).read_text("utf-8") for name in names) + "\n"
