"""Limits: what one run takes is bounded, and its neighbours and the host do not notice."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from belljar.errors import InvalidRequest
from belljar.probes import host
from belljar.probes.probe import Probe
from belljar.probes.prover import Prover
from belljar.probes.verdict import (
    Verdict,
    broken,
    conclude,
    describe,
    held,
    inapplicable,
    read,
)

FLOOD_BLOCKS = 2048
FLOOD_BYTES = FLOOD_BLOCKS * 65536
ENDLESS = (
    "re.match(r'(a+)+$', 'a' * 60 + 'b')",
    "x = 9**9**9",
    "sum(itertools.repeat(1))",
)
ORDINARY_HOST = """
import json, pathlib, resource, sys, threading
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, most), most))  # as a login shell has it
from concurrent.futures import ThreadPoolExecutor
from belljar import Belljar, BelljarError, Sandbox, Settings
order = json.load(sys.stdin)
hoarded = threading.Event()
def see(stream, data):
    if b"HOARDED" in data:
        hoarded.set()
def keep(jar, code, on_output=lambda stream, data: None, **options):
    with Sandbox(jar, **options) as box:
        return box.run(code, on_event=lambda event: on_output("", getattr(event, "data", b"")))
run = keep if order["kept"] else Belljar.run
with Belljar(Settings(home=pathlib.Path(order["home"]), pool_size=0)) as jar:
    options = {"engine": order["engine"], "timeout_s": 20}
    hoarder = ThreadPoolExecutor(1).submit(run, jar, order["hoard"], on_output=see, **options)
    hoarded.wait(15)
    try:
        asked = run(jar, order["ask"], **options)
        print(asked.isolation["user"], "|", asked.stdout.strip())
        hoarder.result(30)
        print(run(jar, "print('AFTER')", **options).stdout.strip())
    except BelljarError as error:
        print("HOST", error)
"""
HOSTILE_SOURCES = {
    "brackets": "(" * 90_000,
    "minus signs": "-" * 95_000 + "1",
    "nested lists": "a=" + "[" * 90_000,
    "NUL": "\x00print(1)",
    "utf-7": "# coding: utf-7\nprint(1)",
    "unknown coding": "# coding: nonexistent\nprint(1)",
    "lone surrogate": "print('\ud800')",
    "many statements": "x=1;" * 24_000,
    "over the limit": "x=1;" * 2_500_000,
    "deep attribute": "a" + ".a" * 45_000,
    "nested f-strings": "f'" + "{" * 45_000,
    "huge integer": "x = " + "9" * 90_000,
    "null bytes within": "print(1)\n" + "\x00" * 1000,
    "long chain": "x = " + "1 if 1 else " * 7_000 + "1",
}


def memory_bomb(prover: Prover, probe: Probe) -> Verdict:
    """Ended as out of memory, while a neighbour runs on undisturbed."""
    neighbour = "import time\nfor _ in range(30):\n    time.sleep(0.05)\nprint('fine')"
    beside = prover.start_code(neighbour, timeout_s=prover.timeout_s(20))
    result = prover.run(probe)
    found = read(probe, result)
    if found.outcome != "held" and result.status != "out_of_memory":
        return broken(f"not reported as out of memory: {describe(result)}")
    other = beside.result()
    if (other.status, other.stdout) != ("ok", "fine\n"):
        return broken(f"the neighbour: {describe(other)}")
    return held(describe(result))


def memory_is_charged(prover: Prover, probe: Probe) -> Verdict:
    """Held, or ended as out of memory; and never more resident than the limit."""
    result = prover.run(probe)
    found = read(probe, result)
    if found.outcome != "held" and result.status != "out_of_memory":
        return found
    limit = probe.options["memory_bytes"]
    if result.isolation.get("memory") == "watchdog" and result.status == "out_of_memory":
        return held(f"{describe(result)}; without a cgroup the limit is looked at, not enforced")
    if result.usage.peak_memory_bytes > limit * 1.1:
        return broken(f"{result.usage.peak_memory_bytes >> 20} MB were used of {limit >> 20}")
    return held(found.detail if found.outcome == "held" else describe(result))


def kernel_memory_is_bounded(prover: Prover, probe: Probe) -> Verdict:
    """Not more than the limit of all the run's memory, looked at from outside. Others use the
    kernel's memory, too: what is seen once is looked at again."""
    limit = probe.options["memory_bytes"]
    found: list[str] = []
    before = host.kernel_bytes()  # for both: the first run's memory may still be on its way back
    for _ in range(2):
        most, ends = 0, time.monotonic() + prover.seconds(60)
        stay = {"STAY_S": str(prover.seconds(2))}
        live = prover.start(probe, stay, timeout_s=prover.timeout_s(50))
        while live.running and time.monotonic() < ends:
            most = max(most, host.kernel_bytes() - before)
            time.sleep(0.02)
        result = live.result()
        if "TAKEN" not in result.stdout and result.status != "out_of_memory":
            return broken(describe(result))
        if most <= limit:
            return held(f"{most >> 20} MB; {describe(result)}")
        found = [f"{most >> 20} MB of the kernel's memory; {describe(result)}"]
    return conclude(found)


def endless_loops_end(prover: Prover, probe: Probe) -> Verdict:
    found = []
    for code in ENDLESS:
        mark, started = host.new_mark(), time.monotonic()
        timeout_s = prover.timeout_s(2)
        result = prover.run(probe, {"ENDLESS": code, "MARK": mark}, timeout_s=timeout_s)
        elapsed = time.monotonic() - started
        if result.status != "timeout" or "START" not in result.stdout:
            found.append(f"{code}: {describe(result)}")
        if elapsed > timeout_s + prover.seconds(6):
            found.append(f"{code}: answered after {elapsed:.1f} s")
        if host.left_over(mark):
            found.append(f"{code}: still running")
    return conclude(found)


def both_floods_are_drained(prover: Prover, probe: Probe) -> Verdict:
    before, started = host.resident_bytes(), time.monotonic()
    result = prover.run(probe)
    elapsed, grown = time.monotonic() - started, host.resident_bytes() - before
    found = _flood_findings(result.stdout, "o", result.dropped.stdout, 64 << 20)
    found += _flood_findings(result.stderr, "e", result.dropped.stderr, 64 << 20)
    if result.status != "ok" or elapsed > prover.seconds(15):
        found.append(f"{elapsed:.1f} s, {result.status}")
    if grown > 64 << 20:
        found.append(f"the host grew by {grown >> 20} MB")
    return conclude(found, f"{elapsed:.1f} s")


def flood_is_bounded(prover: Prover, probe: Probe) -> Verdict:
    before = host.resident_bytes()
    result = prover.run(probe, {"FLOOD_BLOCKS": str(FLOOD_BLOCKS)})
    grown = host.resident_bytes() - before
    found = _flood_findings(result.stdout, "y", result.dropped.stdout, FLOOD_BYTES)
    if result.status != "ok" or result.stderr.count("e") < 20000:
        found.append(describe(result)[:200])
    if grown > 48 << 20:
        found.append(f"the host grew by {grown >> 20} MB over {FLOOD_BYTES >> 20} MB of output")
    return conclude(found, f"the host grew by {max(grown, 0) >> 20} MB")


def end_is_exit_not_eof(prover: Prover, probe: Probe) -> Verdict:
    started = time.monotonic()
    result = prover.run(probe)
    elapsed = time.monotonic() - started
    in_time = 1.8 < elapsed < prover.seconds(12)
    right = result.exit_code == 9 and result.stdout.startswith("BEFORE") and in_time
    return held(f"{elapsed:.1f} s") if right else broken(f"{elapsed:.1f} s, {describe(result)}")


def hostile_source(prover: Prover, probe: Probe) -> Verdict:
    """Parsed only behind the wall: this process survives and answers, filter or not."""
    found = []
    for name, source in HOSTILE_SOURCES.items():
        for mode in ("off", "warn", "deny"):
            started = time.monotonic()
            try:
                result = prover.run_code(source, filter=mode, timeout_s=prover.timeout_s(10))
            except InvalidRequest:
                continue
            if time.monotonic() - started > prover.seconds(25):
                found.append(f"{name} ({mode}): {time.monotonic() - started:.0f} s")
            result.to_json().encode()
    if wrong := prover.works():
        found.append(wrong)
    return conclude(found, f"{len(HOSTILE_SOURCES)} sources, three ways each")


def neighbour_is_not_starved(prover: Prover, probe: Probe) -> Verdict:
    """What is counted per user or for the whole machine: a hoarder must not take it all."""
    found = []
    for hoarder in ("inotify", "processes", "terminals"):
        alone = prover.run(probe, {"ROLE": f"ask-{hoarder}", "STAY_S": "0"})
        if f"STARVED {probe.id}" in alone.stdout and hoarder == "terminals":
            continue  # a wall without any terminals: there is nothing to take from others
        live = prover.start(probe, {"ROLE": f"hoard-{hoarder}", "STAY_S": str(prover.seconds(3))})
        if not live.saw("HOARDED"):
            return broken(f"nothing was hoarded: {describe(live.result())}")
        result = prover.run(probe, {"ROLE": f"ask-{hoarder}", "STAY_S": "0"})
        if not live.running:
            found.append(f"{hoarder}: the hoarder was over too soon to tell")
        if result.status != "ok" or "GOT" not in result.stdout:
            found.append(f"{hoarder}: {describe(result)}")
        live.result()
    return conclude(found)


def nothing_runs_out(prover: Prover, probe: Probe) -> Verdict:
    """What a run gets alone it also gets beside a hoarder."""
    asking = {"ROLE": "neighbour", "STAY_S": "0"}
    alone = prover.run(probe, asking)
    live = prover.start(probe, {"ROLE": "hoarder", "STAY_S": str(prover.seconds(3))})
    if not live.saw("HOARDED"):
        return broken(f"nothing was hoarded: {describe(live.result())}")
    beside = prover.run(probe, asking)
    if not live.running:
        return broken(f"the hoarder was over too soon to tell: {describe(live.result())}")
    live.result()
    got = {line for line in alone.stdout.splitlines() if line.startswith("GOT")}
    missing = got - set(beside.stdout.splitlines())
    if not got or beside.status != "ok":
        return broken(describe(beside))
    return conclude(sorted(missing), f"{len(got)} kinds")


def descriptors_in_flight(prover: Prover, probe: Probe) -> Verdict:
    """A host program with the usual limits goes on making sandboxes beside a hoarder.

    Where all sandboxes are one user of the host (`isolation` says so), the neighbour shares the
    count; the host program must not.
    """
    order = {
        "home": str(prover.jar.settings.home),
        "engine": prover.engine,
        "kept": prover.kept,
        "hoard": prover.code(probe, {"ROLE": "hoarder", "STAY_S": str(prover.seconds(3))}),
        "ask": prover.code(probe, {"ROLE": "neighbour", "STAY_S": "0"}),
    }
    host_program = subprocess.run(
        [sys.executable, "-c", ORDINARY_HOST],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=90,
    )
    said = host_program.stdout.strip().replace("\n", "; ")
    if not said.endswith("AFTER"):
        return broken(f"the host program failed: {said or host_program.stderr.strip()[-300:]}")
    if "GOT" in said or "shared" in said:
        return held(said)
    return broken(said)


def cpu_share(prover: Prover, probe: Probe) -> Verdict:
    """Four spinning processes with half a core get half a core."""
    stay_s, share = 3.0, 0.5
    result = prover.run(probe, {"STAY_S": str(stay_s)}, cpus=share)
    control = result.isolation.get("cpu", "")
    if not control.startswith("cgroup"):
        return inapplicable(f"no CPU share can be set here (cpu: {control or 'nothing'})")
    used_s = result.usage.cpu_ms / 1000
    if not used_s:
        return broken(f"no CPU time was seen: {describe(result)}")
    allowed_s = result.duration_ms / 1000 * share * 1.4 + 0.3
    note = f"{used_s:.2f} s of CPU in {result.duration_ms / 1000:.2f} s"
    return held(note) if used_s <= allowed_s else broken(note)


def unread_stdin(prover: Prover, probe: Probe) -> Verdict:
    """Megabytes that nobody reads neither block the run nor stay in its way."""
    found = []
    for code in ("print('done')", "import sys; sys.stdin.read(3); print('done')"):
        started = time.monotonic()
        result = prover.run_code(code, stdin=b"x" * (16 << 20))
        if (result.status, result.stdout) != ("ok", "done\n"):
            found.append(describe(result))
        if time.monotonic() - started > prover.seconds(10):
            found.append(f"answered after {time.monotonic() - started:.1f} s")
    return conclude(found)


def huge_environment(prover: Prover, probe: Probe) -> Verdict:
    """More than execve takes: refused, carried in, or a failed run; never a broken host."""
    found = []
    for name, env in {
        "one value": {"BIG": "x" * (4 << 20)},
        "many values": {f"N{number}": "x" * 1000 for number in range(5000)},
    }.items():
        for language in ("python", "bash"):
            code = "print(1)" if language == "python" else "echo 1"
            try:
                result = prover.run_code(code, env=env, language=language)
            except InvalidRequest:
                continue
            if result.status == "timeout" or result.warnings:
                found.append(f"{name}, {language}: {describe(result)}")
    if wrong := prover.works():
        found.append(wrong)
    return conclude(found)


def _flood_findings(kept: str, character: str, dropped: int, total: int) -> list[str]:
    seen = kept.count(character)
    if len(kept) > 4 << 20:
        return [f"{len(kept)} characters were kept"]
    if abs(seen + dropped - total) > 200:  # a note about what was left out may stand between
        return [f"{seen} kept and {dropped} dropped of {total}"]
    return []
