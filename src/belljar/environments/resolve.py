"""From requirement texts to exact versions with the hashes of their files, by uv."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from belljar.environments import install, watched
from belljar.environments.folders import Progress
from belljar.environments.watched import Bounds
from belljar.errors import EnvironmentUnavailable, PackageRefused
from belljar.model import MIB
from belljar.runtimes.interpreter import base_interpreter

_PIN = re.compile(r"([a-z0-9-]+)==([A-Za-z0-9.!+_-]+)")
_MOST_PIN_BYTES = 16 * MIB
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One package as resolved."""

    name: str
    version: str
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        hashes = "".join(f" --hash={text}" for text in self.hashes)
        return f"{self.name}=={self.version}{hashes}"


def resolve(
    requirements: Sequence[str], *, provided: Mapping[str, str], bounds: Bounds, progress: Progress
) -> tuple[Pin, ...]:
    """What has to be installed. The environment's packages keep their versions, because they are
    imported already where the layer is mounted, and are not installed a second time."""
    wanted, fixed, pins = (bounds.scratch / name for name in ("wanted.in", "fixed.txt", "pins.txt"))
    wanted.write_text("".join(f"{text}\n" for text in requirements))
    fixed.write_text("".join(f"{name}=={version}\n" for name, version in provided.items()))
    command = [install.find_uv(), "pip", "compile", wanted.name, "--constraints", fixed.name]
    command += ["--output-file", pins.name, "--generate-hashes", "--no-annotate", "--no-header"]
    command += ["--only-binary", ":all:", "--no-progress", "--color", "never", "--quiet"]
    command += ["--python", base_interpreter()]
    progress("resolving packages", None)
    try:
        watched.run(command, bounds, on_line=lambda _line: None)
    except watched.Failed as failed:
        raise _refusal(str(failed), requirements, provided) from None
    if pins.stat().st_size > _MOST_PIN_BYTES:
        raise PackageRefused(
            "packages: they depend on more packages than can be listed", hint="ask for others"
        )
    return tuple(pin for pin in parse_pins(pins.read_text()) if pin.name not in provided)


def parse_pins(text: str) -> list[Pin]:
    """Strictly: a line that is none of the two known kinds is an error."""
    found: dict[str, tuple[str, list[str]]] = {}
    name = ""
    for line in text.splitlines():
        line = line.removesuffix("\\").strip()
        if pin := _PIN.fullmatch(line):
            name = pin[1]
            found[name] = pin[2], []
        elif (hashed := _HASH.fullmatch(line)) and name:
            found[name][1].append(hashed[1])
        elif line:
            raise EnvironmentUnavailable(f"packages: uv answered what is not understood: {line!r}")
    return [
        Pin(name=name, version=version, hashes=tuple(sorted(hashes)))
        for name, (version, hashes) in sorted(found.items())
    ]


def _refusal(
    text: str, requirements: Sequence[str], provided: Mapping[str, str]
) -> EnvironmentUnavailable | PackageRefused:
    wanted = ", ".join(requirements)
    reason = re.sub(r"\s+", " ", text.replace("╰─▶", "").replace("×", "")).strip()
    told = reason[max(0, reason.find("Because")) :].partition(" hint: ")[0]
    if not re.search("no solution found|attempted to resolve via URL", reason, re.IGNORECASE):
        return unavailable(f"cannot resolve {wanted}", text)
    if named := [name for name in provided if re.search(rf"\b{re.escape(name)}==", reason)]:
        have = ", ".join(f"{name} {provided[name]}" for name in named[:5])
        hint = f"the environment has {have}, which stay: ask for what goes with them, or use base"
    elif "was not found" in reason:
        hint = "the package index has none of that name: check the spelling"
    else:
        hint = (
            "ask for other versions: only wheels for this Python and platform count, nothing is "
            "built from source"
        )
    return PackageRefused(f"packages: cannot have {wanted}: {told}", hint=hint)


def unavailable(what: str, text: str) -> EnvironmentUnavailable:
    return EnvironmentUnavailable(f"packages: {what}:\n{text}", hint=install.hint_for(text))
