"""What a soak saw: requests, faults, the server's lives and its size. Plain data.

Times are seconds since the soak began, `Record.epoch` is when that was.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["right", "wrong", "refused", "broken", "left"]
"""As expected; answered with something else; an error of the server's one shape; no answer at all;
the client hung up on purpose."""
GRACE_S = 1.0
"""What began this soon after a recovery may still have met the fault."""


@dataclass(kw_only=True)
class Op:
    """One request and what became of it."""

    token: str
    """Sent along as the request's id, and what a right answer carries."""
    tenant: str
    kind: str
    began: float
    since: float = 0.0
    """When what it depends on was made: a kept sandbox does not survive a kill in between."""
    ended: float = 0.0
    outcome: Outcome = "broken"
    why: str = ""
    http: int = 0
    code: str = ""
    """Of an error."""
    retryable: bool | None = None
    one_run: bool = False
    """Exactly one run: the trail has one attempt with this request's id, or none if refused."""
    execution_id: str = ""
    status: str = ""
    exit_code: int | None = None
    stdout_sha256: str = ""
    """Empty if nothing was printed, or if the answer does not have it as it was."""
    cpu_ms: float = 0.0
    """As answered; of an answer that broke off, as last told."""
    egress: int = 0
    failed: bool = False
    """The answer says that the run did not succeed,"""
    explained: bool = False
    """and why."""

    def took(self, result: dict[str, Any]) -> None:
        """Notes down a whole result, as `/v1/runs` answers it."""
        self.execution_id = result.get("execution_id", "")
        self.status = result.get("status", "")
        self.exit_code = result.get("exit_code")
        self.cpu_ms = result.get("usage", {}).get("cpu_ms", 0.0)
        self.egress = len(result.get("egress", ()))
        self.failed = not result.get("success", True)
        reasons = [result.get(name) for name in ("error", "stderr", "signal", "warnings")]
        self.explained = any(reasons) or self.status in ("timeout", "out_of_memory")
        if stdout := result.get("stdout"):
            content = stdout.encode("utf-8", "surrogatepass")
            self.stdout_sha256 = hashlib.sha256(content).hexdigest()


@dataclass(kw_only=True)
class Fault:
    kind: str
    began: float
    lifted: float | None = None
    recovered: float | None = None
    """When everything asked of the server was answered again; None: it never was."""
    detail: str = ""

    def touches(self, since: float, until: float) -> bool:
        end = float("inf") if self.recovered is None else self.recovered + GRACE_S
        return since <= end and until >= self.began


@dataclass(kw_only=True)
class Life:
    """One process of the server."""

    pid: int
    began: float
    ready: float | None = None
    ended: float | None = None
    how: Literal["", "killed", "stopped", "died"] = ""
    """By us, when told to end, or by itself."""
    exit_status: int | None = None


@dataclass(kw_only=True)
class Sample:
    at: float
    pid: int
    memory_bytes: int
    descriptors: int
    threads: int
    processes: int
    """All that belong to the server."""
    gateway_bytes: int


@dataclass(kw_only=True)
class Record:
    seed: int
    epoch: float
    ops: list[Op] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """Violations that were seen on the way, each a sentence."""
    notes: list[str] = field(default_factory=list)
    """What was left out on this machine, and why."""
    duration_s: float = 0.0
    interrupted: bool = False

    def disturbed(self, op: Op) -> Fault | None:
        """The fault that may explain what became of it."""
        since = min(op.since or op.began, op.began)
        return next((one for one in self.faults[::-1] if one.touches(since, op.ended)), None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
