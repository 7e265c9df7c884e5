"""The verbs as typer sees them: help, and an explanation of every mistake."""

from __future__ import annotations

from typing import Annotated

import typer

from belljar.cli import (
    doctor,
    engines,
    env,
    fetch,
    image,
    keys,
    mcp,
    prove,
    run,
    serve,
    shell,
    trail,
    version,
)
from belljar.cli.table import command

app = typer.Typer(
    name="belljar",
    help="Runs code that nobody vouches for, so that it can do its work and nothing else.",
    epilog='Start with: belljar run -c "print(6 * 7)", or belljar doctor.',
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, the same on every terminal
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command("run", epilog=run.EPILOG)(command(run.OPTIONS, run.run))
app.command("shell", epilog=shell.EPILOG)(command(shell.OPTIONS, shell.shell))
app.command(epilog=fetch.EPILOG)(fetch.fetch)
app.command(epilog=engines.EPILOG)(engines.engines)
app.command(epilog=doctor.EPILOG)(doctor.doctor)
app.command(epilog=prove.EPILOG)(prove.prove)
app.command(epilog=serve.EPILOG)(serve.serve)
app.command("mcp", epilog=mcp.EPILOG)(command(mcp.OPTIONS, mcp.mcp))
app.add_typer(keys.app, name="keys")
app.add_typer(env.app, name="env")
app.add_typer(image.app, name="image")
app.add_typer(trail.app, name="trail")
app.command()(version.version)


def _print_version(wanted: bool) -> None:
    if wanted:
        raise typer.Exit(version.version())


@app.callback()
def _belljar(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def call(arguments: list[str]) -> int:
    """Runs one command; a usage error is raised."""
    try:
        status = app(arguments, prog_name="belljar", standalone_mode=False)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except SystemExit:  # how typer and rich leave when nobody reads our output
        raise BrokenPipeError from None
    return status if isinstance(status, int) else 0
