"""The static filter (P1), host side: its rules, and the two ends of the analysis.

A filter, never a wall: it spares a sandbox to code that says openly what it is up to, and tells
an author early. What it misses, the wall contains. The host never parses the code: `analyse.py`
does, behind a wall of its own, because a parser given hostile source may crash or never end.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from belljar.errors import InvalidRequest
from belljar.model import MIB, FilterMode, Finding, Limits
from belljar.policy.quote import quote

Kind = Literal["module", "call", "attribute"]
KINDS: tuple[Kind, ...] = ("module", "call", "attribute")

LIMITS = Limits(timeout_s=10.0, memory_bytes=512 * MIB, processes=16, output_bytes=1 * MIB)
"""What the analysis itself gets. Ordinary code takes milliseconds; what does not end is refused."""

MODULES_BYTES = 1 * MIB
"""Python files that come along are read too, up to this much in all."""

_STDOUT_CHARACTERS = 256 * 1024
_FINDINGS = 200
_TEXT_CHARACTERS = 500


@dataclass(frozen=True)
class Rule:
    """One thing that is blocked. A trailing * in a call stands for any ending."""

    kind: Kind
    name: str
    why: str


def _rows(kind: Kind, why: str, names: str) -> tuple[Rule, ...]:
    return tuple(Rule(kind, name, why) for name in names.split())


DEFAULT_BLOCKED: tuple[Rule, ...] = (
    *_rows("module", "starts other programs", "subprocess _posixsubprocess pty posix"),
    *_rows("module", "reaches memory and native code directly", "ctypes _ctypes cffi"),
    *_rows("module", "opens network connections", "socket _socket socketserver"),
    *_rows(
        "module",
        "runs code that the filter does not see",
        "code codeop imp runpy zipimport",
    ),
    *_rows("call", "runs text as code", "eval exec compile"),
    *_rows(
        "call",
        "imports by a name made up at run time",
        "__import__ importlib.__import__",
    ),
    *_rows(
        "call",
        "loads code that the filter does not see",
        "importlib.machinery.* importlib.util.spec_from_* importlib.util.module_from_spec "
        "marshal.load*",
    ),
    *_rows("call", "opens a debugger", "breakpoint"),
    *_rows(
        "call",
        "starts other programs",
        "os.system os.popen os.exec* os.spawn* os.posix_spawn* os.fork* subprocess.* pty.spawn "
        "asyncio.create_subprocess_*",
    ),
    *_rows("call", "signals other processes", "os.kill os.killpg os.pidfd_open"),
    *_rows(
        "call",
        "changes what the process is",
        "os.chroot os.setuid os.setgid os.setgroups os.setre* os.setns os.unshare "
        "resource.setrlimit resource.prlimit",
    ),
    *_rows("call", "reaches memory and native code directly", "ctypes.*"),
    *_rows(
        "call",
        "builds functions from raw bytecode",
        "types.CodeType types.FunctionType",
    ),
    *_rows("call", "hands out modules by name", "sys.modules"),
    *_rows("call", "changes how imports work", "sys.meta_path sys.path_hooks"),
    *_rows(
        "call",
        "walks the interpreter's frames and objects",
        "sys._getframe sys._current_frames sys.settrace sys.setprofile inspect.currentframe "
        "inspect.stack gc.get_objects gc.get_referrers gc.get_referents",
    ),
    *_rows(
        "attribute",
        "walks from any object to every class",
        "__subclasses__ __bases__ __base__ __mro__ mro",
    ),
    *_rows(
        "attribute",
        "reaches the names of other code",
        "__globals__ __builtins__ __closure__ __code__ __self__ __loader__",
    ),
    *_rows(
        "attribute",
        "goes round attribute rules",
        "__getattribute__ __reduce__ __reduce_ex__",
    ),
    *_rows(
        "attribute",
        "walks the interpreter's frames",
        "f_back f_globals f_locals f_builtins f_code tb_frame gi_frame gi_code cr_frame cr_code "
        "ag_frame ag_code",
    ),
)
DEFAULT_PATHS: tuple[str, ...] = ("/workspace", "/tmp", "/data", "/dev/null")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the filter remarks on."""

    blocked: tuple[Rule, ...] = DEFAULT_BLOCKED
    allowed_modules: frozenset[str] | None = None
    """If set, every other module is blocked; "a" allows "a.b" as well."""
    allowed_paths: tuple[str, ...] | None = DEFAULT_PATHS
    """Absolute paths, written out in the code, that `open` may be given; None: any."""
    dynamic: bool = True
    """Remark on imports and on attributes of sensitive modules whose name is computed."""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Rules:
        """Rules from plain data, for example a table of a configuration file.

        Keys: `allowed_modules`, `allowed_paths`, `dynamic`, `block` and `unblock`. `block` holds
        {"kind", "name", "why"}; `unblock` names rows of the default table.
        """
        wrong = set(given) - {
            "allowed_modules",
            "allowed_paths",
            "dynamic",
            "block",
            "unblock",
        }
        if wrong:
            raise InvalidRequest(f"filter rules: {quote(min(wrong, key=str))} is unknown")
        unblock = frozenset(_texts("unblock", given.get("unblock", ())))
        if missing := unblock - {rule.name for rule in DEFAULT_BLOCKED}:
            raise InvalidRequest(f"filter rules: unblock: {quote(min(missing))} is not blocked")
        added = tuple(_rule(row) for row in _items("block", given.get("block", ())))
        modules, paths = (
            given.get("allowed_modules"),
            given.get("allowed_paths", DEFAULT_PATHS),
        )
        dynamic = given.get("dynamic", True)
        if not isinstance(dynamic, bool):
            raise InvalidRequest(
                f"filter rules: dynamic must be True or False, not {quote(dynamic)}"
            )
        return cls(
            blocked=tuple(rule for rule in DEFAULT_BLOCKED if rule.name not in unblock) + added,
            allowed_modules=None
            if modules is None
            else frozenset(_texts("allowed_modules", modules)),
            allowed_paths=None if paths is None else _texts("allowed_paths", paths),
            dynamic=dynamic,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "blocked": [[rule.kind, rule.name, rule.why] for rule in self.blocked],
            "allowed_modules": None
            if self.allowed_modules is None
            else sorted(self.allowed_modules),
            "allowed_paths": self.allowed_paths,
            "dynamic": self.dynamic,
        }


DEFAULT_RULES = Rules()


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What the analysis said. A syntax error is no finding: the code will say so itself."""

    findings: tuple[Finding, ...] = ()
    unparsable: str = ""
    """Why there is no analysis (a crash, a time-out, nonsense); empty when there is one."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to do about an analysis in one mode."""

    denied: bool = False
    findings: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why the code was denied, a line for each finding; empty if it was not."""
        return "".join(f"{line}\n" for line in _lines(self.findings)) if self.denied else ""


@cache
def script() -> str:
    """The program to run in a base sandbox, with `request_stdin` as its standard input."""
    return Path(__file__).with_name("analyse.py").read_text(encoding="utf-8")


def request_stdin(
    source: str,
    rules: Rules = DEFAULT_RULES,
    *,
    files: Mapping[str, bytes] | None = None,
) -> bytes:
    """The analysis to make: the code, and the Python files that come along with it."""
    modules: dict[str, str | None] = {}
    room = MODULES_BYTES
    for name, content in (files or {}).items():
        if name.endswith(".py"):
            room -= len(content)
            modules[name] = base64.b64encode(content).decode() if room >= 0 else None
        elif name.endswith((".pyc", ".so")):
            modules[name] = None
    return json.dumps({"source": source, "rules": rules.to_dict(), "files": modules}).encode()


def parse(stdout: str) -> Analysis:
    """What `script` printed, read strictly: anything but a well-formed answer is no analysis."""
    if len(stdout) > _STDOUT_CHARACTERS:
        return Analysis(unparsable="the analysis answered too much")
    try:
        answer = json.loads(stdout)
        findings, unparsable = (answer.pop(key) for key in ("findings", "unparsable"))
        if answer or len(findings) > _FINDINGS or not isinstance(findings, list):
            raise ValueError
        return Analysis(
            findings=tuple(_finding(row) for row in findings),
            unparsable="" if unparsable is None else _text(unparsable),
        )
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return Analysis(unparsable="the analysis gave no answer (it crashed or took too long)")


def judge(analysis: Analysis, mode: FilterMode) -> Verdict:
    """Fail closed: in deny mode, code that could not be analysed is denied."""
    findings = analysis.findings
    if analysis.unparsable:
        message = f"could not be analysed: {analysis.unparsable}"
        findings = (*findings, Finding(line=0, rule="unparsable", message=message))
    if mode == "deny":
        return Verdict(denied=bool(findings), findings=findings)
    if mode == "warn":
        return Verdict(findings=findings, warnings=_lines(findings))
    return Verdict()


def _lines(findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(
        f"filter: line {item.line}: {item.message}" if item.line else f"filter: {item.message}"
        for item in findings
    )


def _finding(row: object) -> Finding:
    if not isinstance(row, dict) or set(row) != {"line", "rule", "message"}:
        raise ValueError
    line = row["line"]
    if not isinstance(line, int) or isinstance(line, bool) or not 0 <= line < 2**31:
        raise ValueError
    return Finding(line=line, rule=_text(row["rule"]), message=_text(row["message"]))


def _text(value: object) -> str:
    """Printable text of a bounded length; it will be shown to people and to models."""
    if not isinstance(value, str) or not 0 < len(value) <= _TEXT_CHARACTERS:
        raise ValueError
    return "".join(c if c.isprintable() else "?" for c in value)


def _items(key: str, value: object) -> tuple[object, ...]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidRequest(f"filter rules: {key} must be a list, not {quote(value)}")
    return tuple(value)


def _texts(key: str, value: object) -> tuple[str, ...]:
    texts = []
    for item in _items(key, value):
        if not isinstance(item, str) or not item:
            raise InvalidRequest(f"filter rules: {key}: {quote(item)} is not a name")
        texts.append(item)
    return tuple(texts)


def _rule(row: object) -> Rule:
    if not isinstance(row, Mapping) or set(row) != {"kind", "name", "why"}:
        raise InvalidRequest("filter rules: block: each row has kind, name and why")
    kind, name, why = _texts("block", [row["kind"], row["name"], row["why"]])
    for known in KINDS:
        if kind == known:
            return Rule(known, name, why)
    raise InvalidRequest(
        f"filter rules: block: kind {quote(kind)} is unknown",
        hint=f"one of {', '.join(KINDS)}",
    )
