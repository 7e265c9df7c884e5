"""`belljar doctor`: what the walls here are made of, what works, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import os
import platform
from typing import TYPE_CHECKING, Annotated, Any

import typer

from belljar import extras

if TYPE_CHECKING:
    from belljar.engines.base import Control
    from belljar.errors import BelljarError
    from belljar.settings import Settings

EPILOG = """\
Exit status: 0 when a sandbox can be built here, 1 when something essential does not work.

\b
Examples:
  belljar doctor
  belljar doctor --fix
  belljar doctor --engine docker
  belljar doctor --json | python3 -m json.tool
"""


def doctor(
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="The wall whose parts to try.")
    ] = "jail",
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Fix what a system configuration file can fix; shows the file and asks first.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --fix: do not ask. Switches no protection off.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> int:
    """Try every part of the wall on this machine, and say what to do about what fails."""
    from belljar.settings import Settings

    if fix:
        _fix(engine, yes=yes, json=json)
    findings = examine(Settings(), engine)
    if json:
        from json import dumps

        print(dumps(findings, indent=2))
    else:
        _draw(findings)
    return 0 if findings["ok"] else 1


def _fix(engine: str, *, yes: bool, json: bool) -> None:
    from belljar.errors import InvalidRequest

    if engine != "jail":
        raise InvalidRequest(f"--fix is for the jail, not for {engine}", hint="leave out --engine")
    if json:
        raise InvalidRequest("--fix and --json cannot be combined")
    from belljar.cli.fix import fix
    from belljar.engines.jail import checks

    fix(checks.obstacle, yes=yes)


def examine(settings: Settings, engine: str) -> dict[str, Any]:
    from belljar.cli.engines import survey

    controls = [*parts(settings, engine), whole_sandbox(settings, engine)]
    return {
        "ok": all(control.works or not control.essential for control in controls),
        "engine": engine,
        "engines": survey(settings),
        "controls": [dataclasses.asdict(control) for control in controls],
        "network": network(settings, engine),
        "languages": _languages(settings),
        "environments": environments(settings),
        "home": str(settings.home),
        "versions": _versions(),
    }


def parts(settings: Settings, engine: str) -> list[Control]:
    """The controls of an engine; one that cannot even be made has a single line."""
    from belljar.engines import registry
    from belljar.engines.base import Control
    from belljar.errors import EngineError, Unavailable

    try:
        return registry.create(engine, settings).controls()
    except (EngineError, Unavailable) as error:
        why = _why(error)
    except ImportError as error:  # a library of the engine's, which is an extra
        missing = registry.why_not(engine, settings)
        why = f"{missing.why}. {missing.hint}" if missing else str(error)
    return [Control(name="engine", mechanism=engine, works=False, hint=why)]


def whole_sandbox(settings: Settings, engine: str) -> Control:
    """The proof of the pudding: all controls together, once, for real."""
    from belljar.engines.base import Control
    from belljar.errors import BelljarError
    from belljar.jar import Belljar

    name, mechanism = "sandbox", "all of it together"
    try:
        with Belljar(dataclasses.replace(settings, pool_size=0)) as jar:
            result = jar.run("print(1)", environment="base", engine=engine)
    except (BelljarError, OSError) as error:
        return Control(name=name, mechanism=mechanism, works=False, hint=_why(error))
    if result.stdout != "1\n":
        why = f"print(1) ended in {result.status}: {result.stdout + result.stderr!r:.200}"
        return Control(name=name, mechanism=mechanism, works=False, hint=why)
    mechanism += f" (print(1), engine {result.engine}, {result.duration_ms:.0f} ms cold)"
    return Control(name=name, mechanism=mechanism, works=True)


def _why(error: BelljarError | OSError) -> str:
    """What failed and what to do. Errors elsewhere send people here, which is of no use here."""
    if isinstance(error, OSError):
        return str(error)
    here = ("belljar doctor says", "belljar doctor shows")
    useful = error.hint and not error.hint.strip("`").startswith(here)
    return f"{error.full_message}. {error.hint}" if useful else error.full_message


def environments(settings: Settings) -> list[dict[str, Any]]:
    """Every environment: is it built, how large is it, how is it built."""
    from belljar.environments import build, catalogue

    built = {item.path: item for item in build.installed(settings)}
    lines = []
    for environment in catalogue.BUILT_IN:
        path = build.locate(environment, settings) if environment.needs_build else None
        lines.append(
            {
                "name": environment.name,
                "ready": path is not None or not environment.needs_build,
                "path": str(path) if path else None,
                "size_bytes": _folder_bytes(str(path)) if path else 0,
                "packages": list(environment.packages),
                "versions": built[path].versions if path in built else {},
                "build": f"belljar env build {environment.name}" if environment.needs_build else "",
            }
        )
    return lines


def network(settings: Settings, engine: str) -> dict[str, Any]:
    """Whether sandboxes can be given a network (`network=`), and whom they trust then."""
    from importlib.util import find_spec

    missing = [name for name in ("h11", "cryptography") if find_spec(name) is None]
    if missing:
        why = f"{', '.join(missing)} missing: {extras.install('network')}"
    else:
        why = _try_network(settings, engine)
    authority = settings.home / "network"
    return {
        "ready": not why,
        "hint": why,
        "authority": str(authority) if authority.is_dir() else None,
        "allowed": settings.network_allowed,
    }


_KNOCK = """\
import socket
socket.create_connection(("127.0.0.1", 3128), timeout=10).close()
print(1)
"""


def _try_network(settings: Settings, engine: str) -> str:
    """A sandbox that may use one host, which does not exist, knocks at the gateway's door. Returns
    why that failed."""
    from belljar.errors import BelljarError
    from belljar.jar import Belljar
    from belljar.network import Allow

    host = "belljar.invalid"
    own = dataclasses.replace(settings, pool_size=0, network_allowed=(host,))
    try:
        with Belljar(own) as jar:
            result = jar.run(_KNOCK, environment="base", engine=engine, network=Allow(host))
    except (BelljarError, OSError) as error:
        return _why(error)
    if result.stdout != "1\n":
        return f"no door to the gateway ({result.status}): {result.stderr[-200:]!r}"
    return ""


def _languages(settings: Settings) -> list[dict[str, Any]]:
    from belljar.environments import build, catalogue
    from belljar.runtimes import languages

    lines = []
    for language in languages.BUILT_IN:
        environment = catalogue.get(language.environment)
        ready = not environment.needs_build or build.locate(environment, settings) is not None
        lines.append({"name": language.name, "environment": environment.name, "ready": ready})
    return lines


def _versions() -> dict[str, str]:
    import belljar

    return {
        "belljar": belljar.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }


def _folder_bytes(path: str) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        total += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
    return total


# -- drawing ---------------------------------------------------------------------------------------


def _draw(findings: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    notes = _notes(findings["controls"])
    console.print(_control_table(findings["controls"], notes, findings["engine"]))
    for hint, number in notes.items():
        # In one line, however long: what is to be typed can be copied.
        console.print(f"  {number}. {escape(hint)}", soft_wrap=True)
    console.print()
    _draw_engines(console, findings["engines"])
    _draw_network(console, findings["network"])
    console.print(environment_table(findings["environments"]))
    for language in findings["languages"]:
        state = "ready" if language["ready"] else "built on first use"
        console.print(f"  {language['name']}: environment {language['environment']}, {state}")
    versions = ", ".join(f"{name} {text}" for name, text in findings["versions"].items())
    console.print(f"\nData directory: {escape(findings['home'])}\n{escape(versions)}")
    console.print(
        f"[green]Sandboxes work here, behind the {findings['engine']}.[/]"
        if findings["ok"]
        else f"[bold red]The {findings['engine']} does not work here:[/] see ✗ above."
    )


def _draw_engines(console: Any, engines: list[dict[str, Any]]) -> None:
    from belljar.cli.engines import print_missing

    console.print("  [italic]Engines[/]")
    for row in engines:
        if row["available"]:
            console.print(f"[green]✓ {row['name']}[/]: {row['purpose']}")
        else:
            print_missing(console, row)
    console.print()


def _draw_network(console: Any, found: dict[str, Any]) -> None:
    from rich.markup import escape

    if not found["ready"]:
        console.print(f"[yellow]~ network[/]: {escape(found['hint'])}", soft_wrap=True)
        return
    trusted = found["authority"]
    where = f"its authority is in {trusted}" if trusted else "its authority is made at first use"
    console.print(f"[green]✓ network[/]: a sandbox reached the gateway; {escape(where)}")


def _notes(controls: list[dict[str, Any]]) -> dict[str, int]:
    """What to do about what does not work, numbered; several controls may share a note."""
    hints = [item["hint"] for item in controls if item["hint"] and not item["works"]]
    return {hint: number for number, hint in enumerate(dict.fromkeys(hints), 1)}


def _control_table(controls: list[dict[str, Any]], notes: dict[str, int], engine: str) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=f"Controls of the {engine}", title_justify="left")
    for name in ("control", "works", "mechanism", "what to do"):
        table.add_column(name, no_wrap=name in ("control", "works"), overflow="fold")
    for control in controls:
        mark = "[green]✓[/]" if control["works"] else "[yellow]~[/]"
        if control["essential"] and not control["works"]:
            mark = "[bold red]✗[/]"
        note = "" if control["works"] or not control["hint"] else f"see {notes[control['hint']]}"
        table.add_row(control["name"], mark, escape(control["mechanism"]), note)
    return table


def environment_table(environments: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from belljar.policy.quote import size

    table = Table(box=box.SIMPLE_HEAD, title="Environments", title_justify="left")
    for name in ("environment", "state", "size", "packages"):
        table.add_column(name, overflow="fold")
    for item in environments:
        if not item["build"]:
            state = "[green]always there[/]"
        elif item["ready"]:
            state = "[green]built[/]"
        else:
            state = f"not built: {item['build']}"
        packages = [f"{name} {version}" for name, version in item["versions"].items()]
        shown = ", ".join(packages or item["packages"]) or "the standard library"
        table.add_row(
            item["name"],
            state,
            size(item["size_bytes"]) if item["size_bytes"] else "",
            escape(shown),
        )
    return table
