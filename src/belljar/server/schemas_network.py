"""What travels over HTTP about the network: rules, secrets, attempts (N1, N2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from belljar.errors import InvalidRequest
from belljar.network import (
    MOST_HOSTS,
    MOST_RULES,
    MOST_SECRETS,
    SOURCES,
    Allow,
    Secret,
    check_together,
    check_variable,
)
from belljar.network import rules as network_rules
from belljar.server.strict import Strict

Host = Annotated[str, Field(max_length=300)]


class Rule(Strict):
    """Hosts that the code may reach. Without a port: 80 and 443."""

    hosts: Annotated[list[Host], Field(fail_fast=True)] = Field(
        min_length=1, max_length=MOST_HOSTS, examples=[["api.example.com", "*.example.org:443"]]
    )
    methods: Annotated[list[Annotated[str, Field(max_length=32)]], Field(fail_fast=True)] = Field(
        default_factory=list, max_length=32, description="Empty: any.", examples=[["GET"]]
    )
    paths: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(fail_fast=True)] = Field(
        default_factory=list, max_length=100, description="Patterns with *. Empty: any."
    )
    inspect: bool = Field(True, description="Whether TLS is opened at the gateway.")


class SecretGiven(Strict):
    """A credential that code uses without having it."""

    holds_secrets = True
    value: str = Field(min_length=8, max_length=10_000, repr=False)
    host: Host = Field(examples=["api.example.com"])
    header: Annotated[str, Field(max_length=1000)] = "Authorization: Bearer {}"
    query: bool = Field(False, description="It may also stand in the query.")
    body: bool = Field(False, description="It may also stand in what is sent.")


Rules = Annotated[
    list[Host | Rule],
    Field(fail_fast=True),
    Field(
        max_length=MOST_RULES,
        description="Hosts that the code may reach, within what the operator allows.",
        examples=[[]],
    ),
]


def _named(given: Any) -> Any:
    """Before anything else is said about them: a place in an error has the name in it."""
    if isinstance(given, dict):
        for name in given:
            try:
                check_variable(name)
            except InvalidRequest as error:
                said = error.message.removeprefix("secrets: ")
                raise PydanticCustomError(
                    "variable", "{said}", {"said": said, "hint": error.hint}
                ) from None
    return given


Secrets = Annotated[
    dict[str, SecretGiven],
    BeforeValidator(_named),
    Field(
        max_length=MOST_SECRETS,
        description="By the variable that holds a placeholder inside. Values, not where they are.",
        examples=[{}],
    ),
]


class NetworkRequest(Strict):
    network: Rules


class EgressOfRun(BaseModel):
    """One attempt to reach something."""

    at: float
    host: str
    port: int
    verdict: str = Field(description="allowed, refused, blocked or failed.")
    rule: str
    why: str
    address: str
    scheme: str
    method: str
    path: str
    status: int
    bytes_sent: int
    bytes_received: int
    count: int


def rules(given: Sequence[str | Rule]) -> tuple[Allow, ...]:
    """As the library has them."""
    several = [one for one in given if isinstance(one, Rule)]
    hosts = len(given) - len(several) + sum(len(one.hosts) for one in several)
    check_together(hosts, [path for one in several for path in one.paths])
    return network_rules([one if isinstance(one, str) else one.model_dump() for one in given])


def secrets(given: Mapping[str, SecretGiven]) -> dict[str, Secret]:
    """As the library has them. No client may name a variable or a file of the server's."""
    found = {}
    for name, one in given.items():
        if one.value.startswith(SOURCES):
            raise InvalidRequest(
                f"secrets: {name[:40]!r} names a place on the server, not a value",
                hint="the client of the library reads env: and file: on its own machine",
            )
        found[name] = Secret(
            one.value, host=one.host, header=one.header, query=one.query, body=one.body
        )
    return found
