"""Everything the jail is made of, tried on this machine: the lines of `belljar doctor`.

A name that is also in a result's `isolation` means the same there; one name may take several lines,
each with its own mechanism. `trials.py` has the trials, `advice.py` what to do about those that
fail.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar.engines.base import Control
from belljar.engines.linux import cgroups
from belljar.runtimes.interpreter import base_interpreter

from . import advice, trials
from .launch import PACKAGE_ROOT
from .remedies import Obstacle

CHECK_S = 30.0
_BOOT = """\
import sys
sys.path[0] = {root!r}
from belljar.engines.jail import trials
trials.main()
"""


def controls() -> list[Control]:
    """Every control of the jail, whether it works here, and what to do if not."""
    facts = advice.gather()
    outcomes = _tried()
    if isinstance(outcomes, Control):
        return [outcomes, *_limits()]
    return [*(judge(trial, outcome, facts) for trial, outcome in outcomes), *_limits()]


def obstacle() -> Obstacle | None:
    """What stops sandboxes here, if the machine's configuration can be mended for good. Whoever
    asks with sudo means their own: root's work where those of ordinary users are refused."""
    outcomes = _tried()
    if isinstance(outcomes, Control):
        return None
    failed = [told for trial, told in outcomes if not told["works"] and not trial.stand_in]
    if failed:
        return advice.obstacle_for(failed[0]["errno"], advice.gather())
    user = os.environ.get("SUDO_UID", "")
    if os.geteuid() != 0 or not user.isdecimal():
        return None
    return advice.obstacle_for(0, advice.gather(int(user)))


def _tried() -> list[tuple[trials.Trial, dict[str, Any]]] | Control:
    """All from one fresh interpreter: this process may have threads and cannot be cloned, and what
    the kernel allows it need not be what it allows the zygote."""
    try:
        done = subprocess.run(
            [base_interpreter(), "-SsB", "-c", _BOOT.format(root=PACKAGE_ROOT)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
            timeout=CHECK_S,
            check=True,
        )
        outcomes = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = (getattr(error, "stderr", b"") or b"").decode("utf-8", "replace").strip()
        why = said.rpartition("\n")[2] or str(error)
        return Control(name="kernel", mechanism="the trials themselves", works=False, hint=why)
    return list(zip(trials.here(), outcomes, strict=True))


def judge(trial: trials.Trial, outcome: Mapping[str, Any], facts: advice.Facts) -> Control:
    """From what became of a trial to a line for people."""
    essential = not trial.stand_in
    detail, mechanism = outcome["detail"], trial.mechanism
    if outcome["works"]:
        mechanism += f" ({detail})" if detail else ""
        return Control(name=trial.name, mechanism=mechanism, works=True, essential=essential)
    if trial.name == "user":
        words = advice.own_uid(facts)
    elif trial.advised and outcome["errno"] == trial.advised:
        words = trial.advice
    else:
        words = advice.hint(outcome["errno"], facts, own="" if trial.advised else trial.advice)
    why = f"{detail} ({errno.errorcode.get(outcome['errno'], outcome['errno'])})"
    return Control(
        name=trial.name,
        mechanism=mechanism if essential else f"{mechanism}; instead: {trial.stand_in}",
        works=False,
        hint=f"{why}. {words}" if words else why,
        essential=essential,
    )


# -- limits: looked at, not tried; the whole sandbox that doctor runs tries them -----------

_STAND_INS = {
    "memory": "a watchdog and an rlimit",
    "processes": "an rlimit",
    "cpu": "a choice of cores (affinity)",
}


def _limits() -> list[Control]:
    """Obtained for a moment, not only looked for: systemd may have to be asked."""
    found = cgroups.find_ours(ask_systemd=True)
    if isinstance(found, cgroups.Absent):
        why = f"{found.reason}. {found.hint}"
        lines = [_optional(name, "cgroup", why, text) for name, text in _STAND_INS.items()]
        return [*lines, _swap(counted=False)]
    try:
        scope = " (a scope of the user's systemd)" if found.scope else ""
        lines = [_optional(name, text + scope) for name, text in found.describe().items()]
        if not found.limits_cpu:
            lines[-1] = _optional("cpu", "cgroup", cgroups.HINT_USER_CPU, _STAND_INS["cpu"])
        account = f"{found.folders['memory']}/memory.memsw.limit_in_bytes"
        return [*lines, _swap(counted=found.version == 2 or os.path.exists(account))]
    finally:
        found.close()


def _swap(*, counted: bool) -> Control:
    if counted:
        return _optional("swap", "kept out by the cgroup")
    if not Path("/proc/swaps").read_text().splitlines()[1:]:
        return _optional("swap", "none on this machine")
    why = "boot with swapaccount=1, or turn swap off: sudo swapoff -a"
    return _optional("swap", "cgroup", why, "only discouraged (swappiness 0)")


def _optional(name: str, mechanism: str, why: str = "", stand_in: str = "") -> Control:
    mechanism = f"{mechanism}; instead: {stand_in}" if stand_in else mechanism
    return Control(name=name, mechanism=mechanism, works=not why, hint=why, essential=False)
