"""What the rules of a sandbox say to a connection or a request. Pure.

Rules come from callers and are asked about by code, each of whom may be hostile: they are sorted by
host once, and no pattern is matched by trying again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from belljar.network import PACKAGES, PORTS, Allow, Rules

LONGEST_PATH = 4_096
"""Where rules are about paths; a longer one is refused."""


@dataclass(frozen=True, kw_only=True)
class Permission:
    """What the rules say to one connection or request."""

    rule: str
    """The pattern that allows it; empty: none does."""
    why: str = ""
    """Why not, in words that the author of the code can act on."""
    inspect: bool = True
    has_paths: bool = False
    """Whether any rule for this host is about paths."""


class _Named(NamedTuple):
    """One host of one rule. They sort as the rules were given."""

    rule_number: int
    host_number: int
    pattern: str
    ports: tuple[int, ...]


class Judge:
    """Rules, ready to be asked."""

    def __init__(self, given: Rules) -> None:
        self.rules = given
        self._paths = [[pattern.split("*") for pattern in rule.paths] for rule in given]
        self._exact: dict[str, list[_Named]] = {}
        self._below: dict[str, list[_Named]] = {}
        for rule_number, rule in enumerate(given):
            for host_number, pattern in enumerate(rule.hosts):
                if pattern == PACKAGES:
                    continue  # policy puts names in its place
                name, _, only = pattern.partition(":")
                ports = (int(only),) if only else PORTS
                places = self._below if name.startswith("*.") else self._exact
                named = _Named(rule_number, host_number, pattern, ports)
                places.setdefault(name.removeprefix("*."), []).append(named)

    def permission(
        self, host: str, port: int, method: str | None = None, path: str | None = None
    ) -> Permission:
        """`method` and `path` are None as long as they are not known: before TLS is opened."""
        found = self._naming(host)
        naming: dict[int, str] = {}
        for one in found:
            if port in one.ports:
                naming.setdefault(one.rule_number, one.pattern)
        if not naming:
            return Permission(rule="", why=_unnamed(found, host, port))
        rules = [self.rules[number] for number in naming]
        inspect = all(rule.inspect for rule in rules)
        has_paths = any(rule.paths for rule in rules)
        if path is not None and has_paths and len(path) > LONGEST_PATH:
            why = f"the path has more than {LONGEST_PATH:,} characters, and a rule has paths"
            return Permission(rule="", why=why)
        for number, pattern in naming.items():
            rule = self.rules[number]
            if method is not None and rule.methods and method not in rule.methods:
                continue
            paths = self._paths[number] if path is not None else ()
            if paths and not any(matches(path or "", parts) for parts in paths):
                continue
            return Permission(rule=pattern, inspect=inspect, has_paths=has_paths)
        return Permission(rule="", why=_unfit(rules, host, method, path))

    def _naming(self, host: str) -> list[_Named]:
        """In the order of the rules."""
        found = list(self._exact.get(host, ()))
        above = host
        while "." in above:
            above = above.partition(".")[2]
            found += self._below.get(above, ())
        return sorted(found)


def matches(path: str, parts: Sequence[str]) -> bool:
    """Whether a path fits a pattern that was split at its stars. Each part between two stars is
    taken where it comes first: none that comes later could leave more for those behind it."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return path == first
    at, end = len(first), len(path) - len(last)
    if at > end or not path.startswith(first) or not path.endswith(last):
        return False
    for part in parts[1:-1]:
        at = path.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _unnamed(found: Sequence[_Named], host: str, port: int) -> str:
    if ports := sorted({each for one in found for each in one.ports}):
        return f"{host} is allowed on port {', '.join(map(str, ports[:20]))}, not {port}"
    return f"no rule allows {host}:{port}; ask for network access to {host!r}"


def _unfit(rules: Sequence[Allow], host: str, method: str | None, path: str | None) -> str:
    methods = sorted({one for rule in rules for one in rule.methods})
    paths = sorted({one for rule in rules for one in rule.paths})
    parts = [f"methods {', '.join(methods[:20])}"] if methods else []
    parts += [f"paths {', '.join(one[:100] for one in paths[:10])}"] if paths else []
    what = method if path is None else f"{method} of this path"  # it is told beside this
    return f"{what} at {host} is not allowed, only {' and '.join(parts)}"
