"""`belljar mcp`: sandboxes as tools for a model, over standard input and output."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from belljar.cli import network, numbers, run
from belljar.cli.say import say
from belljar.cli.table import Option
from belljar.errors import InvalidRequest, LimitExceeded, Unavailable
from belljar.extras import install

_SHARED = ("engine", "timeout", "memory", "cpus", "processes", "disk")
OPTIONS = (
    *(option for option in run.OPTIONS if option.keyword in _SHARED),
    Option(
        "max_timeout", "--max-timeout", "SECONDS", "The most a model may ask for. Default: 120."
    ),
    Option(
        "inputs",
        "--input -i",
        "PATH",
        "A file or folder that code can read in /data/input. Repeatable.",
        "many",
    ),
    Option(
        "allow_host",
        "--allow-host",
        "HOST[:PORT]",
        "A host that a model may ask for. Default: none. Repeatable.",
        "many",
    ),
    *(option for option in network.OPTIONS if option.keyword in ("secret", "secret_header")),
    Option("sandboxes", "--sandboxes", "COUNT", "Kept at once. Default: 8."),
    Option("idle", "--idle", "SECONDS", "Then an unused one ends. Default: 600."),
)
EPILOG = """\
Speaks the Model Context Protocol on standard input and output; a client starts it. Everything ends
with the connection.

\b
Examples:
  claude mcp add belljar -- belljar mcp
  claude mcp add belljar -- belljar mcp --memory 2G --input ./data
  claude mcp add belljar -- belljar mcp --allow-host "*.example.com"
"""


def mcp(
    *,
    engine: str,
    timeout: str | None,
    memory: str | None,
    cpus: str | None,
    processes: str | None,
    disk: str | None,
    max_timeout: str | None,
    inputs: list[str],
    allow_host: list[str],
    secret: list[str],
    secret_header: list[str],
    sandboxes: str | None,
    idle: str | None,
) -> int:
    """Serve sandboxes to an agent as tools (MCP)."""
    needs_extra()
    limits = {
        "timeout_s": numbers.number("--timeout", timeout),
        "memory_bytes": numbers.size("--memory", memory),
        "cpus": numbers.number("--cpus", cpus),
        "processes": numbers.count("--processes", processes),
        "disk_bytes": numbers.size("--disk", disk),
    }
    settings = _settings(engine, limits, numbers.number("--max-timeout", max_timeout))
    settings = dataclasses.replace(settings, network_allowed=tuple(allow_host))
    options: dict[str, Any] = {"inputs": _mounted(inputs)} if inputs else {}
    if secret or secret_header:
        options["secrets"] = network.secrets(secret, secret_header)
    from belljar.cli.progress import Bar
    from belljar.mcp import stdio
    from belljar.mcp.host import Terms

    usual = Terms()
    terms = Terms(
        sandboxes=_above("--sandboxes", numbers.count("--sandboxes", sandboxes), usual.sandboxes),
        idle_s=_above("--idle", numbers.number("--idle", idle), usual.idle_s),
    )
    if sys.stdin is not None and sys.stdin.isatty():
        say("this speaks the Model Context Protocol on standard input: a client starts it")
    progress = Bar(title="building the environment")
    stdio.serve(settings, terms=terms, options=options, on_progress=progress.update)
    return 0


def needs_extra() -> None:
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise Unavailable(
            "mcp, the SDK of the Model Context Protocol, is not installed",
            hint=install("mcp"),
        )


def _settings(engine: str, limits: dict[str, Any], most_s: float | None) -> Any:
    from belljar.engines import registry
    from belljar.errors import UnknownEngine
    from belljar.policy.limits import check_limits, requested_limits
    from belljar.settings import Settings

    if engine != "auto" and engine not in registry.known(engine):
        raise UnknownEngine(
            f"--engine: {engine[:40]!r} is unknown", hint=f"known: {', '.join(registry.names())}"
        )
    settings = Settings(engine=engine, pool_size=1)
    if most_s is not None:
        maxima = dataclasses.replace(settings.maxima, timeout_s=most_s)
        check_limits(maxima, dataclasses.replace(settings, maxima=maxima))
        settings = dataclasses.replace(settings, maxima=maxima)
    defaults = check_limits(requested_limits(settings, limits), settings)
    return dataclasses.replace(settings, defaults=defaults)


def _above(option: str, value: Any, usual: Any) -> Any:
    if value is None:
        return usual
    if not 0 < value < 1e9:
        raise LimitExceeded(f"{option}: must be above 0, not {value:g}")
    return value


def _mounted(paths: list[str]) -> dict[str, Path]:
    """Each under its own name."""
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        absolute = Path(os.path.abspath(path))
        if absolute.name in found:
            raise InvalidRequest(
                f"--input: two are called {absolute.name!r}", hint="put them into one folder"
            )
        if not absolute.exists():
            raise InvalidRequest(f"--input: {str(path)!r} is not there")
        found[absolute.name] = absolute
    return found
