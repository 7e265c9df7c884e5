"""The control channel: what the guest says about itself never outranks what the host saw."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from belljar.model import Result
from belljar.probes import host
from belljar.probes.probe import Probe
from belljar.probes.prover import Prover
from belljar.probes.verdict import Verdict, broken, conclude, describe, held, inapplicable, read

EXIT_CASES = (
    "sys.exit(0)",
    "sys.exit(3)",
    "sys.exit('m')",
    "sys.exit(None)",
    "sys.exit(256)",
    "sys.exit(-1)",
    "os._exit(7)",
    "os.abort()",
    "os.kill(os.getpid(), 9)",
    "raise KeyboardInterrupt",
    "raise BaseException",
    "1/0",
)
ERROR_TEXT_BYTES = 2 << 20
"""More than this of one exception is not a message but an attack on whoever keeps results."""


def shadow_modules(prover: Prover, probe: Probe) -> Verdict:
    """Modules planted during a run, and before one, are never imported by the runner itself."""
    planted, before = prover.run_then(probe, "print(1 + 1)")
    found = []
    if planted.error is None or planted.error.name != "ZeroDivisionError":
        found.append(f"the planting run: {describe(planted)}")
    if len(planted.files) < 10:
        found.append("the shadow modules were not planted")
    if (before.status, before.stdout) != ("ok", "2\n"):
        found.append(f"the run among shadow modules: {describe(before)}")
    for result in (planted, before):
        found += [file.name for file in result.files if "SHADOWED" in file.name]
    return conclude(found)


def failure_is_seen(prover: Prover, probe: Probe) -> Verdict:
    result = prover.run(probe, timeout_s=prover.timeout_s(3))
    failed = result.status == "error" and result.exit_code not in (0, None)
    if prover.kept:  # an interpreter that cannot tell its end any more is waited for, and killed
        failed = result.status != "ok"
    return held(describe(result)) if failed else broken(describe(result))


def exits_like_python(prover: Prover, probe: Probe) -> Verdict:
    """Every way to end, beside the same on a bare interpreter."""
    found = []
    for case in EXIT_CASES:
        code = prover.code(probe, {"EXIT_CASE": case})
        bare = _bare(code)
        result = prover.run_code(code)
        if not _same_ending(bare.returncode, result):
            found.append(f"{case}: {describe(result)} (bare: {bare.returncode})")
        if case == "sys.exit('m')" and result.stderr != "m\n":
            found.append(f"{case}: stderr {result.stderr!r}")
    return conclude(found)


def survives_lost_descriptors(prover: Prover, probe: Probe) -> Verdict:
    result = prover.run(probe)
    found = []
    whole = result.exit_code == 0 and "PART2" in result.stdout
    # One of a kept sandbox's descriptors leads to its keeper: without it the code is ended.
    if "PART1" not in result.stdout or not (whole or (prover.kept and result.status == "killed")):
        found.append(describe(result))
    if wrong := prover.works():
        found.append(wrong)
    return conclude(found)


def shutdown_is_timed(prover: Prover, probe: Probe) -> Verdict:
    mark, started = host.new_mark(), time.monotonic()
    timeout_s = prover.timeout_s(3)
    result = prover.run(probe, {"MARK": mark}, timeout_s=timeout_s)
    elapsed = time.monotonic() - started
    found = []
    if elapsed > timeout_s + prover.seconds(5):
        found.append(f"answered after {elapsed:.1f} s of a time-out of {timeout_s:.0f} s")
    if result.status != "timeout" or "MAIN-DONE" not in result.stdout:
        found.append(describe(result))
    if left := host.left_over(mark):
        found.append(f"still running: {left}")
    return conclude(found)


def nothing_is_unpickled(prover: Prover, probe: Probe) -> Verdict:
    result = prover.run(probe)
    json.loads(result.to_json())
    marker = Path(prover.fixtures.values["HOST_MARKER_PATH"])
    if marker.exists():
        marker.unlink()
        return broken("what the guest returned was executed on the host")
    return held() if result.status == "ok" else broken(describe(result))


def hostile_reprs(prover: Prover, probe: Probe) -> Verdict:
    """As the last expression, also where that is displayed: bounded, valid JSON, never a hang."""
    found = []
    for last in ("Huge()", "Endless()"):
        result = prover.run_code(prover.code(probe) + f"\n{last}\n", timeout_s=prover.timeout_s(5))
        if result.status not in ("ok", "error", "timeout", "out_of_memory"):
            found.append(f"{last}: {describe(result)}")
        if len(_strict_json(result)) > 16 << 20:
            found.append(f"{last}: the result is {len(result.to_json())} characters")
    return conclude(found)


def fresh_values(prover: Prover, probe: Probe) -> Verdict:
    """Values printed as VALUE never repeat over runs; those as SMALL are not always the same."""
    return _distinct([prover.run(probe, {"WITH_NUMPY": "no"}) for _ in range(20)])


def fresh_values_everywhere(prover: Prover, probe: Probe) -> Verdict:
    """The same with runs at once, and with numpy where its environment is ready."""
    plain = {"WITH_NUMPY": "no"}
    live = [prover.start(probe, plain, environment="base") for _ in range(4)]
    results = [item.result() for item in live]
    results += [prover.run(probe, plain, environment="base") for _ in range(4)]
    found = _distinct(results)
    if found.outcome != "held" or not prover.is_built("data"):
        return found
    numpy = {"WITH_NUMPY": "yes"}
    options = {"environment": "data", "timeout_s": prover.timeout_s(60)}
    return _distinct([prover.run(probe, numpy, **options) for _ in range(4)])


def fresh_layout(prover: Prover, probe: Probe) -> Verdict:
    return _distinct([prover.run(probe, fresh_exec=True) for _ in range(4)])


def no_foreign_memory(prover: Prover, probe: Probe) -> Verdict:
    """A secret in the host's environment, and given to an earlier run in every way there is."""
    jar, secret = prover.later_jar(), prover.fixtures.memory_canary
    options = {"engine": prover.engine}
    for _ in range(2):
        earlier = prover.run_code(
            "import os, sys\nkept = [sys.stdin.read() * 100, os.environ['GIVEN']] * 100\n"
            "open('/tmp/secret', 'w').write(kept[0])\nprint(len(kept[0]))",
            jar=jar,
            stdin=secret,
            env={"GIVEN": secret},
            files={"given.txt": secret},
            inputs={"given.txt": secret},
            **options,
        )
        if earlier.status != "ok":
            return broken(f"the earlier run: {describe(earlier)}")
        found = read(probe, prover.run_code(prover.code(probe), jar=jar, **options))
        if found.outcome != "held":
            return found
    return found


def no_host_environment(prover: Prover, probe: Probe) -> Verdict:
    return read(probe, prover.run_code(prover.code(probe), jar=prover.later_jar()))


def garbage_is_not_believed(prover: Prover, probe: Probe) -> Verdict:
    """Forged endings on every open descriptor do not change how the run ended."""
    result = prover.run(probe)
    found = []
    if prover.kept:  # one descriptor leads to the keeper: who talks nonsense there is ended
        found += [describe(result)] if result.status == "ok" else []
    elif result.exit_code != 7 or "FORGED" in result.stdout:
        found.append(describe(result))
    if "BEFORE" not in result.stdout or ("AFTER" not in result.stdout and not prover.kept):
        found.append(f"output lost: {result.stdout!r}")
    if wrong := prover.works():
        found.append(wrong)
    return conclude(found)


def output_is_only_output(prover: Prover, probe: Probe) -> Verdict:
    """Byte for byte what a bare interpreter prints, and the true exit code."""
    code = prover.code(probe)
    bare, result = _bare(code), prover.run_code(code)
    found = []
    if result.exit_code != 9:
        found.append(describe(result))
    for name, expected in (("stdout", bare.stdout), ("stderr", bare.stderr)):
        if getattr(result, name) != expected.decode("utf-8", "replace"):
            found.append(f"{name} was changed: {getattr(result, name)[:200]!r}")
    return conclude(found)


def exception_text_is_bounded(prover: Prover, probe: Probe) -> Verdict:
    found = []
    for case, statuses in {
        "huge": ("error", "out_of_memory"),
        "surrogate": ("error",),
        "raises": ("error", "killed"),
        "endless": ("timeout", "error"),
    }.items():
        before = host.resident_bytes()
        result = prover.run(probe, {"CASE": case}, timeout_s=prover.timeout_s(5))
        if result.status not in statuses:
            found.append(f"{case}: {describe(result)}")
        if result.error and len(repr(result.error)) > ERROR_TEXT_BYTES:
            found.append(f"{case}: {len(repr(result.error))} characters of exception")
        _strict_json(result)
        if (grown := host.resident_bytes() - before) > 64 << 20:
            found.append(f"{case}: the host grew by {grown >> 20} MB")
    if wrong := prover.works():
        found.append(wrong)
    return conclude(found)


def _bare(code: str) -> subprocess.CompletedProcess[bytes]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(code)
        script.flush()
        return subprocess.run([sys.executable, script.name], capture_output=True, timeout=30)


def _same_ending(returncode: int, result: Result) -> bool:
    if returncode >= 0:
        return result.exit_code == returncode and result.signal is None
    if returncode == -signal.SIGINT and result.exit_code == 128 + signal.SIGINT:
        return True
    return result.signal == -returncode and result.status != "ok"


def _distinct(results: list[Result]) -> Verdict:
    values: dict[str, list[str]] = {}
    small: dict[str, list[str]] = {}
    for result in results:
        if result.status != "ok":
            return broken(describe(result))
        for line in result.stdout.splitlines():
            kind, _, rest = line.partition(" ")
            name, _, value = rest.partition(" ")
            if kind in ("VALUE", "SMALL"):
                (values if kind == "VALUE" else small).setdefault(name, []).append(value)
    if not values:
        return inapplicable("the runs printed no values")
    found = [
        f"{name} repeats: {Counter(seen).most_common(1)[0]}"
        for name, seen in values.items()
        if len(set(seen)) < len(seen)
    ]
    found += [f"{name} is always {seen[0]}" for name, seen in small.items() if len(set(seen)) == 1]
    return conclude(found, f"{len(results)} runs, {len(values) + len(small)} values each")


def _strict_json(result: Result) -> str:
    """The result as text that any JSON reader and any UTF-8 stream takes."""
    text = result.to_json()
    text.encode("utf-8")
    json.loads(text, parse_constant=lambda name: 1 / 0)
    return text
