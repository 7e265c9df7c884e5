"""`belljar keys`: who may use the server, and how much of it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from belljar.cli.say import say
from belljar.cli.serve import needs_extra

if TYPE_CHECKING:
    from belljar.server.state import State
    from belljar.server.tenants import Quotas

EPILOG = """\
\b
Examples:
  belljar keys add alice
  belljar keys add alice --quota runs_per_minute=60 --quota maxima.timeout_s=10
  belljar keys list
  belljar keys quotas alice --quota memory_bytes=4294967296
  belljar keys remove 0123456789ab
"""

app = typer.Typer(
    help="Add, list and remove the keys of the server, and set their tenants' quotas.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
)
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Config = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="The server's settings.")
]
QuotaOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--quota", metavar="NAME=VALUE", help="A quota of the tenant; empty: unset. Repeatable."
    ),
]


@app.command()
def add(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose key it is.")],
    quota: QuotaOptions = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="May read metrics and every tenant's trail.")
    ] = False,
    config: Config = None,
) -> int:
    """Make a key and print it: this once, it is stored as a hash."""
    from belljar.errors import InvalidRequest

    if not _TENANT.fullmatch(tenant):
        raise InvalidRequest(
            f"TENANT: {tenant!r} is no name", hint="letters, figures, dots, dashes, at most 64"
        )
    state = _state(config)
    from belljar.server import keys

    quotas = _changed(state.tenants().get(tenant), quota) if quota else None
    key, text = keys.make(tenant, operator=operator, now=time.time())
    state.add(key, quotas)
    state.close()
    print(text)
    say(f"the key {key.id} of {tenant}: keep it now, it cannot be shown again")
    return 0


@app.command("list")
def list_(
    json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
    config: Config = None,
) -> int:
    """Show every key, without its secret."""
    state = _state(config)
    rows = [
        {
            "id": key.id,
            "tenant": key.tenant,
            "operator": key.operator,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(key.created)),
        }
        for key in state.all_keys()
    ]
    state.close()
    if json:
        from json import dumps

        print(dumps(rows, indent=2))
        return 0
    for row in rows:
        who = f"{row['tenant']}{' (operator)' if row['operator'] else ''}"
        print(f"{row['id']}  {row['created']}  {who}")
    return 0


@app.command()
def remove(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="As `belljar keys list` shows.")],
    config: Config = None,
) -> int:
    """Remove keys. A running server stops taking them within seconds."""
    from belljar.errors import InvalidRequest

    state = _state(config)
    missing = [identity for identity in ids if not state.remove(identity)]
    state.close()
    if missing:
        raise InvalidRequest(
            f"there is no key {missing[0][:40]!r}", hint="belljar keys list shows them"
        )
    return 0


@app.command()
def quotas(
    tenant: Annotated[str, typer.Argument(metavar="TENANT")],
    quota: QuotaOptions = None,
    config: Config = None,
) -> int:
    """Show a tenant's quotas, or change them."""
    from belljar.errors import InvalidRequest

    state = _state(config)
    known = state.tenants()
    if tenant not in known:
        raise InvalidRequest(f"there is no tenant {tenant!r}", hint="belljar keys add makes one")
    own = known[tenant]
    if own is None and not quota:
        raise InvalidRequest(
            f"the quotas of {tenant!r} cannot be read",
            hint="use the version of Belljar that wrote them, or replace them all with --quota",
        )
    if quota:
        own = _changed(own, quota)
        state.set_quotas(tenant, own)
    state.close()
    assert own is not None
    print(own.model_dump_json(exclude_unset=True, indent=2))
    return 0


def _state(config: str | None) -> State:
    needs_extra()
    from belljar.server.settings import load
    from belljar.server.state import State

    return State(load(file=config).state_url)


def _changed(own: Quotas | None, given: list[str]) -> Quotas:
    from pydantic import ValidationError

    from belljar.errors import InvalidRequest
    from belljar.server.tenants import Quotas

    values: dict[str, Any] = own.model_dump(exclude_unset=True) if own else {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise InvalidRequest(f"--quota {item!r}: it has no =", hint="write NAME=VALUE")
        if name.startswith("maxima."):
            maxima = values["maxima"] = dict(values.get("maxima", {}))
            _set(maxima, name.removeprefix("maxima."), value)
        elif name == "network_allowed" and value == "none":
            values[name] = []
        elif name in ("engines", "network_allowed"):
            _set(values, name, [part for part in value.split(",") if part])
        else:
            _set(values, name, value)
    try:
        return Quotas.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidRequest(
            f"--quota {place}: {first['msg']}", hint=f"quotas: {', '.join(Quotas.model_fields)}"
        ) from error


def _set(values: dict[str, Any], name: str, value: Any) -> None:
    if value in ("", []):
        values.pop(name, None)
    else:
        values[name] = value
