"""`belljar env`: runtimes with their packages, and the sets of packages on top of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from belljar.cli.say import say

if TYPE_CHECKING:
    from belljar.environments.catalogue import Environment
    from belljar.settings import Settings

EPILOG = """\
\b
Examples:
  belljar env list
  belljar env build data
  belljar env build data --packages seaborn --packages "humanize==4.*"
  belljar env remove data
"""

app = typer.Typer(
    help="List, build and remove environments: runtimes with their packages.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
)


@app.command("list")
def list_(
    json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> int:
    """Show every environment and every set of packages: is it built, how large is it."""
    from belljar.cli.doctor import environment_table, environments
    from belljar.settings import Settings

    settings = Settings()
    found, sets = environments(settings), _layers(settings)
    if json:
        from json import dumps

        print(dumps([*found, *sets], indent=2))
    else:
        from rich.console import Console

        console = Console(highlight=False)
        console.print(environment_table(found))
        if sets:
            console.print(_layer_table(sets))
    return 0


@app.command()
def build(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Environments, by name.")
    ] = None,
    packages: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REQUIREMENT",
            help="Build a set of packages on top of each (of base if none is named); repeatable. "
            "The operator's list of allowed packages is not asked: you are the operator.",
        ),
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Look for newer versions of the packages.")
    ] = False,
) -> int:
    """Build environments, or sets of packages, ahead of their first use."""
    from belljar.cli.progress import Bar
    from belljar.environments import build as builder
    from belljar.errors import InvalidRequest
    from belljar.settings import Settings

    if packages:
        return _build_layers(names or ["base"], packages, refresh=refresh)
    if not names:
        raise InvalidRequest("nothing to build is named", hint="belljar env list shows them")
    if refresh:
        raise InvalidRequest("--refresh is for packages", hint="remove an environment to renew it")
    settings = Settings()
    for environment in _buildable(names):
        progress = Bar(title=environment.name)
        try:
            path = builder.build(environment, settings, progress=progress.update)
        finally:
            progress.close()
        print(f"{environment.name}: {path}")
    return 0


def _build_layers(names: list[str], packages: list[str], *, refresh: bool) -> int:
    from belljar.cli.progress import Bar
    from belljar.environments import assemble, catalogue
    from belljar.policy.packages import parse_all
    from belljar.settings import Settings

    requirements = [str(requirement) for requirement in parse_all(packages)]
    settings = Settings()
    for environment in [catalogue.get(name) for name in names]:
        progress = Bar(title=f"{environment.name} + {', '.join(requirements)}")
        try:
            layer = assemble.build_layer(
                requirements,
                settings,
                environment=environment,
                progress=progress.update,
                refresh=refresh,
            )
        finally:
            progress.close()
        versions = ", ".join(f"{name} {text}" for name, text in layer.packages.items())
        print(f"{environment.name}: {layer.key}: {versions or 'nothing that it has not already'}")
    return 0


@app.command()
def remove(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Environments by name, sets of packages by key."),
    ] = None,
    all_packages: Annotated[
        bool, typer.Option("--all-packages", help="Every set of packages.")
    ] = False,
) -> int:
    """Delete environments and sets of packages. Runs that use them must have ended."""
    from belljar.environments import assemble, layers
    from belljar.environments import build as builder
    from belljar.errors import Busy, InvalidRequest
    from belljar.settings import Settings

    settings = Settings()
    if not names and not all_packages:
        raise InvalidRequest("nothing to remove is named", hint="belljar env list shows them")
    there = [layer.key for layer in layers.installed(settings)]
    keys = [key for key in there if key in (names or ())]
    environments = _buildable([name for name in names or () if name not in keys])
    status = 0
    for environment in environments:
        if builder.remove(environment.name, settings):
            print(f"{environment.name}: removed")
        else:
            say(f"{environment.name} is not built")
            status = 1
    for key in there if all_packages else keys:
        try:
            if assemble.remove(key, settings):
                print(f"{key}: removed")
        except Busy as busy:
            say(str(busy))
            status = 1
    return status


def _buildable(names: list[str]) -> list[Environment]:
    """All looked up before the first is touched."""
    from belljar.environments import catalogue
    from belljar.errors import InvalidRequest

    found = [catalogue.get(name) for name in names]
    for environment in found:
        if not environment.needs_build:
            raise InvalidRequest(f"{environment.name} is always there: it has nothing to build")
    return found


def _layers(settings: Settings) -> list[dict[str, Any]]:
    """In the shape of environments, with the key for a name and who asked for what."""
    from belljar.environments import layers

    asked = [item for _, item in layers.requests(settings)]
    return [
        {
            "name": layer.key,
            "ready": True,
            "path": str(layer.folder),
            "size_bytes": layer.bytes,
            "packages": sorted(
                {text for item in asked if item.layer == layer.key for text in item.requirements}
            ),
            "environments": sorted({i.environment for i in asked if i.layer == layer.key}),
            "versions": dict(layer.packages),
            "build": "",
        }
        for layer in layers.installed(settings)
    ]


def _layer_table(sets: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from belljar.policy.quote import size

    table = Table(box=box.SIMPLE_HEAD, title="Sets of packages", title_justify="left")
    table.add_column("key", no_wrap=True)
    for name in ("environment", "size", "packages"):
        table.add_column(name, overflow="fold")
    for item in sets:
        versions = ", ".join(f"{name} {version}" for name, version in item["versions"].items())
        environments = ", ".join(item["environments"])
        table.add_row(item["name"], environments, size(item["size_bytes"]), escape(versions))
    return table
