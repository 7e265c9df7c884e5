"""Processes: they end when the run does, whatever they did to stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from belljar.errors import EngineError
from belljar.probes import host
from belljar.probes.probe import Probe
from belljar.probes.prover import Prover
from belljar.probes.verdict import Verdict, broken, conclude, describe, held, inapplicable

LATE_S = 6.0
"""How much after its time-out a result may come on a busy machine."""

SUPERVISOR = """
import pathlib, sys
from belljar import Belljar, Sandbox, Settings
code = sys.stdin.read()
def see(data):
    print(data.decode(), flush=True)
with Belljar(Settings(home=pathlib.Path(sys.argv[1]))) as jar:
    if sys.argv[3] == "kept":
        box = Sandbox(jar, engine=sys.argv[2])
        box.run(code, timeout_s=60, on_event=lambda event: see(getattr(event, "data", b"")))
    jar.run(code, engine=sys.argv[2], timeout_s=60, on_output=lambda stream, data: see(data))
"""


def fork_is_refused(prover: Prover, probe: Probe) -> Verdict:
    """bash either gives up or is still retrying when the time is over: both mean the limit held."""
    result = prover.run(probe, timeout_s=prover.timeout_s(8))
    started = result.stdout.count("STARTED")
    if "BROKEN" in result.stdout or not started:
        return broken(f"{started} background jobs: {describe(result)}")
    if "fork" in result.stderr and "unavailable" in result.stderr:
        return held(f"stopped at {started}: {describe(result)}")
    return broken(f"stopped at {started} for another reason: {describe(result)}")


def zombies_are_reaped(prover: Prover, probe: Probe) -> Verdict:
    mark = host.new_mark()
    for _ in range(10):
        result = prover.run(probe, {"MARK": mark})
        if "READY" not in result.stdout:
            return broken(describe(result))
    left = host.left_over(mark)
    return conclude([f"left behind: {left}"] if left else [], describe(result))


def timeout_kills(prover: Prover, probe: Probe) -> Verdict:
    """A result in time, what was printed kept, no process left."""
    mark, started = host.new_mark(), time.monotonic()
    timeout_s = prover.timeout_s(2)
    live = prover.start(probe, {"MARK": mark}, timeout_s=timeout_s)
    result = live.result()
    elapsed = time.monotonic() - started
    found = []
    if elapsed > timeout_s + prover.seconds(LATE_S):
        found.append(f"answered after {elapsed:.1f} s of a time-out of {timeout_s:.0f} s")
    if result.status != "timeout":
        found.append(describe(result))
    if probe.id not in result.stdout:
        found.append("what was printed before is lost")
    if left := host.left_over(mark):
        found.append(f"still running: {left}")
    return conclude(found)


def agent_death_is_run_death(prover: Prover, probe: Probe) -> Verdict:
    try:
        result = prover.run(probe)
    except EngineError as error:  # where the agent can be ended, so is the wall
        wrong = prover.works()
        return broken(wrong) if wrong else held(error)
    if "KILLING" not in result.stdout and result.status != "killed":
        return broken(f"nothing was tried: {describe(result)}")
    wrong = prover.works()
    return broken(wrong) if wrong else held(describe(result))


def agent_is_not_confused(prover: Prover, probe: Probe) -> Verdict:
    """Signalled with everything, the agent still brings the true ending, and soon."""
    started = time.monotonic()
    result = prover.run(probe)
    elapsed = time.monotonic() - started
    found = []
    if result.exit_code != {"PR-50": 5, "PR-56": 3}[probe.id] or "ALIVE" not in result.stdout:
        found.append(describe(result))
    if elapsed > prover.seconds(15):
        found.append(f"answered after {elapsed:.1f} s")
    if wrong := prover.works():
        found.append(wrong)
    return conclude(found)


def nothing_stays(prover: Prover, probe: Probe) -> Verdict:
    """The result does not wait for what was left running, and what was left is ended."""
    mark, started = host.new_mark(), time.monotonic()
    result = prover.run(probe, {"MARK": mark})
    elapsed = time.monotonic() - started
    found = []
    if elapsed > prover.seconds(15) or result.status == "timeout":
        found.append(f"the run was stalled: {elapsed:.1f} s, {describe(result)}")
    if probe.id not in result.stdout:
        found.append(describe(result))
    if probe.id == "PR-54" and result.exit_code != 6:
        found.append(f"exit code {result.exit_code} instead of 6")
    if left := host.left_over(mark):
        found.append(f"still running: {left}")
    return conclude(found, describe(result))


def dies_with_supervisor(prover: Prover, probe: Probe) -> Verdict:
    """A host program of our own is killed in the middle of a run."""
    mark = host.new_mark()
    home = str(prover.jar.settings.home)
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, home, prover.engine, "kept" if prover.kept else ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert supervisor.stdin and supervisor.stdout
    try:
        supervisor.stdin.write(prover.code(probe, {"MARK": mark}).encode())
        supervisor.stdin.close()
        if not any(b"SLEEPING" in line for line in supervisor.stdout):
            return broken("the supervised run did not start")
        guests, below = set(host.named(mark)), host.descendants(supervisor.pid)
        # Folders of a run are named after its owner; who works in one may be nobody's child.
        below |= host.mentioning(f"/{supervisor.pid}-")
        if not guests and not below:
            return inapplicable("nothing of this engine can be seen from the host")
        for guest in guests:  # agents and zygotes, also where they are nobody's children
            below |= host.ancestors(guest)
        below -= host.ancestors(os.getpid()) | {os.getpid(), supervisor.pid}
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        left = host.still_alive(below | guests, within_s=3)
    finally:
        supervisor.kill()
        supervisor.wait()
        supervisor.stdout.close()
    found = [f"still running: {sorted(left)}"] if left else []
    if wrong := prover.works():
        found.append(wrong)
    return conclude(found, f"{len(guests)} guest processes, {len(below | guests)} in all")
