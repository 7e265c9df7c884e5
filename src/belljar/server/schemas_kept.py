"""What travels over HTTP for kept sandboxes and datasets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from belljar.model import Need
from belljar.server.schemas import RunAnswer, Text, network_options
from belljar.server.schemas_network import Rule, Rules, Secrets
from belljar.server.strict import (
    AN_INPUT,
    MOST_FILES,
    Bytes,
    Contents,
    Packages,
    Strict,
    Variables,
    content,
)

MOST_ARGUMENTS = 1000


class DatasetInput(Strict):
    """A dataset of one's own, mounted and not copied."""

    dataset: Text = Field(examples=["0123456789abcdef0123456789abcdef"])


class SandboxRequest(Strict):
    """As `belljar.Sandbox`: the same names, the same meaning; what `inputs` names is content."""

    language: Text = Field("python", examples=["python", "bash"])
    environment: Text = Field("auto", examples=["auto", "base"])
    engine: Text = Field("auto", examples=["auto", "jail"])
    need: Annotated[list[Need], Field(fail_fast=True)] = Field(default_factory=list, max_length=16)
    timeout_s: float | None = Field(None, description="Of each run.", examples=[5])
    memory_bytes: int | None = None
    cpus: float | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    disk_files: int | None = None
    open_files: int | None = None
    output_bytes: int | None = None
    env: Variables = Field(default_factory=dict)
    files: Contents = Field(
        default_factory=dict, description="Put into /workspace, by relative name."
    )
    inputs: Annotated[
        dict[str, str | Bytes | DatasetInput], Field(max_length=MOST_FILES), AN_INPUT
    ] = Field(default_factory=dict, description="Put into /data/input, read-only.")
    packages: Packages = Field(default_factory=list)
    network: Rules = Field(default_factory=list)
    secrets: Secrets = Field(default_factory=dict)
    max_runs: int | None = Field(None, description="20 if not given.")
    idle_s: float | None = Field(None, description="600 if not given.")
    lifetime_s: float | None = Field(None, description="3600 if not given.")
    checkpoints: int | None = Field(None, description="8 for Python if not given.")
    when_busy: Literal["wait", "refuse"] = "wait"

    def options(self) -> dict[str, Any]:
        """Keywords for `Sandbox`: what was given. Contents are bytes: a text would be a path."""
        given = {
            name: value
            for name in self.model_fields_set
            if (value := getattr(self, name)) is not None
        }
        for name in ("files", "inputs"):
            if name in given:
                given[name] = {
                    path: as_bytes(value)
                    for path, value in given[name].items()
                    if not isinstance(value, DatasetInput)
                }
        return given | network_options(given)

    def datasets(self) -> dict[str, str]:
        """Ids by the name of the input."""
        return {
            name: value.dataset
            for name, value in self.inputs.items()
            if isinstance(value, DatasetInput)
        }


def as_bytes(value: str | Bytes) -> bytes:
    found = content(value)
    return found.encode() if isinstance(found, str) else found


class SandboxAnswer(BaseModel):
    id: str
    tenant: str
    created: float = Field(description="Seconds since 1970.")
    engine: str
    environment: str
    language: str
    running: bool
    runs: int
    max_runs: int
    idle_s: float
    lifetime_s: float
    checkpoints: list[int] = Field(description="Runs that can be undone.")
    limits: dict[str, float]
    network: list[Rule] = Field(description="Hosts that it may reach, as they are now.")


class SandboxesAnswer(BaseModel):
    sandboxes: list[SandboxAnswer]


class StepRequest(Strict):
    code: str = Field(description="At most 100,000 bytes of UTF-8.", examples=["x = 41"])
    timeout_s: float | None = None
    stdin: str | Bytes = ""


class ExtendRequest(Strict):
    seconds: float


class RollbackRequest(Strict):
    run_id: int


class ForkRequest(Strict):
    count: Annotated[int, Field(ge=1, le=256)] = 1
    at: int | None = Field(None, description="As it was before this run; else as it is.")


class InstallRequest(Strict):
    packages: Packages


class InstallAnswer(BaseModel):
    versions: dict[str, str] = Field(description="Of all packages that were installed here.")


class CheckpointsAnswer(BaseModel):
    checkpoints: list[int]


class DoneAnswer(BaseModel):
    done: bool = Field(description="false: there was nothing to do.")


# -- files -----------------------------------------------------------------------------------------


class FileAnswer(BaseModel):
    """Everything in it is the code's word. A name that is not UTF-8 has lone surrogates."""

    path: str
    kind: Literal["file", "folder", "link", "fifo", "socket", "device"]
    size: int
    disk_bytes: int
    mtime_ns: int
    mode: int


class FilesAnswer(BaseModel):
    entries: list[FileAnswer]


class WrittenAnswer(BaseModel):
    size: int


# -- programs --------------------------------------------------------------------------------------


class ProgramRequest(Strict):
    program: str | Annotated[list[str], Field(max_length=MOST_ARGUMENTS, fail_fast=True)] = Field(
        description="A list of texts; with `shell` one text.", examples=[["ls", "-l"]]
    )
    shell: bool = False
    env: Variables = Field(default_factory=dict)
    folder: str = "/workspace"


class ExecRequest(ProgramRequest):
    stdin: str | Bytes = ""
    timeout_s: float | None = None


class StartRequest(ProgramRequest):
    terminal: bool = False
    detached: bool = Field(
        False, description="Goes on when the client that reads its events has gone."
    )


class ProcessAnswer(BaseModel):
    process_id: int
    pid: int
    argv: list[str]
    terminal: bool
    running: bool
    exit_code: int | None


class ProcessesAnswer(BaseModel):
    processes: list[ProcessAnswer]


class ProcessState(ProcessAnswer):
    result: RunAnswer = Field(description="As far as it has come.")


class StdinRequest(Strict):
    data: str | Bytes = ""
    close: bool = False


class SignalRequest(Strict):
    number: Annotated[int, Field(ge=1, le=64)] = 9


class ResizeRequest(Strict):
    rows: Annotated[int, Field(ge=1, le=9999)]
    columns: Annotated[int, Field(ge=1, le=9999)]


# -- datasets --------------------------------------------------------------------------------------


Row = Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=500, fail_fast=True)]


class DatasetAnswer(BaseModel):
    id: str
    name: str
    size: int
    sha256: str
    created: float


class DatasetsAnswer(BaseModel):
    datasets: list[DatasetAnswer]


class Column(Strict):
    name: Annotated[str, Field(max_length=200)]
    type: Literal["integer", "number", "boolean", "text", "empty", "other"]


class DescriptionAnswer(Strict):
    """Made by a program in a sandbox; what it says is what the content says."""

    format: Literal["csv", "json", "jsonl", "sqlite", "text", "unknown"]
    columns: Annotated[list[Column], Field(max_length=500, fail_fast=True)]
    rows: Annotated[int, Field(ge=0, lt=1 << 53)] | None
    complete: bool = Field(description="false: there are more rows than were counted.")
    sample: Annotated[list[Row], Field(max_length=10, fail_fast=True)] = Field(
        description="The first rows, as text, cut."
    )
    note: Annotated[str, Field(max_length=500)]
