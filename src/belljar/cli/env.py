"""`belljar env`: the environments, that is, runtimes with their packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from belljar.cli.say import say

if TYPE_CHECKING:
    from belljar.environments.catalogue import Environment

EPILOG = """\
\b
Examples:
  belljar env list
  belljar env build data
  belljar env remove data
"""

app = typer.Typer(
    help="List, build and remove environments: runtimes with their packages.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
)

Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Environments, by name.")]


@app.command("list")
def list_(
    json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> int:
    """Show every environment, whether it is built, and its size."""
    from belljar.cli.doctor import environment_table, environments
    from belljar.settings import Settings

    found = environments(Settings())
    if json:
        from json import dumps

        print(dumps(found, indent=2))
    else:
        from rich.console import Console

        Console(highlight=False).print(environment_table(found))
    return 0


@app.command()
def build(names: Names) -> int:
    """Build environments ahead of their first use."""
    from belljar.cli.progress import Bar
    from belljar.environments import build as builder
    from belljar.settings import Settings

    settings = Settings()
    for environment in _buildable(names):
        progress = Bar(title=environment.name)
        try:
            path = builder.build(environment, settings, progress=progress.update)
        finally:
            progress.close()
        print(f"{environment.name}: {path}")
    return 0


@app.command()
def remove(names: Names) -> int:
    """Delete environments from the data directory. Runs that use them must have ended."""
    from belljar.environments import build as builder
    from belljar.settings import Settings

    status = 0
    for environment in _buildable(names):
        if builder.remove(environment.name, Settings()):
            print(f"{environment.name}: removed")
        else:
            say(f"{environment.name} is not built")
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
