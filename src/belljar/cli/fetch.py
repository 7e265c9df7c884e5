"""`belljar fetch`: one page as text, got and read in sandboxes (N3)."""

from __future__ import annotations

from typing import Annotated

import typer

EPILOG = """\
Exit status: 0 when there is a page (status 200 to 299), 1 when there is none.

\b
Examples:
  belljar fetch https://example.com/
  belljar fetch https://example.com/old --allow-host example.com --allow-host www.example.com
  belljar fetch https://api.example.com/v1/me --secret API_KEY=env:API_KEY@api.example.com
"""
NONE = 1


def fetch(
    address: Annotated[str, typer.Argument(metavar="URL", help="The page.")],
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT]", help="Where redirects may lead. Default: its host. Repeatable."
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SOURCE@HOST",
            help="A credential for HOST: API_KEY=env:API_KEY@api.example.com, or =file:PATH@HOST."
            " Repeatable.",
        ),
    ] = None,
    secret_header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=HEADER",
            help="Where it goes, if not 'Authorization: Bearer {}'. Repeatable.",
        ),
    ] = None,
    most_characters: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Of its text. Default: 50000.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="For the page. Default: 30.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> int:
    """Get one page and print it as text; hostile ones do no harm."""
    from belljar.cli.network import secrets
    from belljar.cli.say import say
    from belljar.cli.terminal import harmless
    from belljar.jar import Belljar
    from belljar.model import Caller
    from belljar.network import Allow
    from belljar.settings import Settings

    options = {
        "network": Allow(*allow_host, methods=("GET", "HEAD")) if allow_host else None,
        "secrets": secrets(secret or [], secret_header or []) or None,
        "most_characters": most_characters,
        "timeout_s": timeout,
    }
    given = {name: value for name, value in options.items() if value is not None}
    with Belljar(Settings(pool_size=0)) as jar:
        page = jar.fetch(address, **given, caller=Caller(door="cli"))
    if json:
        from json import dumps

        print(dumps(page.to_dict(), indent=2))
    else:
        if page.text:
            print(harmless(page.text))
        if page.error or not page.success:
            say(page.error or f"the answer was {page.status}")
        if page.truncated:
            say("there is more of it (see --most-characters)")
    return 0 if page.success else NONE
