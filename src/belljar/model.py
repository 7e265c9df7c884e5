"""What travels: requests, limits, results. Frozen data, no behaviour beyond turning into JSON.

Plain dataclasses on purpose: this module is on the path of `belljar run`, where importing a
validation library would cost more than starting the sandbox.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from belljar.network import Allow, Egress, Secret

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

Status = Literal["ok", "error", "timeout", "out_of_memory", "killed", "denied"]
FilterMode = Literal["off", "warn", "deny"]
LanguageLevel = Literal["full", "restricted"]
Need = Literal["fastest", "strongest", "files", "network", "any_language", "no_io"]
NEEDS: tuple[str, ...] = get_args(Need)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one run gets (L1-L5). Every field has an operator's maximum in Settings."""

    timeout_s: float = 30.0
    memory_bytes: int = 512 * MIB
    cpus: float = 1.0
    processes: int = 64
    disk_bytes: int = 100 * MIB
    disk_files: int = 10_000
    open_files: int = 1024
    output_bytes: int = 1 * MIB
    """Kept per stream: the first half and the last half; the middle is dropped and counted."""
    result_files: int = 100
    result_bytes: int = 50 * MIB
    """How many files, and how many bytes of them, a result may carry back."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks, as the trail will say it. Front doors fill it in; nothing is decided by it but
    whose share of the builders, and of the disk for sets of packages, a build takes."""

    tenant: str = "local"
    door: str = "library"
    """library, cli, http or mcp"""
    request_id: str = ""
    layers_bytes: int = 0
    """What sets of packages that were built for this tenant may take on disk; 0: no own bound."""


NOBODY = Caller()
"""Who asks without saying who."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One run as the caller asked for it, before policy has looked at it."""

    code: str
    language: str = "python"
    environment: str = "auto"
    engine: str = "auto"
    need: Need | Sequence[Need] = ()
    """What the wall is chosen by when `engine` is "auto"."""
    limits: Limits = field(default_factory=Limits)
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Put into /workspace before the code starts, by relative name."""
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    """Put into /data/input, which the code can read and not change."""
    packages: Sequence[str] = ()
    """Python packages beyond the environment's, each a name with versions."""
    filter: FilterMode = "off"
    language_level: LanguageLevel = "full"
    """"restricted": compiled by RestrictedPython, behind the same wall."""
    fresh_exec: bool = False
    """Run in a newly executed interpreter instead of a fork of the warm one."""
    network: Allow | str | Sequence[Allow | str] = ()
    """Hosts that the code may reach through the gateway (N1); none: no network at all."""
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    """Variable → a credential that the code uses without having it (N2)."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What the run used, seen from outside the wall where the wall allows it (L7)."""

    cpu_ms: float = 0.0
    peak_memory_bytes: int = 0
    peak_processes: int = 0


@dataclass(frozen=True, kw_only=True)
class ErrorInfo:
    """The uncaught Python exception that ended the code, as the code's own process told it."""

    name: str
    message: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file the code left in /workspace or /data/output. `path` is absolute inside the sandbox."""

    path: str
    size: int
    content: bytes | None
    """None when the file was not brought back; `skipped` then says why."""
    skipped: str = ""

    @property
    def name(self) -> str:
        """The path below /workspace or /data/output."""
        for root in ("/workspace/", "/data/output/"):
            if self.path.startswith(root):
                return self.path[len(root) :]
        return self.path.lstrip("/")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One remark of the static filter (P1)."""

    line: int
    rule: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Bytes that were printed but not kept, per stream."""

    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True, kw_only=True)
class Output:
    """Something shown in a kept sandbox: the last expression's value, a picture, a table.

    Inert: texts and bytes by MIME type, as the guest sent them."""

    kind: Literal["display", "result"]
    data: Mapping[str, str | bytes]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended (R1). Never an exception, whatever the code did."""

    status: Status
    exit_code: int | None
    signal: int | None = None
    stdout: str = ""
    stderr: str = ""
    dropped: Dropped = field(default_factory=Dropped)
    error: ErrorInfo | None = None
    files: tuple[OutputFile, ...] = ()
    duration_ms: float = 0.0
    usage: Usage = field(default_factory=Usage)
    execution_id: str = ""
    language: str = ""
    environment: str = ""
    engine: str = ""
    engine_reason: str = ""
    """Why this wall, where Belljar chose it."""
    isolation: Mapping[str, str] = field(default_factory=dict)
    """Control → mechanism that was in force, for example {"memory": "cgroup-v2"}."""
    warnings: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    egress: tuple[Egress, ...] = ()
    """What the code tried to reach (N1), the first hundred; the trail has all."""
    value: str | None = None
    """In a kept sandbox: the last expression, as text."""
    outputs: tuple[Output, ...] = ()
    """In a kept sandbox: what was shown, in order."""
    run_id: int | None = None
    """In a kept sandbox: which run, for going back to before it."""
    state_kept: bool | None = None
    """In a kept sandbox: whether variables are still there after this run."""

    @property
    def success(self) -> bool:
        return self.status == "ok"

    @property
    def timed_out(self) -> bool:
        return self.status == "timeout"

    @property
    def truncated(self) -> bool:
        return bool(self.dropped.stdout or self.dropped.stderr)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; file contents as base64."""
        return self.plain(_base64)

    def plain(self, encoded: Callable[[bytes], Any]) -> dict[str, Any]:
        """As `to_dict`, with another way to write bytes."""
        data: dict[str, Any] = {
            "status": self.status,
            "success": self.success,
            "timed_out": self.timed_out,
            "truncated": self.truncated,
        }
        for item in dataclasses.fields(self):
            if item.name not in ("status", "files", "isolation", "outputs"):
                value = getattr(self, item.name)
                data[item.name] = _plain(value)
        data["isolation"] = dict(self.isolation)
        data["outputs"] = [
            {
                "kind": output.kind,
                "data": {
                    mime: content if isinstance(content, str) else {"base64": encoded(content)}
                    for mime, content in output.data.items()
                },
                "metadata": dict(output.metadata),
            }
            for output in self.outputs
        ]
        data["files"] = [
            {
                "path": file.path,
                "name": file.name,
                "size": file.size,
                "skipped": file.skipped,
                "content_base64": None if file.content is None else encoded(file.content),
            }
            for file in self.files
        ]
        return data

    def to_json(self, *, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
