"""`belljar serve`: Belljar over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from belljar.cli.say import say
from belljar.extras import install

EPILOG = """\
\b
Examples:
  belljar serve
  belljar serve --port 9000 --config server.toml
  belljar keys add alice && belljar serve --host 0.0.0.0
"""


LIBRARIES = (
    *("fastapi", "uvicorn", "httptools", "pydantic_settings", "sqlalchemy", "alembic"),
    *("structlog", "prometheus_client"),
)


def serve(
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where to listen. Default: 127.0.0.1."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Default: 8321; 0: any that is free.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Settings, TOML. Default: server.toml in BELLJAR_HOME."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name clients call this server by. Repeatable."),
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="URL", help="Database of keys and quotas.")
    ] = None,
    trail: Annotated[str | None, typer.Option(metavar="URL", help="Database of the trail.")] = None,
    drain: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="For runs under way after SIGTERM. Default: 30."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="json or text. Default: json.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning or error. Default: info."),
    ] = None,
) -> int:
    """Serve Belljar over HTTP, on this machine alone unless there are keys."""
    flags: dict[str, Any] = {
        "host": host,
        "port": port,
        "allowed_hosts": tuple(allowed_host) if allowed_host else None,
        "state": state,
        "trail": trail,
        "drain_s": drain,
        "log_format": log_format,
        "log_level": log_level,
    }
    needs_extra()
    from belljar.server import listen, logs, settings
    from belljar.server.server import Server

    chosen = settings.load(
        file=config, **{name: value for name, value in flags.items() if value is not None}
    )
    logs.configure(form=chosen.log_format, level=chosen.log_level)
    listening = listen.open_socket(chosen.host, chosen.port)
    address = listening.getsockname()
    server = Server(chosen, port=address[1])
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    url = f"http://{shown}:{address[1]}/"
    if server.sign_in:
        url += f"?token={server.sign_in.token}"
    print(f"Belljar serves on {url}", flush=True)
    if server.sign_in:
        say("there are no keys: the link signs a browser in, once; programs send the token")
    return 0 if listen.serve(server, listening) else 1


def needs_extra() -> None:
    """Told before anything else fails: what is missing, and what to type."""
    from importlib.util import find_spec

    from belljar.errors import Unavailable

    for name in LIBRARIES:
        if find_spec(name) is None:
            raise Unavailable(
                f"the server needs {name}, which is not installed",
                hint=install("server"),
            )
