"""The world: a namespace where every address answers, one for the gateway, one for code.

    code (loopback only)        gateway ── veth ── servers (all of IPv4 and IPv6)

The gateway's namespace leads to the servers' and no further. There, every address is this
machine's own, private ones too: a dial that should not have been is a visit that a test can see.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tests.world import namespaces
from tests.world.certificates import Authority
from tests.world.names import NameServer
from tests.world.namespaces import Namespace, ip
from tests.world.servers import Servers, Visit

T = TypeVar("T")
SERVER, SERVER_6 = "93.184.216.34", "2606:2800:220:1::34"
GATEWAY, GATEWAY_6 = "93.184.216.1", "2606:2800:220:1::1"
DNS = "93.184.216.53"
PLAIN_PORTS, SECURE_PORTS, ECHO_PORTS = (80, 8080), (443, 8443), (7, 22, 25)
ALL_PORTS = (*PLAIN_PORTS, *SECURE_PORTS, *ECHO_PORTS)


def why_not() -> str:
    """Why there can be no such world here; empty: there can."""
    if os.geteuid() != 0:
        # In a user namespace one could be made, but there the gateway has no other uid to become.
        return "network namespaces with names are root's to make"
    if not shutil.which("ip"):
        return "there is no ip (package iproute2)"
    return ""


class World:
    """Used as a context. Its servers run in a thread of this process."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.names = NameServer()
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> World:
        try:
            self._make()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def visits(self) -> list[Visit]:
        """Of the servers, since the last `forget`."""
        return self.servers.visits

    @property
    def trespasses(self) -> list[str]:
        """Connections that no gateway may make: to its own host, or to what is not public."""
        found = [f"own host: {visit.address}:{visit.port}" for visit in self.own.visits]
        for visit in self.visits:
            if not ipaddress.ip_address(visit.address).is_global:
                found.append(f"{visit.address}:{visit.port}")
        return found

    def forget(self) -> None:
        for kept in (self.servers.visits, self.own.visits, self.names.asked):
            kept.clear()
        for scripts in (self.names.answers, self.names.slow_s, self.servers.raw):
            scripts.clear()
        self.names.silent.clear()

    def answers(self, name: str, *addresses: str) -> None:
        """The name has these addresses; the usual server's, if none are given."""
        self.names.answers[name] = addresses or (SERVER,)

    def certificate(self, name: str, context: ssl.SSLContext) -> None:
        """What the server shows to who asks for this name, instead of a good one."""
        self._contexts[name] = context

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the thread of the servers."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _make(self) -> None:
        namespaces.sweep()
        folder = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="belljar-world"))
        )
        folder.chmod(0o755)
        self.authority = Authority(folder)
        self.stranger = Authority(folder, "Nobody trusts this")
        self._contexts: dict[str, ssl.SSLContext] = {}
        self.outside, self.gateway, self.code = (
            self._namespace(kind) for kind in ("outside", "gateway", "code")
        )
        self._join()
        self.gateway.write("resolv.conf", f"nameserver {DNS}\noptions timeout:1 attempts:1\n")
        thread = threading.Thread(target=self._loop.run_forever, name="servers", daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(self._loop.call_soon_threadsafe, self._loop.stop)
        self.servers, self.own = Servers(self._context), Servers(self._context)
        for servers, namespace in ((self.servers, self.outside), (self.own, self.gateway)):
            self._stack.callback(lambda these=servers: self.run(these.close()))
            self._serve(servers, namespace)
        with self.outside.entered():
            listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            listening.bind((DNS, 53))
        self.run(self.names.serve(listening))

    def _namespace(self, kind: str) -> Namespace:
        made = Namespace(kind)
        self._stack.callback(made.close)
        return made

    def _join(self) -> None:
        """What has no route out of the gateway's namespace goes to the servers'; there, all that
        arrives is local. Neither has another way out."""
        outside, gateway = self.outside.name, self.gateway.name
        veth = ["link", "add", "way", "netns", gateway, "type", "veth"]
        ip(*veth, "peer", "name", "way", "netns", outside)
        for name, four, six in (
            (gateway, f"{GATEWAY}/24", f"{GATEWAY_6}/64"),
            (outside, f"{SERVER}/32", f"{SERVER_6}/128"),
        ):
            ip("-n", name, "address", "add", four, "dev", "way")
            ip("-n", name, "address", "add", six, "dev", "way", "nodad")
            ip("-n", name, "link", "set", "way", "up")
        ip("-n", gateway, "route", "add", "default", "via", SERVER)
        ip("-n", gateway, "-6", "route", "add", "default", "via", SERVER_6)
        for family, everything, back in (
            ("-4", "0.0.0.0/0", f"{GATEWAY}/32"),
            ("-6", "::/0", f"{GATEWAY_6}/128"),
        ):
            route = ("-n", outside, family, "route", "add", "table", "local")
            ip(*route, "local", everything, "dev", "lo")
            ip(*route, back, "dev", "way")

    def _serve(self, servers: Servers, namespace: Namespace) -> None:
        for ports, serve in (
            (PLAIN_PORTS, servers.plain),
            (SECURE_PORTS, servers.secure),
            (ECHO_PORTS, servers.echo),
        ):
            for port in ports:
                with namespace.entered():
                    listening = socket.create_server(
                        ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
                    )
                self.run(serve(listening))

    def _context(self, name: str) -> ssl.SSLContext:
        if name not in self._contexts:
            self._contexts[name] = self.authority.context(name or "nameless.invalid")
        return self._contexts[name]
