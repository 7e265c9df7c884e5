"""Environment variables a caller may set (R4), and the table of those it may not.

The line drawn: a variable is refused when it would change how Belljar's own steps run (the
loader, an interpreter's start, a compiler, the names Belljar sets itself), or when it could only
be ignored. What reaches nothing but the caller's program (HOME, TMPDIR, TZ, LANG, NODE_ENV,
GOMAXPROCS, API keys …) is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from belljar.errors import InvalidVariable
from belljar.policy.quote import quote

COUNT = 128
TOTAL_BYTES = 64 * 1024

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HASH_SEED_MAXIMUM = 2**32 - 1


@dataclass(frozen=True)
class Refused:
    """One row: the names (a trailing * is a prefix, in any case of letters) and the reason."""

    names: str
    why: str


REFUSED: tuple[Refused, ...] = (
    Refused("LD_*", "the dynamic loader would load other libraries into every program"),
    Refused(
        "GLIBC_TUNABLES GCONV_PATH GETCONF_DIR LOCPATH NLSPATH NIS_PATH TZDIR MALLOC_*",
        "the C library reads it in every program, Belljar's own steps too; glibc drops it from "
        "privileged programs for the same reason",
    ),
    Refused(
        "HOSTALIASES LOCALDOMAIN RES_OPTIONS RESOLV_*",
        "name resolution is the sandbox's to decide",
    ),
    Refused(
        "PYTHON*",
        "it changes how an interpreter starts and which modules it finds; set sys.path or the "
        "like in the code",
    ),
    Refused(
        "NODE_OPTIONS NODE_PATH NODE_EXTRA_CA_CERTS NODE_ICU_DATA NODE_COMPILE_CACHE "
        "NODE_V8_COVERAGE NODE_REDIRECT_WARNINGS NODE_CHANNEL_FD NODE_CHANNEL_SERIALIZATION_MODE "
        "NODE_UNIQUE_ID",
        "it changes how Node starts, before the code is read",
    ),
    Refused(
        "OPENSSL_*",
        "OpenSSL would load other libraries and settings when a runtime starts",
    ),
    Refused(
        "BASH_* SHELLOPTS BASHOPTS PS4",
        "bash would run or switch something before the script; use `set` or `source` in it",
    ),
    Refused("IFS", "shells ignore it from outside; set it in the script"),
    Refused(
        "GOFLAGS GOENV GOROOT GOPATH GOBIN GOTOOLDIR GOTOOLCHAIN GOCACHE GOCACHEPROG GOMODCACHE "
        "GOTMPDIR GOWORK GOPROXY GONOPROXY GOPRIVATE GOINSECURE GOSUMDB GONOSUMDB GOVCS GOAUTH "
        "GO111MODULE GOOS GOARCH GOAMD64 GOARM GOARM64 GOEXPERIMENT GOFIPS140 GODEBUG",
        "it changes how the Go compiler builds; for GODEBUG write a //go:debug line in the code",
    ),
    Refused("CC CXX PKG_CONFIG CGO_*", "it names the commands that the Go compiler runs"),
    Refused(
        "GIT_SSH* GIT_CONFIG* GIT_EXEC_PATH GIT_EXTERNAL_DIFF GIT_PROXY_COMMAND GIT_ASKPASS",
        "git, which build tools call, would run another program",
    ),
    Refused("PATH", "Belljar sets it to what the sandbox has; extend it in the code"),
    Refused("BELLJAR_*", "the name is Belljar's own"),
)

# Exceptions to PYTHON*: they change buffering and .pyc files, nothing else.
HARMLESS: frozenset[str] = frozenset({"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"})

_EXACT: dict[str, str] = {}
_PREFIXES: list[tuple[str, str]] = []
for _row in REFUSED:
    for _pattern in _row.names.split():
        if _pattern.endswith("*"):
            _PREFIXES.append((_pattern[:-1], _row.why))
        else:
            _EXACT[_pattern] = _row.why
_STARTS = tuple(prefix for prefix, _ in _PREFIXES)


def check_variables(env: object, *, language: str, fresh_exec: bool) -> dict[str, str]:
    """A copy of the variables, or InvalidVariable with the name and the reason."""
    if not isinstance(env, Mapping):
        raise InvalidVariable(f"env: must map names to text, not {quote(env)}")
    if len(env) > COUNT:
        raise InvalidVariable(f"env: {len(env)} variables are more than {COUNT}")
    checked: dict[str, str] = {}
    total = 0
    for name, value in env.items():
        _check_name(name)
        if name == "PYTHONHASHSEED":
            _check_hash_seed(value, usable=fresh_exec or language != "python")
        elif why := refusal(name):
            raise InvalidVariable(f"env: {name} is refused", hint=why)
        total += len(name) + _value_bytes(name, value) + 2
        checked[name] = value
    if total > TOTAL_BYTES:
        raise InvalidVariable(
            f"env: {total} bytes are more than {TOTAL_BYTES}",
            hint="send large values as files",
        )
    return checked


def refusal(name: str) -> str:
    """Why this variable is refused, or nothing."""
    if name in HARMLESS:
        return ""
    upper = name.upper()
    if upper.startswith(_STARTS):
        return next(why for prefix, why in _PREFIXES if upper.startswith(prefix))
    return _EXACT.get(name, "")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidVariable(
            f"env: {quote(name)} is not a variable name",
            hint="letters, digits and underscores, not starting with a digit",
        )


def _value_bytes(name: str, value: object) -> int:
    if not isinstance(value, str):
        raise InvalidVariable(f"env: {quote(name)} must be text, not {quote(value)}")
    if "\0" in value:
        raise InvalidVariable(f"env: the value of {quote(name)} contains a NUL byte")
    if len(value) > TOTAL_BYTES:
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise InvalidVariable(
            f"env: the value of {quote(name)} is not valid Unicode (a lone surrogate)"
        ) from None


def _check_hash_seed(value: object, *, usable: bool) -> None:
    if not usable:
        raise InvalidVariable(
            "env: PYTHONHASHSEED is refused",
            hint="a forked interpreter has its hash seed already; ask for fresh_exec",
        )
    # Python ends with a fatal error on anything else, before the code is read.
    if value == "random":
        return
    digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10
    if not digits or int(str(value)) > _HASH_SEED_MAXIMUM:
        raise InvalidVariable(
            f"env: PYTHONHASHSEED is {quote(value)}",
            hint=f'give "random" or a number up to {_HASH_SEED_MAXIMUM}',
        )
