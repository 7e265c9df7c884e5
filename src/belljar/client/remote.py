"""`belljar.client.Belljar`: as `belljar.aio.Belljar`, at a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from belljar.client import results
from belljar.client.connection import Connection
from belljar.errors import InvalidRequest, ServerRefused, Unsupported
from belljar.model import Result
from belljar.network import Egress, Secret, rules
from belljar.options import LIVE, RunOptions

if TYPE_CHECKING:
    from belljar.fetching import Page

KEY_VARIABLE = "BELLJAR_KEY"


class Belljar:
    """`async with Belljar(url, key) as jar: await jar.run(...)`."""

    def __init__(self, url: str, key: str = "") -> None:
        self.connection = Connection(url, key or os.environ.get(KEY_VARIABLE, ""))

    async def __aenter__(self) -> Belljar:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def run(self, code: str, **options: Unpack[RunOptions]) -> Result:
        """Runs `code` in a fresh sandbox of the server."""
        said = {"code": code, **sendable(options)}
        on_output, on_usage = options.get("on_output"), options.get("on_usage")
        if on_output is None and on_usage is None:
            return results.result(await self.connection.ask("POST", "/v1/runs", said))
        async with aclosing(self.connection.events("POST", "/v1/runs", said)) as events:
            async for name, told in events:
                if name == "output" and on_output:
                    on_output(told["stream"], results.printed(told))
                elif name == "usage" and on_usage:
                    on_usage(results.usage(told))
                elif name == "end":
                    return results.result(told)
        raise ServerRefused("the server told no result")

    async def fetch(self, address: str, **options: Any) -> Page:
        """One page as text, got by the server."""
        from belljar.fetching import Page

        said = {"url": address, **sendable(options)}
        told = await self.connection.ask("POST", "/v1/fetch", said)
        names = {name for name in told if name in Page.__dataclass_fields__}
        found = {name: told[name] for name in names}
        found |= {name: tuple(told.get(name, ())) for name in ("links", "redirects")}
        return Page(**found | {"egress": tuple(Egress(**one) for one in told.get("egress", ()))})

    async def warm(self, name: str, count: int, *, engine: str = "auto") -> None:
        raise Unsupported(
            "a server's pools are its operator's", hint="see the server's setting warm"
        )

    async def close(self) -> None:
        await self.connection.close()


def sendable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `run` as JSON has them."""
    if options.get("stdin_descriptor") is not None:
        raise InvalidRequest(
            "stdin_descriptor: a server cannot read it", hint="give the content as stdin"
        )
    said = {name: value for name, value in options.items() if name not in LIVE}
    for name in ("files", "inputs"):
        if name in said:
            said[name] = results.contents(name, said[name])
    if "stdin" in said:
        said["stdin"] = results.content("stdin", said["stdin"])
    if "network" in said:
        said["network"] = [rule.to_dict() for rule in rules(said["network"])]
    if "secrets" in said:
        said["secrets"] = _secrets(said["secrets"])
    if isinstance(need := said.get("need"), str):
        said["need"] = [need]
    return {name: _plain(value) for name, value in said.items()}


def _secrets(given: Any) -> dict[str, Any]:
    """Read here: what "env:" and "file:" name is on this machine."""
    if not isinstance(given, Mapping) or not all(isinstance(v, Secret) for v in given.values()):
        raise InvalidRequest("secrets: must map variables to Secret")
    return {
        str(name): {
            "value": secret.value(),
            "host": secret.host,
            "header": secret.header,
            "query": secret.query,
            "body": secret.body,
        }
        for name, secret in given.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return list(value) if isinstance(value, (tuple, set, frozenset)) else value
