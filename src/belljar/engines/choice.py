"""`engine="auto"`: which wall, and why. The tables here are the whole policy (I6).

Pure: what an engine can do and whether it works here is asked of the caller. Engines of other
packages are never chosen, only named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from belljar.engines.base import Capabilities, Missing
from belljar.errors import EngineUnavailable, Unsupported

ORDERS: dict[str, tuple[tuple[str, str], ...]] = {
    "": (
        ("jail", "the embedded wall: milliseconds, no daemon, no image"),
        ("gvisor", "the jail cannot be built here; gVisor can, without a daemon"),
        ("docker", "the jail cannot be built here; a hardened container can"),
        ("microvm", "the jail cannot be built here; a virtual machine can"),
    ),
    "strongest": (
        ("microvm", "a kernel of its own on virtual hardware: strongest"),
        ("docker+kata", "a kernel of its own in Kata's virtual machine"),
        ("gvisor", "system calls are answered by gVisor, the host's kernel sees few of them"),
        ("docker+runsc", "system calls are answered by gVisor, behind Docker"),
        ("jail", "the host's kernel is shared, behind namespaces, seccomp and Landlock"),
        ("docker", "the host's kernel is shared, and a daemon of root's is in the way"),
    ),
    "fastest": (
        ("jail", "a fork of a warm interpreter: fastest"),
        ("docker", "no jail here; a container that waits is next"),
        ("gvisor", "no jail and no Docker here"),
        ("microvm", "nothing lighter works here"),
    ),
    # CPython for WebAssembly has neither threads nor packages with native parts, so it is chosen
    # only for callers who say that their code just computes.
    "no_io": (
        ("wasm", "only computes, so WebAssembly will do: nothing but linked functions is there"),
        ("jail", "only computes; there is no WebAssembly runtime for it here"),
        ("gvisor", "only computes; neither WebAssembly nor the jail works here"),
        ("docker", "only computes; neither WebAssembly nor the jail works here"),
        ("microvm", "only computes; nothing lighter works here"),
    ),
}
"""Engines by preference, with the reason. The first need in this order decides; a name with a plus
is Docker with that runtime."""

REQUIREMENTS: dict[str, tuple[Callable[[Capabilities], bool], str]] = {
    "files": (lambda can: can.files, "files in and out"),
    "any_language": (lambda can: can.languages is None, "every language"),
    "network": (lambda can: can.network, "a network"),
}
"""Needs that an engine meets or does not."""

PURPOSES = {
    "jail": "the default: native Linux isolation, milliseconds, nothing to install",
    "docker": "a hardened container; images of your own, or another OCI runtime",
    "gvisor": "a kernel of its own in user space between the code and the host's",
    "microvm": "a virtual machine of its own: the strongest wall",
    "wasm": "simple computations in WebAssembly: no processes, no system calls",
}


class Wanted(NamedTuple):
    """What a run asks of its wall."""

    needs: tuple[str, ...]
    language: str
    environment: str
    fresh_exec: bool
    live_stdin: bool
    processes: bool
    """A number of processes was asked for."""
    files: bool
    """Files or inputs were given."""
    disk_files: bool
    """Another limit of files than the usual was asked for."""
    kept: bool = False
    """It is to live from run to run."""
    network: bool = False
    """Hosts are to be reached."""


class Choice(NamedTuple):
    engine: str
    reason: str


def choose(
    wanted: Wanted,
    *,
    capabilities: Callable[[str], Capabilities],
    why_not: Callable[[str], Missing | None],
    allowed: Callable[[str], bool] = lambda name: True,
    docker_runtime: str = "",
) -> Choice:
    """The first engine in the order that can do what is wanted and works on this machine."""
    order = ORDERS[next((need for need in ORDERS if need in wanted.needs), "")]
    unfit: dict[str, list[str]] = {}
    missing: list[tuple[str, Missing]] = []
    for row, reason in order:
        name, _, runtime = row.partition("+")
        if not allowed(name) or (runtime and not docker_runtime.startswith(runtime)):
            continue
        if lack := lacks(capabilities(name), wanted):
            unfit.setdefault(lack, []).append(name)
        elif problem := why_not(name):
            missing.append((name, problem))
        else:
            return Choice(name, reason)
    if missing:
        raise EngineUnavailable(
            "no engine that will do works here: "
            + "; ".join(f"{name}: {problem.why}" for name, problem in missing),
            hint=f"for {missing[0][0]}: {missing[0][1].hint}" if missing[0][1].hint else "",
        )
    reasons = [f"{', '.join(dict.fromkeys(names))} {lack}" for lack, names in unfit.items()]
    raise Unsupported(
        f"no engine can do this: {'; '.join(reasons) or 'the operator allows none of them'}",
        hint="belljar engines shows what each can do",
    )


def check(
    engine: str,
    can: Capabilities,
    wanted: Wanted,
    *,
    others: Callable[[], Sequence[tuple[str, Capabilities]]],
) -> None:
    """Refuses what a named engine cannot do, and says which one can."""
    lack = lacks(can, wanted)
    if not lack:
        return
    able = [name for name, its in others() if name != engine and not lacks(its, wanted)]
    raise Unsupported(
        f"engine: {engine} {lack}",
        hint=f"engines that can: {', '.join(able)}" if able else "no engine can",
    )


def lacks(can: Capabilities, wanted: Wanted) -> str:
    """What of it an engine cannot do, to be read after its name; empty when it can."""
    for need in wanted.needs:
        if need in REQUIREMENTS and not REQUIREMENTS[need][0](can):
            return f"cannot give {REQUIREMENTS[need][1]} (need={need!r})"
    if can.languages is not None and wanted.language not in can.languages:
        return f"cannot run {wanted.language}, only {', '.join(sorted(can.languages))}"
    if can.environments is not None and wanted.environment not in can.environments:
        known = ", ".join(sorted(can.environments))
        return f"cannot give the environment {wanted.environment!r}, only {known}"
    if wanted.network and not can.network:
        return "cannot give a network (network)"
    if wanted.kept and not can.kept:
        return "cannot keep a sandbox from run to run (Sandbox)"
    if wanted.fresh_exec and not can.fresh_exec:
        return "cannot execute a new interpreter for each run (fresh_exec)"
    if wanted.live_stdin and not can.live_stdin:
        return "cannot take standard input while the code runs (stdin_descriptor); stdin works"
    if wanted.processes and not can.processes:
        return "cannot start processes (processes)"
    if wanted.files and not can.files:
        return "cannot take files (files, inputs)"
    if wanted.disk_files and not can.disk_files:
        return "cannot limit the number of files (disk_files)"
    return ""
