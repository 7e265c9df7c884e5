"""Pid 1's part in a sandbox's network: it opens the doors when the host says so, and is in between.

`relay.py` has what happens at them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from .relay import Broken, Relay


class Doors:
    def __init__(
        self,
        send: Callable[[bytes], None],
        name_hosts: Callable[[str], None],
        listen: Callable[[int], None],
        ignore: Callable[[int], None],
    ) -> None:
        """`send`: to the gateway; no bytes mean that nothing more comes. `listen`: to call `turn`
        when that descriptor is readable."""
        self._send = send
        self._name_hosts = name_hosts
        self._listen = listen
        self._ignore = ignore
        self._relay: Relay | None = None
        self.descriptor = -1

    def open(self, hosts: str) -> list[int]:
        """`hosts`: what /etc/hosts is to say, unless the wall sees to that. Returns the ports."""
        self.close()
        if hosts:
            self._name_hosts(hosts)
        self._relay = relay = Relay(self._send)
        self.descriptor = relay.descriptor
        self._listen(self.descriptor)
        return relay.ports

    def take(self, data: bytes) -> None:
        """What the gateway sent."""
        if self._relay is None:
            return
        if not data:
            self.close()
            return
        try:
            self._relay.feed(data)
        except (Broken, OSError, struct.error):
            self._fail()

    def turn(self) -> None:
        if self._relay is None:
            return
        try:
            self._relay.turn()
        except (Broken, OSError, struct.error):
            self._fail()

    def close(self) -> None:
        """Who dials then is refused at once."""
        if self._relay is None:
            return
        self._ignore(self.descriptor)
        self.descriptor = -1
        self._relay.close()
        self._relay = None

    def _fail(self) -> None:
        """The code is left without a network, and pid 1 lives on."""
        self.close()
        self._send(b"")

    # -- in a kept sandbox -----------------------------------------------------------------------

    def ask_open_doors(self, ask: dict) -> dict:  # type: ignore[type-arg]
        return {"ports": self.open(ask["hosts"])}

    def ask_name_hosts(self, ask: dict) -> dict:  # type: ignore[type-arg]
        self._name_hosts(ask["hosts"])
        return {}
