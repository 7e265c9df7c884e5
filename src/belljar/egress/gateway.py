"""The host's side of the gateway: its processes, one for each tenant, and the leases in them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping

from belljar.errors import (
    BelljarError,
    Closed,
    InvalidRequest,
    NetworkUnavailable,
    Unavailable,
)
from belljar.network import Egress, Rules, Secret
from belljar.settings import Settings

from . import secrets as holding
from .running import Listener, OnEgress, Running
from .targets import transparent

PROXY_PORT = 3128
CA_FILE = ".belljar/ca.pem"
"""Below /data/input."""
IDLE_S = 60.0
"""A process without leases ends after so long, unless it is the only one."""
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


class _Place:
    """One process, as it starts and lives."""

    def __init__(self, starting: asyncio.Task[Running]) -> None:
        self.starting = starting
        self.used_at = 0.0

    @property
    def running(self) -> Running | None:
        """None while it starts, and when that failed."""
        done = self.starting.done() and not self.starting.cancelled()
        return self.starting.result() if done and not self.starting.exception() else None

    @property
    def over(self) -> bool:
        running = self.running
        return not running.alive if running else self.starting.done()

    @property
    def leases(self) -> int:
        return len(self.running.listeners) if self.running else 1


class Gateway:
    """One per service. A tenant's process starts with its first lease, and anew if it is lost; what
    one tenant does to it, no other feels. `Settings.network_processes` are the most at once: then
    tenants share."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._places: dict[str, _Place] = {}
        """By tenant; several where they share."""
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    async def open(
        self,
        given: Rules,
        secrets: Mapping[str, Secret] | None = None,
        *,
        on_egress: OnEgress,
        on_lost: Callable[[], None] | None = None,
        tenant: str = "",
    ) -> Lease:
        """A way out for one sandbox, under these rules. `on_lost`: its process has ended before it;
        `renew` gives it another."""
        held = holding.hold(secrets or {})
        _check(given, bool(held))
        lease = Lease(self, tenant, given, held, Listener(on_egress, on_lost or _nothing))
        await self.renew(lease)
        return lease

    async def renew(self, lease: Lease, given: Rules | None = None) -> None:
        """The same secrets and placeholders, and these rules, in a process that lives."""
        rules = lease.given if given is None else given
        process = await self._running(lease.tenant)
        try:
            await lease.begin(process, rules)
        except NetworkUnavailable:
            if process.alive:
                raise
            await lease.begin(await self._running(lease.tenant), rules)  # it hung, or just ended

    def rests(self, lease: Lease) -> None:
        """It has ended, and its process may have nothing left to do."""
        if place := self._places.get(lease.tenant):
            place.used_at = asyncio.get_running_loop().time()
        if len(self._all()) > 1 and self._sweeping is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(IDLE_S, self._sweep)

    async def close(self) -> None:
        """Ends the processes, and with them every connection."""
        self._closed = True
        if self._sweeping:
            self._sweeping.cancel()
        for place in self._all():
            with contextlib.suppress(BelljarError):
                (await place.starting).close()
        self._places.clear()

    @property
    def processes(self) -> list[Running]:
        """Those that live."""
        return [one.running for one in self._all() if one.running and one.running.alive]

    # -- places ----------------------------------------------------------------------------------

    async def _running(self, tenant: str) -> Running:
        while True:
            if self._closed:
                raise Closed("the gateway was closed")
            place = self._place(tenant)
            place.used_at = asyncio.get_running_loop().time()
            # Who stops waiting does not stop what others wait for.
            running = await asyncio.shield(place.starting)
            if running.alive and not self._closed:
                return running

    def _place(self, tenant: str) -> _Place:
        most = self._settings.network_processes
        found = self._places.get(tenant)
        if found and not found.over and (self._own(found) or len(self._all()) >= most):
            return found
        self._places = {name: one for name, one in self._places.items() if not one.over}
        if len(self._all()) >= most:
            self._end_idle(0.0, keep=most - 1)
        places = self._all()
        if len(places) >= most:
            found = min(places, key=lambda one: one.leases)
        else:
            found = _Place(asyncio.ensure_future(Running.start(self._settings)))
            found.starting.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._places[tenant] = found
        return found

    def _own(self, place: _Place) -> bool:
        return sum(one is place for one in self._places.values()) == 1

    def _all(self) -> list[_Place]:
        return list({id(one): one for one in self._places.values()}.values())

    def _sweep(self) -> None:
        self._sweeping = None
        if self._end_idle(IDLE_S, keep=1):
            self._sweeping = asyncio.get_running_loop().call_later(IDLE_S, self._sweep)

    def _end_idle(self, for_s: float, *, keep: int) -> bool:
        """Ends those that were idle for so long, the longest first, and says whether there are more
        that are idle. The last to have been used stays: who is alone here never waits for one."""
        places = self._all()
        idle = sorted((one for one in places if not one.leases), key=lambda one: one.used_at)
        until = asyncio.get_running_loop().time() - for_s
        left = len(places)
        for one in idle:
            if left > keep and one.used_at <= until and one.running:
                one.running.close()
                left -= 1
        self._places = {name: one for name, one in self._places.items() if not one.over}
        return len(self._places) > 1


class Lease:
    """One sandbox's way out."""

    def __init__(
        self,
        gateway: Gateway,
        tenant: str,
        given: Rules,
        held: tuple[holding.Held, ...],
        listener: Listener,
    ) -> None:
        self.tenant = tenant
        self._gateway = gateway
        self._listener = listener
        self._process: Running | None = None
        self._number = 0
        self._held = held
        self._closed = False
        self.given = given
        self._placeholders = holding.variables(held)

    async def begin(self, process: Running, given: Rules) -> None:
        """In this process from now on; for the gateway."""
        self._check_open()
        number = process.number()
        process.listeners[number] = self._listener
        try:
            await process.ask(
                {
                    "do": "open",
                    "lease": number,
                    "rules": [rule.to_dict() for rule in given],
                    "secrets": [one.to_dict() for one in self._held],
                }
            )
            self._check_open()  # it may have been closed meanwhile
        except BaseException:
            process.listeners.pop(number, None)
            with contextlib.suppress(NetworkUnavailable):
                process.send({"do": "close", "lease": number, "id": process.number()})
            raise
        before = self._process, self._number
        self._process, self._number, self.given = process, number, given
        await _end(*before)

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
        process = self._begun()
        system = any(not rule.inspect for rule in self.given)
        more = process.more_roots if system else b""
        return {CA_FILE: process.authority.bundle(system=system, more=more)}

    @property
    def hosts(self) -> Mapping[str, str]:
        """For /etc/hosts inside: names that lead to the gateway also without a proxy."""
        return dict.fromkeys(transparent(self.given), _LOOPBACK)

    def wire(self) -> socket.socket:
        """A new wire, the caller's; its other end is the gateway's."""
        self._check_open()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._begun().send({"do": "wire", "lease": self._number}, theirs)
        except BaseException:
            ours.close()
            raise
        return ours

    @property
    def lost(self) -> bool:
        """Its process has ended, and every way out with it."""
        return not self._begun().alive

    async def change(self, given: Rules) -> None:
        """From now on these rules. What they do not allow is cut."""
        self._check_open()
        _check(given, bool(self._held))
        rules = [rule.to_dict() for rule in given]
        await self._begun().ask({"do": "change", "lease": self._number, "rules": rules})
        self.given = given

    async def under_way(self) -> list[Egress]:
        """What has begun and is not told yet; all that is over was told before this returns."""
        self._check_open()
        process = self._begun()
        answer = await process.ask({"do": "tell", "lease": self._number})
        told = answer["under_way"]
        return [Egress(**one) for slot, number, one in told if not process.heard(slot, number)]

    async def close(self) -> None:
        """When it returns every connection is cut and every attempt told."""
        if self._closed:
            return
        self._closed = True
        try:
            await _end(self._begun(), self._number)
        finally:
            self._gateway.rests(self)

    def _begun(self) -> Running:
        assert self._process is not None
        return self._process

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this way to the network was closed")


async def _end(process: Running | None, number: int) -> None:
    if process is None:
        return
    try:
        if process.alive:
            await process.ask({"do": "close", "lease": number})
    except Unavailable:
        pass  # the process has gone, and with it every connection
    finally:
        process.listeners.pop(number, None)


def _nothing() -> None:
    pass


def _check(given: Rules, secret: bool) -> None:
    if secret and (open_ := next((rule for rule in given if not rule.inspect), None)):
        raise InvalidRequest(
            f"network: {open_.hosts[0]} cannot have inspect=False together with secrets",
            hint="what is not inspected could carry a secret out: leave out either",
        )
