"""What travels over HTTP: FastAPI checks requests by these models, and describes both."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from belljar.model import FilterMode, LanguageLevel, Need, Status
from belljar.server.schemas_network import EgressOfRun, Rules, Secrets, rules, secrets
from belljar.server.strict import Bytes, Contents, Packages, Strict, Variables, content


class _Answer(BaseModel):
    pass


Text = Annotated[str, Field(max_length=64)]


class ExecuteRequest(Strict):
    """One piece of code for a fresh sandbox (A3)."""

    code: str = Field(description="At most 100,000 bytes of UTF-8.", examples=["print(6 * 7)"])
    language: Text = Field("python", examples=["python", "bash"])
    timeout: float | None = Field(
        None, description="Seconds; 30 if not given, 120 at most.", examples=[5]
    )
    allow_network: bool = Field(
        False, description="Whether the code may reach hosts: those of allowed_domains."
    )
    allowed_domains: Annotated[
        list[Annotated[str, Field(max_length=300)]], Field(fail_fast=True)
    ] = Field(
        default_factory=list,
        max_length=100,
        description="With allow_network; if empty, all that the operator allows by name.",
        examples=[[]],
    )
    env_vars: Variables = Field(default_factory=dict, examples=[{"GREETING": "hello"}])


class ExecuteAnswer(_Answer):
    success: bool
    exit_code: int | None = Field(description="null if the code was killed.")
    output: str = Field(description="Standard output.")
    error: str = Field(description="Standard error, and why the code was cut short if it was.")
    duration_ms: float
    execution_id: str


class RunRequest(Strict):
    """As `belljar.run`: the same names, the same meaning."""

    code: str = Field(description="At most 100,000 bytes of UTF-8.", examples=["print(6 * 7)"])
    language: Text = Field("python", examples=["python", "bash"])
    environment: Text = Field("auto", examples=["auto", "base"])
    engine: Text = Field("auto", examples=["auto", "jail"])
    need: Annotated[list[Need], Field(fail_fast=True)] = Field(default_factory=list, max_length=16)
    timeout_s: float | None = Field(None, examples=[5])
    memory_bytes: int | None = Field(None, examples=[536870912])
    cpus: float | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    disk_files: int | None = None
    open_files: int | None = None
    output_bytes: int | None = None
    result_files: int | None = None
    result_bytes: int | None = None
    stdin: str | Bytes = ""
    env: Variables = Field(default_factory=dict)
    files: Contents = Field(
        default_factory=dict, description="Put into /workspace, by relative name."
    )
    inputs: Contents = Field(default_factory=dict, description="Put into /data/input, read-only.")
    network: Rules = Field(default_factory=list)
    secrets: Secrets = Field(default_factory=dict)
    packages: Packages = Field(default_factory=list)
    filter: FilterMode = "off"
    language_level: LanguageLevel = "full"
    fresh_exec: bool = False

    def options(self) -> dict[str, Any]:
        """Keywords for `Belljar.run`: what was given, nothing else."""
        given = {name: getattr(self, name) for name in self.model_fields_set if name != "code"}
        for name in ("files", "inputs"):
            if name in given:
                given[name] = {path: content(value) for path, value in given[name].items()}
        if "stdin" in given:
            given["stdin"] = content(given["stdin"])
        return given | network_options(given)


def network_options(given: dict[str, Any]) -> dict[str, Any]:
    """`network` and `secrets` as the library has them, if they were given."""
    found: dict[str, Any] = {}
    if "network" in given:
        found["network"] = rules(given["network"])
    if "secrets" in given:
        found["secrets"] = secrets(given["secrets"])
    return found


class UsageOfRun(_Answer):
    cpu_ms: float
    peak_memory_bytes: int
    peak_processes: int


class ErrorOfCode(_Answer):
    name: str
    message: str
    traceback: str


class FileOfRun(_Answer):
    path: str
    name: str
    size: int
    skipped: str
    content_base64: str | None


class OutputOfRun(_Answer):
    kind: Literal["display", "result"]
    data: dict[str, Any]
    metadata: dict[str, Any]


class FindingOfRun(_Answer):
    line: int
    rule: str
    message: str


class DroppedOfRun(_Answer):
    stdout: int
    stderr: int


class RunAnswer(_Answer):
    """As `Result.to_dict`."""

    status: Status
    success: bool
    timed_out: bool
    truncated: bool
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    dropped: DroppedOfRun
    error: ErrorOfCode | None
    duration_ms: float
    usage: UsageOfRun
    execution_id: str
    language: str
    environment: str
    engine: str
    engine_reason: str
    warnings: list[str]
    findings: list[FindingOfRun]
    egress: list[EgressOfRun] = Field(description="What the code tried to reach, the first 100.")
    value: str | None
    run_id: int | None
    state_kept: bool | None
    isolation: dict[str, str]
    outputs: list[OutputOfRun]
    files: list[FileOfRun]


class HealthAnswer(_Answer):
    status: Literal["ok"]
    engines: list[str] = Field(description="Those that work here.")
    pools: dict[str, dict[str, int]] = Field(
        description="Sandboxes waiting, by engine and environment."
    )
    running: int
    queued: int


class ReadyAnswer(_Answer):
    ready: bool


class EngineAnswer(_Answer):
    name: str
    purpose: str
    available: bool
    why_not: str
    hint: str
    capabilities: dict[str, Any]


class EnginesAnswer(_Answer):
    engines: list[EngineAnswer]


class EnvironmentAnswer(_Answer):
    name: str
    ready: bool
    packages: list[str]
    languages: list[str]


class EnvironmentsAnswer(_Answer):
    environments: list[EnvironmentAnswer]


class UsageAnswer(_Answer):
    tenant: str
    quotas: dict[str, Any]
    running: int
    queued: int
    runs: int = Field(description="Since the server started.")
    runs_last_minute: int = Field(description="All that counts for `runs_per_minute`.")
    cpu_s_today: float


class TrailEntry(_Answer):
    status: str = Field(description="How it ended; open while it has not.")
    attempt: dict[str, Any] | None
    end: dict[str, Any] | None


_NEXT = Field(description="To be sent as `before` for older ones; empty if there are no more.")


class EgressAnswer(_Answer):
    lines: list[dict[str, Any]] = Field(
        description="As they are in the trail; operators see their numbers, too."
    )
    next: str = _NEXT


class TrailAnswer(_Answer):
    lines: list[TrailEntry]
    next: str = _NEXT


class ErrorDetail(_Answer):
    code: str
    message: str
    hint: str
    retryable: bool


class ErrorAnswer(_Answer):
    """The one shape of every error."""

    error: ErrorDetail
