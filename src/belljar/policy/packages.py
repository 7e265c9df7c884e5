"""Which packages a caller may have (S5): requirement texts, parsed strictly and judged by name.

Pure. A text that passes is rewritten in one canonical form, and only that form goes further: what
reaches the installer was written here, from parts that match one regular expression.

Only what is asked for is judged, not what it depends on. A package that is allowed is allowed to
work, and the list of its dependencies changes with every release; none of them runs anywhere but
inside the sandbox, and the caps on size and time hold for all of them together.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from belljar.errors import PackageRefused
from belljar.policy.known_packages import COMMON, DISTRIBUTIONS, INSTEAD
from belljar.policy.quote import quote
from belljar.settings import Settings

COUNT = 50
CHARACTERS = 200
NAME_CHARACTERS = 100
SHOWN = 5

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = (
    r"(?:[0-9]+!)?[0-9]+(?:\.[0-9]+)*"
    r"(?:[._-]?(?:alpha|a|beta|b|preview|pre|c|rc)[._-]?[0-9]*)?"
    r"(?:-[0-9]+|[._-]?(?:post|rev|r)[._-]?[0-9]*)?"
    r"(?:[._-]?dev[._-]?[0-9]*)?"
    r"(?:\+[a-z0-9]+(?:[._-][a-z0-9]+)*)?"
)
_CLAUSE = rf"(?:(?:==|!=)\ *{_VERSION}\.\*|(?:==|!=|~=|<=|>=|<|>)\ *{_VERSION})"
_REQUIREMENT = re.compile(
    rf"\ *(?P<name>{_NAME})"
    rf"\ *(?:\[\ *(?P<extras>{_NAME}(?:\ *,\ *{_NAME})*)\ *\])?"
    rf"\ *(?P<clauses>{_CLAUSE}(?:\ *,\ *{_CLAUSE})*)?\ *",
    re.IGNORECASE | re.ASCII,
)
_PATTERN = re.compile(r"[a-z0-9*](?:[a-z0-9*-]*[a-z0-9*])?")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_EXAMPLE = 'write a name and versions, for example "humanize", "humanize==4.*" or "rich>=13,<15"'

# What people write that cannot be had, the first that matches: why, and what to write instead.
_FOREIGN: tuple[tuple[str, str, str], ...] = (
    (r".*[^\x20-\x7e]", "contains a character that no requirement has", _EXAMPLE),
    (r"\ *-", "is an option of an installer", "packages are names and versions only"),
    (
        r"(?i:.*(@|://|git\+|\bfile:))",
        "names an address",
        "packages come from the operator's index only, by name",
    ),
    (
        r"(\ *[./~]|.*[/\\]|.*\.(whl|zip|tar\.\w+|txt)\ *$)",
        "is a path",
        "packages come from the operator's index only, by name; send a module of your own as a "
        "file",
    ),
    (
        r".*;",
        "has an environment marker",
        "the Python and the platform are known: leave out what does not apply to them",
    ),
    (r".*===", "compares versions as text", "write == instead of ==="),
)


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One package that was asked for, in normal form."""

    name: str
    extras: tuple[str, ...] = ()
    clauses: tuple[str, ...] = ()

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{','.join(self.clauses)}"


def normal(name: str) -> str:
    """The one spelling of a distribution's name: Ruamel.YAML → ruamel-yaml."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(text: object) -> Requirement:
    """The requirement, or PackageRefused with what is wrong with it."""
    if not isinstance(text, str):
        raise PackageRefused(f"packages: {quote(text)} is not text", hint=_EXAMPLE)
    if not text.strip():
        raise PackageRefused("packages: a name is empty", hint=_EXAMPLE)
    if len(text) > CHARACTERS:
        raise PackageRefused(
            f"packages: {quote(text)} is longer than {CHARACTERS} characters", hint=_EXAMPLE
        )
    match = _REQUIREMENT.fullmatch(text)
    if match is None or len(match["name"]) > NAME_CHARACTERS or _looks_like_a_file(text):
        for pattern, why, instead in _FOREIGN:
            if re.match(pattern, text, re.DOTALL):
                raise PackageRefused(f"packages: {quote(text)} {why}", hint=instead)
        raise PackageRefused(f"packages: {quote(text)} is not a name with versions", hint=_EXAMPLE)
    return Requirement(
        name=normal(match["name"]),
        extras=tuple(sorted({normal(extra) for extra in _parts(match["extras"])})),
        clauses=tuple(sorted({part.lower() for part in _parts(match["clauses"])})),
    )


def _parts(text: str | None) -> list[str]:
    return text.replace(" ", "").split(",") if text else []


def _looks_like_a_file(text: str) -> bool:
    """`x-1.0.whl` could be a name by the rules, and an installer would look for the file first."""
    return text.lower().rstrip().endswith((".whl", ".zip", ".txt", ".toml", ".gz", ".bz2", ".xz"))


def check_packages(
    given: object, settings: Settings, *, provided: Collection[str] = ()
) -> tuple[str, ...]:
    """The canonical texts, sorted, or PackageRefused. `provided` is what the environment has
    anyway, by any spelling: it may be asked for, whatever the operator's list says."""
    requirements = parse_all(given)
    there = {normal(name) for name in provided}
    for requirement in requirements:
        if requirement.name not in there and not allowed(requirement.name, settings):
            raise PackageRefused(
                f"packages: {requirement.name} is not allowed here",
                hint=_instead(requirement.name, settings),
            )
    return tuple(str(requirement) for requirement in requirements)


def parse_all(given: object) -> tuple[Requirement, ...]:
    """Each once, in the order of their texts: equal sets are equal. Judges no names."""
    if isinstance(given, str):
        raise PackageRefused(
            "packages: must be a list, not one text", hint=f"write packages=[{quote(given)}]"
        )
    if not isinstance(given, Sequence | set | frozenset) or isinstance(given, bytes | bytearray):
        raise PackageRefused(f"packages: must be a list, not {quote(given)}")
    if len(given) > COUNT:
        raise PackageRefused(f"packages: {len(given)} are more than {COUNT}")
    return tuple(sorted({parse(text) for text in given}, key=str))


def allowed(name: str, settings: Settings) -> bool:
    """Whether the operator lets callers have it; `name` is in normal form."""
    names, patterns = _list(settings)
    return name in names or any(fnmatchcase(name, pattern) for pattern in patterns)


def _list(settings: Settings) -> tuple[set[str], list[str]]:
    """The names and the patterns of the operator's list."""
    given = settings.packages_allowed
    if given == "any":
        return set(), ["*"]
    names: set[str] = set()
    patterns: list[str] = []
    for entry in given:
        text = normal(entry) if isinstance(entry, str) else ""
        if entry == ":common:":
            names |= COMMON
        elif not _PATTERN.fullmatch(text):
            raise PackageRefused(
                f"settings.packages_allowed: {quote(entry)} is neither a name nor a pattern",
                hint='names, patterns such as "types-*", or ":common:"; versions are not limited '
                "here",
            )
        elif "*" in text:
            patterns.append(text)
        else:
            names.add(text)
    return names, patterns


def _instead(name: str, settings: Settings) -> str:
    """What could be had in place of a name that was refused."""
    if name.replace("-", "_") in sys.stdlib_module_names:
        return f"{name} is part of Python's standard library: import it without asking for it"
    if allowed(other := INSTEAD.get(name, name), settings):
        return f"ask for {other}"
    names, patterns = _list(settings)
    if not names and not patterns:
        return "the operator allows no packages; the setting packages_allowed decides"
    from difflib import get_close_matches  # only when somebody asked for something else

    near = get_close_matches(name, sorted(names), n=SHOWN, cutoff=0.7)
    if near:
        return f"did you mean {' or '.join(near)}? The operator's setting packages_allowed decides"
    shown = [*patterns[:SHOWN], *sorted(names)]
    more = f" and {len(shown) - 2 * SHOWN} more" if len(shown) > 2 * SHOWN else ""
    listed = ", ".join(shown[: 2 * SHOWN])
    return f"allowed are {listed}{more}; the operator's setting packages_allowed decides"


def hint_for(module_name: str, settings: Settings) -> str | None:
    """What to ask for when the code failed to import this module, if that is known and allowed.

    Only packages that somebody listed are suggested: the module's name comes from the code, and a
    name that was mistyped or made up may well belong to a stranger's package.
    """
    top = module_name[:NAME_CHARACTERS].partition(".")[0]
    if not _MODULE.fullmatch(top) or top in sys.stdlib_module_names:
        return None
    name = DISTRIBUTIONS.get(top) or normal(top)
    names, _ = _list(settings)
    known = name in COMMON or top in DISTRIBUTIONS
    if name in names or (known and allowed(name, settings)):
        return f"{top} can be had with packages=[{name!r}]"
    return None
