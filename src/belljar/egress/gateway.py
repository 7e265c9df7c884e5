"""The host's side of the gateway: starts its process, and gets each sandbox a way out of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

from belljar.errors import Closed, InvalidRequest, Unavailable
from belljar.network import Rules, Secret
from belljar.settings import Settings

from . import secrets as holding
from .running import OnEgress, Running
from .targets import transparent

PROXY_PORT = 3128
CA_FILE = ".belljar/ca.pem"
"""Below /data/input."""
_CA_PATH = f"/data/input/{CA_FILE}"
_LOOPBACK = "127.0.0.1"
_CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
)


class Gateway:
    """One per service. Its process starts with the first lease, and anew if it is lost."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: Running | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    async def open(
        self, given: Rules, secrets: Mapping[str, Secret] | None = None, *, on_egress: OnEgress
    ) -> Lease:
        """A way out for one sandbox, under these rules."""
        held = holding.hold(secrets or {})
        _check(given, bool(held))
        async with self._turn:
            if self._closed:
                raise Closed("the gateway was closed")
            if self._process is None or not self._process.alive:
                self._process = await Running.start(self._settings)
            process = self._process
        number = process.number()
        process.listeners[number] = on_egress
        lease = Lease(process, number, given, held)
        try:
            await process.ask(
                {
                    "do": "open",
                    "lease": number,
                    "rules": [rule.to_dict() for rule in given],
                    "secrets": [one.to_dict() for one in held],
                }
            )
        except BaseException:
            del process.listeners[number]
            raise
        return lease

    async def close(self) -> None:
        """Ends the process, and with it every connection."""
        self._closed = True
        async with self._turn:
            if self._process:
                self._process.close()
                self._process = None


class Lease:
    """One sandbox's way out."""

    def __init__(
        self, process: Running, number: int, given: Rules, held: tuple[holding.Held, ...]
    ) -> None:
        self._process = process
        self._number = number
        self._secret = bool(held)
        self._closed = False
        self._given = given
        self._placeholders = holding.variables(held)

    @property
    def variables(self) -> Mapping[str, str]:
        """For the code. Without ALL_PROXY: some clients would need a library for SOCKS then."""
        proxy = f"http://{_LOOPBACK}:{PROXY_PORT}"
        found = {"NODE_USE_ENV_PROXY": "1"}
        for name, value in (
            ("HTTP_PROXY", proxy),
            ("HTTPS_PROXY", proxy),
            ("NO_PROXY", f"localhost,{_LOOPBACK},::1"),
        ):
            found |= {name: value, name.lower(): value}
        found |= dict.fromkeys(_CA_VARIABLES, _CA_PATH)
        return found | self._placeholders

    @property
    def files(self) -> Mapping[str, bytes]:
        """For the code, below /data/input."""
        system = any(not rule.inspect for rule in self._given)
        more = self._process.more_roots if system else b""
        return {CA_FILE: self._process.authority.bundle(system=system, more=more)}

    @property
    def hosts(self) -> Mapping[str, str]:
        """For /etc/hosts inside: names that lead to the gateway also without a proxy."""
        return dict.fromkeys(transparent(self._given), _LOOPBACK)

    def wire(self) -> socket.socket:
        """A new wire, the caller's; its other end is the gateway's."""
        self._check_open()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                self._process.send({"do": "wire", "lease": self._number}, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return ours

    @property
    def lost(self) -> bool:
        """Its process has ended, and every way out with it."""
        return not self._process.alive

    async def change(self, given: Rules) -> None:
        """From now on these rules. What they do not allow is cut."""
        self._check_open()
        _check(given, self._secret)
        rules = [rule.to_dict() for rule in given]
        await self._process.ask({"do": "change", "lease": self._number, "rules": rules})
        self._given = given

    async def close(self) -> None:
        """When it returns every connection is cut and every attempt told."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._process.alive:
                await self._process.ask({"do": "close", "lease": self._number})
        except Unavailable:
            pass  # the process has gone, and with it every connection
        finally:
            self._process.listeners.pop(self._number, None)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this way to the network was closed")


def _check(given: Rules, secret: bool) -> None:
    if secret and (open_ := next((rule for rule in given if not rule.inspect), None)):
        raise InvalidRequest(
            f"network: {open_.hosts[0]} cannot have inspect=False together with secrets",
            hint="what is not inspected could carry a secret out: leave out either",
        )
