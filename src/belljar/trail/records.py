"""What a line of the trail says, and its one way to be written. Pure.

Everything a caller gave is data here, whatever it is: a name of 100 KB, a lone surrogate, a number
that is none. A line is written before policy has looked at the request.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from belljar.model import Caller, Limits, Request, Result, Usage
from belljar.network import Allow, Egress, Secret

GENESIS = "0" * 64
"""What the first line follows."""
NAME_CHARACTERS = 128
PATH_CHARACTERS = 4096
MOST_FILES = 1000
"""Listed one by one; of the rest the number and one hash of all are kept."""
NAMES_BYTES = 32 * 1024
"""The same for all names of a list together, as they are written."""

SHORT_BYTES = 1024
"""A line that is no longer is never cut."""
_SMALL_BYTES = 100
_KEPT = frozenset(
    {"kind", "id", "time", "tenant", "status", "attempt", "owner", "action", "host", "method"}
)

_LIMITS = tuple(item.name for item in fields(Limits))
_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
).encode


def canonical(content: Mapping[str, Any]) -> str:
    """Sorted, without blanks, ASCII only: one content is one text, and any database can hold it."""
    return _encode(content)


def chained(previous: str, body: str) -> str:
    """The hash of a line: of the one before, and of what this one says."""
    return hashlib.sha256(bytes.fromhex(previous) + body.encode("ascii")).hexdigest()


def now() -> str:
    return stamp(datetime.now(UTC))


def stamp(when: datetime) -> str:
    """Of one length, so that texts sort as times do."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def column(value: str) -> str:
    """A text as a database column can hold it: NUL and surrogates escaped as in JSON."""
    return json.dumps(value)[1:-1]


# -- what comes from outside -----------------------------------------------------------------------


def text(value: object, most: int = NAME_CHARACTERS) -> str | None:
    """A name as it was given. One that is too long is cut, with the hash of the whole."""
    if value is None:
        return None
    if not isinstance(value, str):
        return f"<{type(value).__name__}>"
    if len(value) <= most:
        return value
    return f"{value[:most]}… sha256:{sha256(value)}"


def number(value: object) -> int | float | str | None:
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return value if abs(value) < 1 << 63 else "too large"
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    return f"<{type(value).__name__}>"


def plain(value: object) -> Any:
    """Anything, as JSON can hold it."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value[:MOST_FILES]]
    return text(value) if isinstance(value, str) else number(value)


def sha256(content: str | bytes) -> str:
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()


def size(request: Request, *, hashed: bool = True) -> int:
    """What hashing a request's contents will read, about; to decide on which thread. `hashed`: as
    that of `asked`."""
    code = len(request.code) if isinstance(request.code, str) else 0
    return code + sum(
        len(content) if hashed else len(str(name))
        for given in (request.files, request.inputs)
        if isinstance(given, Mapping)
        for name, content in given.items()
        if isinstance(content, (str, bytes))
    )


def cut(content: Mapping[str, Any]) -> dict[str, Any]:
    """The small fields of a line, and one hash of all of them: whoever has what was asked can still
    show that it was this. A short line stays as it is."""
    whole = canonical(content)
    if len(whole) <= SHORT_BYTES:
        return dict(content)
    small = {
        name: value
        for name, value in content.items()
        if name in _KEPT or len(_encode(value)) <= _SMALL_BYTES
    }
    return {**small, "cut": {"bytes": len(whole), "sha256": sha256(whole)}}


def listed(items: Iterable[tuple[object, object, object]]) -> dict[str, Any]:
    """(name, size, sha256 or None) of files; a long list as its head and a hash of its rest."""
    entries = [
        {"name": text(name, PATH_CHARACTERS), "size": number(bytes_), "sha256": digest}
        for name, bytes_, digest in items
    ]
    count = _fitting(entry["name"] for entry in entries)
    head, rest = entries[:count], entries[count:]
    found: dict[str, Any] = {"listed": head}
    if rest:
        found["more"] = {"count": len(rest), "sha256": sha256(_encode(rest))}
    return found


def _fitting(names: Iterable[object]) -> int:
    """How many of them are written out."""
    room, count = NAMES_BYTES, 0
    for name in names:
        room -= len(_encode(name))
        if room < 0 or count >= MOST_FILES:
            break
        count += 1
    return count


def contents(given: object, *, hashed: bool = True) -> dict[str, Any]:
    """Files by name, as a caller gives them."""
    if not isinstance(given, Mapping):
        return {"listed": []}
    return listed(
        (name, len(content), sha256(content) if hashed else None)
        if isinstance(content, (str, bytes))
        else (name, None, None)
        for name, content in given.items()
    )


def rules(given: object) -> list[Any]:
    """What the network was asked for, as far as it fits; of the rest the number."""
    many = given if isinstance(given, (list, tuple)) else (given,)
    told = [_rule(item) for item in many[:MOST_FILES]]
    count = _fitting(told)
    return told[:count] + ([{"more": len(many) - count}] if count < len(many) else [])


def _rule(given: object) -> Any:
    if not isinstance(given, Allow):
        return plain(given)
    data = given.to_dict()
    kept = {name: value for name, value in data.items() if value not in ([], True)}
    return {name: plain(value) for name, value in kept.items()}


def secrets(given: Mapping[Any, Any]) -> dict[str, str | None]:
    """Variable → host; never what they are, nor where they were read."""
    return {
        text(name) or "": secret.host if isinstance(secret, Secret) else None
        for name, secret in list(given.items())[:100]
    }


# -- lines -----------------------------------------------------------------------------------------


def asked(
    action: str,
    request: Request,
    caller: Caller,
    *,
    most_text: int = 0,
    hashed: bool = True,
    argv: object = None,
    **more: Any,
) -> dict[str, Any]:
    """An attempt. `most_text`: the longest code whose text is kept, 0 for none. `hashed`: with the
    hashes of files, too. Never variables: their values are often secrets."""
    line: dict[str, Any] = {
        "action": action,
        "tenant": text(caller.tenant),
        "door": text(caller.door),
        "request_id": text(caller.request_id),
        "language": text(request.language),
        "environment": text(request.environment),
        "engine": text(request.engine),
        "limits": {name: number(getattr(request.limits, name, None)) for name in _LIMITS},
        "files": contents(request.files, hashed=hashed),
        "inputs": contents(request.inputs, hashed=hashed),
        "filter": text(request.filter),
        "language_level": text(request.language_level),
        **{name: plain(value) for name, value in more.items() if value not in ("", None)},
    }
    if isinstance(request.stdin, (str, bytes)):
        line["stdin_bytes"] = len(request.stdin)
    if request.packages and isinstance(request.packages, (list, tuple)):
        line["packages"] = [text(item) for item in request.packages[:100]]
    if request.network:
        line["network"] = rules(request.network)
    if request.secrets and isinstance(request.secrets, Mapping):
        line["secrets"] = secrets(request.secrets)
    if isinstance(need := request.need, (str, list, tuple)):
        line["need"] = [text(item) for item in ((need,) if isinstance(need, str) else need[:32])]
    code: object = request.code
    if argv is not None:
        words = argv if isinstance(argv, (list, tuple)) else (argv,)
        texts = [word if isinstance(word, str) else text(word) or "" for word in words]
        line["argv_sha256"] = sha256("\0".join(texts))
        if most_text:
            shown = [text(word, PATH_CHARACTERS) for word in texts[:MOST_FILES]]
            line["argv"] = shown[: _fitting(shown)]
    elif isinstance(code, str) and (code or action == "run"):
        line["code_sha256"] = sha256(code)
        line["code_bytes"] = len(code.encode("utf-8", "surrogatepass"))
        if line["code_bytes"] <= most_text:
            line["code"] = code
    return line


def answered(result: Result) -> dict[str, Any]:
    """The end of something that has a result: what the caller is told, as it is told."""
    line: dict[str, Any] = {
        "status": result.status,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "engine": result.engine,
        "environment": result.environment,
        "isolation": {text(name): text(how) for name, how in result.isolation.items()},
        "usage": used(result.usage),
        "duration_ms": number(round(result.duration_ms, 3)),
        "stdout_sha256": sha256(result.stdout) if result.stdout else None,
        "stderr_sha256": sha256(result.stderr) if result.stderr else None,
        "files": listed(
            (file.path, file.size, None if file.content is None else sha256(file.content))
            for file in result.files
        ),
        "egress": len(result.egress),
    }
    if result.findings:
        line["findings"] = [
            {"line": number(finding.line), "rule": text(finding.rule)}
            for finding in result.findings[:100]
        ]
    if result.run_id is not None:
        line["run_id"] = result.run_id
    return line


def tried(egress: Egress, **more: Any) -> dict[str, Any]:
    """One attempt to reach something (N1). The host is the code's word until a rule named it."""
    line: dict[str, Any] = {"status": text(egress.verdict, 16)}
    for item in fields(Egress):
        value = getattr(egress, item.name)
        if item.name != "verdict" and value not in ("", 0):
            name = "http_status" if item.name == "status" else item.name
            line[name] = text(value, 1000) if isinstance(value, str) else number(value)
    return line | {name: plain(value) for name, value in more.items() if value}


def used(usage: Usage) -> dict[str, Any]:
    return {
        "cpu_ms": number(round(usage.cpu_ms, 3)),
        "peak_memory_bytes": number(usage.peak_memory_bytes),
        "peak_processes": number(usage.peak_processes),
    }


def ended(status: str, **more: Any) -> dict[str, Any]:
    """The end of something that has no result."""
    return {"status": status, **{name: plain(value) for name, value in more.items() if value}}
