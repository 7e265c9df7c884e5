"""Which hosts a caller may ask for, and the secrets that go with them (N1, N2). Pure.

What is asked for must be inside what the operator allows, whole: a wildcard that names one host
too many is refused, so that what a caller was granted is what the rules say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

from belljar.errors import InvalidRequest, InvalidVariable, NetworkRefused
from belljar.network import (
    MOST_SECRETS,
    PACKAGES,
    PORTS,
    Allow,
    Rules,
    Secret,
    check_variable,
    patterns,
    rules,
)
from belljar.policy.quote import quote
from belljar.policy.variables import refusal
from belljar.settings import Settings

PLAIN = 80
"""Where nothing is encrypted."""
RESERVED = frozenset({
    "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO", "PIP_CERT", "PIP_PROXY", "AWS_CA_BUNDLE", "UV_NATIVE_TLS",
    "CARGO_HTTP_CAINFO",
})  # fmt: skip
"""By which code finds the gateway and trusts it, in either case of letters."""


def check_network(asked: object, settings: Settings) -> Rules:
    """The rules, or NetworkRefused with the host that is not to be had."""
    given = rules(asked)
    if not given:
        return ()
    most = settings.network_allowed
    found = _without_packages(given)
    check_inside(found, most, setting="network_allowed")
    if names_packages(given):
        index = package_rule(settings)
        if PACKAGES not in most:
            check_inside((index,), most, setting="network_allowed")
        found += (index,)
    denied = _Inside(_patterns("network_denied", settings.network_denied))
    for pattern, name, port in _named(found):
        if denied.holds(name, port):
            raise NetworkRefused(f"network: the operator denies {pattern!r} to everybody")
    return found


def names_packages(given: Rules) -> bool:
    return any(PACKAGES in rule.hosts for rule in given)


def package_rule(settings: Settings) -> Allow:
    """What ":packages:" stands for: the operator's index and where its files are, to be read."""
    from urllib.parse import urlsplit

    index = settings.package_index
    try:
        parts = urlsplit(index)
        port = parts.port or 443
    except ValueError:
        parts, port = urlsplit(""), 0
    if not index:
        raise NetworkRefused(
            f"network: {PACKAGES} stands for the operator's package index, and none is set",
            hint="the setting is package_index",
        )
    if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc:
        raise InvalidRequest(
            "settings.package_index: must be https://HOST/PATH, without a name and a password",
            hint="what stands in it can be read inside",
        )
    return Allow(f"{parts.hostname}:{port}", *settings.package_hosts, methods=("GET", "HEAD"))


def package_variables(settings: Settings) -> dict[str, str]:
    """By which installers find the index."""
    names = ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
    return dict.fromkeys(names, settings.package_index)


def allowed_hosts(settings: Settings) -> tuple[str, ...] | Literal["any"]:
    """`network_allowed` in names of hosts alone, for the gateway."""
    most = settings.network_allowed
    if most == "any" or PACKAGES not in most:
        return most
    named = package_rule(settings).hosts if settings.package_index else ()
    return (*(host for host in most if host != PACKAGES), *named)


def _without_packages(given: Rules) -> Rules:
    """The same rules, with names of hosts alone."""
    found = []
    for rule in given:
        if PACKAGES not in rule.hosts:
            found.append(rule)
        elif hosts := [host for host in rule.hosts if host != PACKAGES]:
            more = {"methods": rule.methods, "paths": rule.paths, "inspect": rule.inspect}
            found.append(Allow(*hosts, **more))  # type: ignore[arg-type]
    return tuple(found)


def check_inside(
    found: Rules, allowed: Collection[str] | str, *, setting: str, whose: str = "the operator"
) -> None:
    """Every host on every port that the rules name is among those that are allowed."""
    if allowed == "any":
        return
    most = _patterns(setting, allowed)
    inside = _Inside(most)
    for pattern, name, port in _named(found):
        if not inside.holds(name, port):
            shown = ", ".join(most[:20]) + (" …" if len(most) > 20 else "")
            at = "" if ":" in pattern else f" on port {port}"
            raise NetworkRefused(
                f"network: {whose} does not allow {pattern!r}{at}",
                hint=f"allowed: {shown}" if most else f"none is; the setting is {setting}",
            )


def check_secrets(given: object, found: Rules, env: Mapping[str, str]) -> dict[str, Secret]:
    """A copy. No value is read here, and none is told."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"secrets: must map variables to Secret, not a {type(given).__name__}",
            hint='secrets={"API_KEY": Secret("env:API_KEY", host="api.example.com")}',
        )
    if len(given) > MOST_SECRETS:
        raise InvalidRequest(f"secrets: {len(given)} are more than {MOST_SECRETS}")
    for variable, secret in given.items():
        check_variable(variable)
        if not isinstance(secret, Secret):
            raise InvalidRequest(
                f"secrets: {variable} must be a Secret, not a {type(secret).__name__}",
                hint=f'{variable}=Secret("env:{variable}", host="api.example.com")',
            )
        if why := refusal(variable) or _reserved(variable):
            raise InvalidVariable(f"secrets: {variable} is refused", hint=why)
        if variable in env:
            raise InvalidVariable(
                f"secrets: {variable} is in env, too", hint="give it once, as a secret"
            )
    way = useful(given, found)
    for variable, secret in given.items():
        _check_way(variable, secret, way, found)
    return dict(given)


def check_environment(env: Mapping[str, str]) -> None:
    """With a network, these are the gateway's to set."""
    for variable in env:
        if why := _reserved(variable):
            raise InvalidVariable(f"env: {variable} is refused with network", hint=why)


def check_inspected(found: Rules, secrets: Mapping[str, Secret]) -> None:
    """Where there are secrets, every rule lets the gateway look into what is sent."""
    if secrets and (opaque := next((rule for rule in found if not rule.inspect), None)):
        raise NetworkRefused(
            f"network: {opaque.hosts[0]!r} has inspect=False, and there are secrets",
            hint="what is not looked into could carry one away; leave out either",
        )


def useful(secrets: Mapping[str, Secret], found: Rules) -> dict[str, Secret]:
    """Those whose host the rules allow over TLS."""
    # By names alone: with many ports there would be many pairs.
    named = _Inside({name for _, name, port in _named(found) if port != PLAIN and name != PACKAGES})
    return {
        variable: secret
        for variable, secret in secrets.items()
        if named.holds(secret.host, PORTS[1])
    }


def _check_way(variable: str, secret: Secret, way: Collection[str], found: Rules) -> None:
    """The rules lead to the secret's host, and nowhere unseen. `way`: for which they do."""
    if variable not in way:
        raise NetworkRefused(
            f"secrets: {variable} is for {secret.host}, which no rule of network allows",
            hint=f'network=Allow("{secret.host}:443")',
        )
    check_inspected(found, {variable: secret})


def _reserved(variable: str) -> str:
    if variable.upper() in RESERVED:
        return "it is how code finds the gateway; what it may reach is said in network"
    return ""


def _named(found: Rules) -> Iterator[tuple[str, str, int]]:
    """(pattern, its name without the port, each port) of all rules."""
    for rule in found:
        for pattern in rule.hosts:
            if pattern == PACKAGES:
                yield pattern, pattern, PORTS[1]
                continue
            name, _, only = pattern.partition(":")
            for port in (int(only),) if only else PORTS:
                yield pattern, name, port


class _Inside:
    """What patterns hold, looked up: callers may ask for many hosts, and operators allow many."""

    def __init__(self, most: Iterable[str]) -> None:
        self._same: set[tuple[str, int]] = set()
        self._below: set[tuple[str, int]] = set()
        for pattern in most:
            if pattern == PACKAGES:
                self._same.add((PACKAGES, PORTS[1]))
                continue
            name, _, only = pattern.partition(":")
            for port in (int(only),) if only else PORTS:
                self._same.add((name, port))
                if name.startswith("*."):
                    self._below.add((name[2:], port))

    def holds(self, name: str, port: int) -> bool:
        """Whether everything that `name` stands for, which may begin with "*.", is among them."""
        if (name, port) in self._same:
            return True
        # "*.example.com" holds a.example.com, *.a.example.com and itself, not example.com.
        above = name.removeprefix("*.")
        while "." in above:
            above = above.partition(".")[2]
            if (above, port) in self._below:
                return True
        return False


def _patterns(setting: str, given: Collection[str] | str) -> tuple[str, ...]:
    try:
        return patterns(given)
    except InvalidRequest as error:
        raise InvalidRequest(f"settings.{setting}: {quote(given)}: {error.message}") from None
