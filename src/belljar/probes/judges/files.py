"""Files that come back: links are never followed, names and sizes never believed."""

from __future__ import annotations

import json
import sysconfig
import time
from pathlib import Path

from belljar.model import Result
from belljar.probes import host
from belljar.probes.probe import Probe
from belljar.probes.prover import Prover
from belljar.probes.verdict import Verdict, broken, conclude, describe, held, inapplicable, read

COLLECT_S = 15.0
"""Collecting hostile folders takes no longer than this, on a busy machine too."""

ALSO_HARMLESS = {"docker+runsc": "fuse net"}
"""Devices that gVisor's own kernel always has, and that Docker cannot take away: of no use without
the rights to mount and to make network interfaces."""


def only_harmless_devices(prover: Prover, probe: Probe) -> Verdict:
    also = " ".join(ALSO_HARMLESS.get(wall, "") for wall in prover.walls)
    return read(probe, prover.run(probe, {"ALSO": also}))


def files_stay_in_memory(prover: Prover, probe: Probe) -> Verdict:
    """A file that nobody maps, of the Python that sandboxes see where it is."""
    path = Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py")
    if not path.exists():
        return inapplicable(f"{path} is not there to be tried")
    path.read_bytes()
    before = host.pages_in_memory(path)
    if not before:
        return inapplicable("this kernel does not say what it has in memory (Linux 6.5)")
    result = prover.run(probe, {"CACHED_FILE": str(path)})
    if "ASKED" not in result.stdout:
        return broken(describe(result))
    after = host.pages_in_memory(path) or 0
    return conclude([] if after >= before else [f"{after} of {before} pages are left"])


def links_are_not_followed(prover: Prover, probe: Probe) -> Verdict:
    result = prover.run(probe)
    if result.status != "ok" or "READY" not in result.stdout:
        return broken(describe(result))
    secrets = (prover.fixtures.values["HOST_CANARY_TOKEN"], "root:", "PATH=", "LANG=")
    found = [
        f"{file.path} came back with {secret!r}"
        for file in result.files
        for secret in secrets
        if file.content and secret.encode() in file.content
    ]
    return conclude(found, f"{len(result.files)} entries")


def special_files_are_skipped(prover: Prover, probe: Probe) -> Verdict:
    before, started = host.resident_bytes(), time.monotonic()
    result = prover.run(probe)
    elapsed, grown = time.monotonic() - started, host.resident_bytes() - before
    found = _slow(prover, elapsed)
    if result.status != "ok":
        found.append(describe(result))
    if grown > 64 << 20:
        found.append(f"the host grew by {grown >> 20} MB")
    for file in result.files:
        if file.content and file.name not in ("secret000",):
            found.append(f"{file.path}: {len(file.content)} bytes came back")
        elif file.content is None and not file.skipped:
            found.append(f"{file.path} was left out without a reason")
    return conclude(found, [f"{file.name}: {file.skipped}" for file in result.files])


def token_is_nowhere(prover: Prover, probe: Probe) -> Verdict:
    """The compiler or bundler never saw the host's file, so it cannot have quoted it."""
    result = prover.run(probe, timeout_s=prover.timeout_s(60))
    token = prover.fixtures.values["HOST_CANARY_TOKEN"]
    if token in result.stdout + result.stderr + repr(result.error):
        return broken("the host's file was read while building")
    if any(file.content and token.encode() in file.content for file in result.files):
        return broken("the host's file came back as a file")
    return held(describe(result))


def hostile_names(prover: Prover, probe: Probe) -> Verdict:
    started = time.monotonic()
    result = prover.run(probe)
    found = _slow(prover, time.monotonic() - started)
    if result.status != "ok" or "READY" not in result.stdout:
        found.append(describe(result))
    found += [f"outside: {file.path!r}" for file in result.files if not _below_a_root(file.path)]
    try:
        text = result.to_json()
        text.encode("utf-8")
        names = {file["name"] for file in json.loads(text)["files"]}
    except (ValueError, UnicodeError) as error:
        return broken(f"the result is not JSON: {error}")
    if len(names) < 5:
        found.append(f"only {sorted(names)} came back")
    if wrong := prover.works():
        found.append(wrong)
    return conclude(found, f"{len(names)} names")


def deep_folders(prover: Prover, probe: Probe) -> Verdict:
    started = time.monotonic()
    result = prover.run(probe)
    found = _slow(prover, time.monotonic() - started)
    if result.status != "ok" or "READY" not in result.stdout:
        found.append(describe(result))
    result.to_json()
    if wrong := prover.works():
        found.append(wrong)
    return conclude(found, f"{len(result.files)} files came back")


def swapped_names(prover: Prover, probe: Probe) -> Verdict:
    """Whatever came back under the racing name is the plain file's content."""
    seen = 0
    for _ in range(5):
        started = time.monotonic()
        result = prover.run(probe)
        if slow := _slow(prover, time.monotonic() - started):
            return broken(slow[0])
        if result.status != "ok":
            return broken(describe(result))
        for file in result.files:
            if file.name == "swap.txt" and file.content is not None:
                seen += 1
                if file.content != b"plain":
                    return broken(f"a link was followed: {file.content[:60]!r}")
    return held(f"the name came back {seen} times")


def many_files(prover: Prover, probe: Probe) -> Verdict:
    started = time.monotonic()
    result = prover.run(probe, result_files=100)
    found = _slow(prover, time.monotonic() - started)
    if result.status != "ok":
        found.append(describe(result))
    with_content = [file for file in result.files if file.content is not None]
    if len(with_content) > 100:
        found.append(f"{len(with_content)} files came back, the limit is 100")
    if len(result.files) > 1000:
        found.append(f"{len(result.files)} entries in the result")
    return conclude(found, _note(result))


def _slow(prover: Prover, elapsed_s: float) -> list[str]:
    return [f"answered after {elapsed_s:.1f} s"] if elapsed_s > prover.seconds(COLLECT_S) else []


def _below_a_root(path: str) -> bool:
    inside = path.startswith(("/workspace/", "/data/output/"))
    return inside and ".." not in path.split("/") and "\0" not in path


def _note(result: Result) -> str:
    return f"{len(result.files)} entries; {'; '.join(result.warnings)}"
