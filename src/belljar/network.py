"""Network by name: which hosts code may reach, and the secrets that are added on the way.

Plain data and pure judgement. Who dials is the gateway (`egress`), a process of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from belljar.errors import InvalidRequest

PORTS = (80, 443)
"""What a host without a port means."""
PACKAGES = ":packages:"
"""Among the hosts of a rule: those of the operator's package index, to be read only."""
MOST_RULES = 100
MOST_HOSTS = 256
MOST_METHODS = 32
MOST_PATHS = 100
"""Of one rule, as those before."""
MOST_HOSTS_TOGETHER = 2_000
MOST_PATHS_TOGETHER = 1_000
MOST_PATH_CHARACTERS = 10_000
"""Of all rules of a sandbox: every request is held against them, in a process that others use."""
MOST_NOT_ASCII = 20
"""Names of hosts in all rules: to encode one takes half a millisecond of everybody's time."""
MOST_SECRETS = 32
SOURCES = ("env:", "file:")
"""With these begins where the value of a secret is; everything else is the value."""
SHORTEST_SECRET = 8
"""A shorter placeholder could stand in a page by chance."""

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
_METHOD = re.compile(r"[A-Z][A-Z0-9_-]{0,31}\Z")
_HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]{0,63}): (.*)\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")


def host_name(text: str) -> str:
    """A DNS name in its one spelling; an address, or anything else, is refused.

    Resolvers also take `127.1`, `0x7f000001` or `2130706433` for addresses: names whose last label
    begins with a digit are never names of hosts."""
    try:
        # What is longer than any name is not encoded: that takes time by its length.
        whole = text if len(text) <= 253 else ""
        name = whole.lower() if whole.isascii() else whole.encode("idna").decode().lower()
    except UnicodeError:
        name = ""
    labels = name.split(".")
    if (
        not name
        or len(name) > 253
        or not all(_LABEL.match(label) for label in labels)
        or labels[-1][0].isdigit()
    ):
        raise InvalidRequest(
            f"network: {text[:80]!r} is not the name of a host",
            hint='a DNS name such as "api.example.com" or "*.example.com:443"; no address',
        )
    return name


@dataclass(frozen=True, init=False)
class Allow:
    """Hosts that code may reach: `Allow("api.example.com", "*.example.org:443", methods=("GET",))`.

    `*.` stands for every name below, not for the name itself. Without a port: 80 and 443.
    ":packages:" stands for the operator's package index."""

    hosts: tuple[str, ...]
    methods: tuple[str, ...] = ()
    """Empty: any."""
    paths: tuple[str, ...] = ()
    """Patterns with `*`, as "/v1/*"; empty: any."""
    inspect: bool = True
    """Whether TLS is opened at the gateway, which then sees methods, paths and the Host header. If
    not, only the name that the handshake is for is checked."""

    def __init__(
        self,
        *hosts: str,
        methods: Sequence[str] = (),
        paths: Sequence[str] = (),
        inspect: bool = True,
    ) -> None:
        if not hosts or len(hosts) > MOST_HOSTS:
            raise InvalidRequest(f"network: a rule names 1 to {MOST_HOSTS} hosts")
        check_names(hosts)
        for name, value in (("methods", methods), ("paths", paths)):
            several = isinstance(value, Sequence) and not isinstance(value, str)
            if not several or not all(isinstance(one, str) for one in value):
                raise InvalidRequest(
                    f"network: {name} must be several texts, not {value!r}",
                    hint=f"write {name}=({value!r},)" if isinstance(value, str) else "",
                )
            most = MOST_METHODS if name == "methods" else MOST_PATHS
            if len(value) > most:
                raise InvalidRequest(f"network: a rule has at most {most} {name}")
        methods = tuple(method.upper() for method in methods)
        if bad := [method for method in methods if not _METHOD.match(method)]:
            raise InvalidRequest(f"network: {bad[0][:40]!r} is not a method")
        if bad := [path for path in paths if not path.startswith("/") or len(path) > 1000]:
            raise InvalidRequest(
                f"network: the path {bad[0][:80]!r} must begin with /", hint='as in "/v1/*"'
            )
        if not inspect and (methods or paths):
            raise InvalidRequest(
                "network: methods and paths cannot be checked with inspect=False",
                hint="leave out either",
            )
        put = object.__setattr__
        put(self, "hosts", tuple(_pattern(host) for host in hosts))
        put(self, "methods", methods)
        put(self, "paths", tuple(paths))
        put(self, "inspect", bool(inspect))

    def covers(self, host: str, port: int) -> str:
        """The pattern that names it, or none."""
        return next((pattern for pattern in self.hosts if _names(pattern, host, port)), "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "hosts": list(self.hosts),
            "methods": list(self.methods),
            "paths": list(self.paths),
            "inspect": self.inspect,
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Allow:
        """The inverse of `to_dict`."""
        unknown = set(data) - {"hosts", "methods", "paths", "inspect"}
        hosts = data.get("hosts")
        if unknown or not isinstance(hosts, Sequence) or isinstance(hosts, str):
            raise InvalidRequest(
                "network: a rule has hosts and, if wanted, methods, paths and inspect",
                hint='as in {"hosts": ["api.example.com"], "methods": ["GET"]}',
            )
        more = {name: value for name, value in data.items() if name != "hosts"}
        return cls(*hosts, **more)


Rules = tuple[Allow, ...]


def rules(asked: object) -> Rules:
    """`network=` as callers write it: a rule, a host, several of them, or nothing."""
    if asked is None or asked is False:
        return ()
    several = [asked] if isinstance(asked, (str, Allow, Mapping)) else _many(asked)
    items = list(islice(several, MOST_RULES + 1))
    check_names(name for item in items for name in _hosts(item))
    found: list[Allow] = []
    for item in items:
        if isinstance(item, str):
            found.append(Allow(item))
        elif isinstance(item, Mapping):
            found.append(Allow.of(item))
        elif isinstance(item, Allow):
            found.append(item)
        else:
            _not_rules(item)
        if len(found) > MOST_RULES:
            raise InvalidRequest(f"network: at most {MOST_RULES} rules")
    hosts = sum(len(rule.hosts) for rule in found)
    check_together(hosts, [path for rule in found for path in rule.paths])
    return tuple(found)


def check_names(hosts: Iterable[object]) -> None:
    """To be asked before any of them is encoded."""
    if sum(isinstance(host, str) and not host.isascii() for host in hosts) > MOST_NOT_ASCII:
        raise InvalidRequest(
            f"network: all rules together may have {MOST_NOT_ASCII} names that are not ASCII",
            hint="write names as DNS has them: xn--mnchen-3ya.example",
        )


def check_together(hosts: int, paths: Sequence[str]) -> None:
    """What all rules of a sandbox have, counted."""
    for what, count, most in (
        ("hosts", hosts, MOST_HOSTS_TOGETHER),
        ("paths", len(paths), MOST_PATHS_TOGETHER),
        ("characters in paths", sum(map(len, paths)), MOST_PATH_CHARACTERS),
    ):
        if count > most:
            raise InvalidRequest(
                f"network: all rules together have {count:,} {what}, and may have {most:,}",
                hint="one pattern can stand for many: *.example.com, /v1/*",
            )


def patterns(hosts: Iterable[str]) -> tuple[str, ...]:
    """Names of hosts as rules have them, each in its one spelling."""
    return tuple(pattern for host in hosts for pattern in Allow(host).hosts)


@dataclass(frozen=True, init=False)
class Secret:
    """A credential that code uses without having it.

    `Secret("env:OPENAI_API_KEY", host="api.openai.com", header="Authorization: Bearer {}")`: the
    value itself, or where this machine has it ("env:NAME", "file:PATH"). Inside the sandbox the
    variable holds a placeholder, which the gateway replaces, for that host alone."""

    source: str = field(repr=False)
    host: str
    header: str = "Authorization: Bearer {}"
    query: bool = False
    """It may also stand in the query of the address."""
    body: bool = False
    """It may also stand in what is sent."""

    def __init__(
        self,
        source: str,
        *,
        host: str,
        header: str = "Authorization: Bearer {}",
        query: bool = False,
        body: bool = False,
    ) -> None:
        if not isinstance(source, str) or not source:
            raise InvalidRequest("secrets: a secret is a text, or env:NAME, or file:PATH")
        form = _HEADER.match(header) if isinstance(header, str) else None
        if not form or form[2].count("{}") != 1 or not form[2].isprintable():
            raise InvalidRequest(
                # Not quoted: the value may stand there by mistake. The same for all below.
                "secrets: header= must be a name, a colon and a text with one {}",
                hint='as in header="Authorization: Bearer {}"',
            )
        try:
            name = host_name(host)
        except InvalidRequest as error:
            raise InvalidRequest(
                "secrets: host= is not the name of a host", hint=error.hint
            ) from None
        put = object.__setattr__
        put(self, "source", source)
        put(self, "host", name)
        put(self, "header", header)
        put(self, "query", bool(query))
        put(self, "body", bool(body))

    def value(self) -> str:
        """Read where it lies, now."""
        kind, _, name = self.source.partition(":")
        if kind == "env":
            text = os.environ.get(name, "")
            missing = f"secrets: the variable {name} is not set"
        elif kind == "file":
            try:
                text = Path(name).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidRequest(f"secrets: {name} cannot be read: {error}") from error
            missing = f"secrets: {name} is empty"
        else:
            text, missing = self.source, ""
        if not text:
            raise InvalidRequest(missing)
        if len(text) < SHORTEST_SECRET or not text.isascii() or not text.isprintable():
            raise InvalidRequest(
                f"secrets: the secret for {self.host} must have at least {SHORTEST_SECRET} "
                "characters, printable ASCII without line breaks"
            )
        return text

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled: it would be written down somewhere")


@dataclass(frozen=True, kw_only=True)
class Egress:
    """One attempt to reach something, allowed or not (N1). Queries are not in it."""

    at: float
    """Seconds since 1970."""
    host: str
    port: int
    verdict: str
    """"allowed", "refused" (by a rule), "blocked" (an attack, or a secret), "failed" (beyond the
    gateway)."""
    rule: str = ""
    why: str = ""
    address: str = ""
    """Which address was dialled, if one was."""
    scheme: str = ""
    """http, https, tunnel or socks; direct: past the gateway, with neither host nor port"""
    method: str = ""
    path: str = ""
    status: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    count: int = 1
    """More than one: so many like this, written as one."""


def check_variable(name: object) -> str:
    if not isinstance(name, str) or not _VARIABLE.match(name):
        raise InvalidRequest(
            "secrets: one of them is not under the name of a variable",
            hint='as in {"API_KEY": …}: letters, digits and _',
        )
    return name


def _pattern(host: object) -> str:
    if not isinstance(host, str):
        _not_rules(host)
    if host == PACKAGES:
        return host
    name, colon, port = host.strip().partition(":")
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise InvalidRequest(
            f"network: {host[:80]!r} has no usable port",
            hint='write "api.example.com:8443"; a rule names hosts, not addresses of pages',
        )
    star = "*." if name.startswith("*.") else ""
    name = host_name(name[len(star) :])
    if star and "." not in name:
        raise InvalidRequest(
            f"network: {host[:80]!r} names too much", hint='at least two labels: "*.example.com"'
        )
    return f"{star}{name}" + (f":{int(port)}" if colon else "")


def _names(pattern: str, host: str, port: int) -> bool:
    if pattern == PACKAGES:
        return False  # policy puts names in its place
    name, _, only = pattern.partition(":")
    if port not in ((int(only),) if only else PORTS):
        return False
    return host.endswith(name[1:]) and host != name[2:] if name[0] == "*" else host == name


def _hosts(item: object) -> Iterable[object]:
    if isinstance(item, Mapping):
        item = item.get("hosts")
    return item if isinstance(item, Sequence) and not isinstance(item, str) else (item,)


def _many(asked: object) -> Iterable[object]:
    if not isinstance(asked, Iterable):
        _not_rules(asked)
    return asked


def _not_rules(asked: object) -> NoReturn:
    raise InvalidRequest(
        f"network: {str(asked)[:80]!r} is not a rule", hint='network=Allow("api.example.com")'
    )
