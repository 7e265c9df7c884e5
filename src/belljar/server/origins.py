"""Whether a browser sent somebody's page here: Host against DNS rebinding, Origin against forged
requests. Programs send no Origin and are not concerned."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from belljar.server.settings import ServerSettings


class Origins:
    def __init__(self, settings: ServerSettings) -> None:
        self._loopback = settings.loopback
        self._names = {name.lower().rstrip(".") for name in settings.allowed_hosts}
        self._names |= {"localhost", settings.host.lower()}
        self._origins = {origin.lower().rstrip("/") for origin in settings.allowed_origins}

    def host_is_ours(self, host: str) -> bool:
        """By name it must be one that the operator gave. An address in figures cannot be rebound:
        a page that comes from it comes from this server."""
        name = _name(host)
        if name is None:
            return False
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback if self._loopback else True

    def origin_is_ours(self, origin: str, host: str, scheme: str) -> bool:
        """`null` is any sandboxed frame or file, so it is nobody's."""
        given = origin.lower()
        return given == f"{scheme}://{host.lower()}" or given in self._origins


def _name(host: str) -> str | None:
    """The name in `name:port`, or None for what is none."""
    if not host or any(character in host for character in "/\\@?#, \t") or not host.isascii():
        return None
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018  (a port that is none raises)
    except ValueError:
        return None
    return (parts.hostname or "").lower().rstrip(".") or None
