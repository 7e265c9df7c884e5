"""The library's own arguments as the attack: refused with a clear error, or contained."""

from __future__ import annotations

import math
import os
import secrets
import time
from pathlib import Path
from typing import Any

from belljar.errors import BelljarError, InvalidRequest
from belljar.probes.probe import Probe
from belljar.probes.prover import Prover
from belljar.probes.verdict import Verdict, conclude, describe

NONSENSE: tuple[object, ...] = (-1, 0, math.nan, math.inf, -math.inf, 1e308, "5", [], 2**63)
LIMITS = ("timeout_s", "memory_bytes", "cpus", "processes", "disk_bytes", "disk_files")
RUNTIME_VARIABLES = (
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES", "MALLOC_TRACE", "LOCPATH"),
    *("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONINSPECT"),
    *("PYTHONWARNINGS", "PYTHONBREAKPOINT", "NODE_OPTIONS", "NODE_PATH", "GOFLAGS", "GOROOT"),
    *("BASH_ENV", "ENV", "IFS", "PS4", "SHELLOPTS", "BASH_FUNC_ls%%", "PATH"),
    *("GOTOOLCHAIN", "CC", "GIT_SSH_COMMAND"),
)
NOT_NAMES = ("A=B", "", "x\0y", "=", "\n", "A\ud800")
OUTSIDE = ["/", "/etc", "/tmp", "/data", "/data/input", "/data/output", "/root", "/usr"]


def limits_are_limits(prover: Prover, probe: Probe) -> Verdict:
    """Nonsense never means "no limit": it is refused before anything starts."""
    found = []
    for name in LIMITS:
        for value in NONSENSE:
            options: dict[str, Any] = {name: value}
            started = time.monotonic()
            try:
                result = prover.run_code("print(1)", **options)
            except InvalidRequest:
                pass
            except Exception as error:
                found.append(f"{name}={value!r}: {type(error).__name__}: {error}")
            else:
                found.append(f"{name}={value!r} was accepted: {describe(result)}")
            if time.monotonic() - started > prover.seconds(5):
                found.append(f"{name}={value!r}: {time.monotonic() - started:.1f} s")
    return conclude(found)


def variables_stay_inside(prover: Prover, probe: Probe) -> Verdict:
    """Names that change a runtime are refused, or act in the guest alone."""
    marker = Path(prover.fixtures.values["HOST_MARKER_PATH"])
    evil = f"import pathlib\npathlib.Path({str(marker)!r}).write_text('loaded')\n"
    files = {"sitecustomize.py": evil, "evil.py": evil, "evil.sh": f"echo > {marker}\n"}
    found = []
    for language, code in (("python", "print(1)"), ("bash", "echo 1")):
        for name in RUNTIME_VARIABLES:
            for value in ("/workspace", "/workspace/evil.sh", "() { :; }; echo evil"):
                try:
                    result = prover.run_code(
                        code,
                        language=language,
                        env={name: value},
                        files=files,
                        timeout_s=prover.timeout_s(10),
                    )
                except InvalidRequest:
                    break
                except Exception as error:
                    found.append(f"{name}: {type(error).__name__}: {error}")
                    break
                if result.status == "timeout" or result.warnings:
                    found.append(f"{name}={value}: {describe(result)}")
    for name in NOT_NAMES:
        found += _must_refuse(prover, f"variable {name!r}", env={name: "x"})
    found += _must_refuse(prover, "a value with NUL", env={"A": "x\0y"})
    if marker.exists():
        marker.unlink()
        found.append("a host process loaded what a variable named")
    return conclude(found)


def file_names_stay_inside(prover: Prover, probe: Probe) -> Verdict:
    """Names that climb are refused or land in their folder; nothing appears anywhere else."""
    name = "bj-" + secrets.token_hex(6)
    names = (
        f"../{name}",
        f"../../../../{name}",
        f"/etc/{name}",
        f"/tmp/{name}",
        f"a/../../{name}",
        f"a/./{name}",
        f"a//{name}",
        f"./{name}",
        f"..\\{name}",
        f"C:\\{name}",
        f"{name}\0.txt",
        f"%2e%2e/{name}",
        f"..%2f{name}",
        f"~/{name}",
        f"{name}/",
        "",
        ".",
        "..",
        "/",
        "x" * 300,
        "d/" * 3000 + name,
        f"\ud800{name}",
    )
    look = f"import os\nprint([f for f in {OUTSIDE!r} if os.path.lexists(f + '/{name}')])"
    found = []
    for option in ("files", "inputs"):
        for hostile in names:
            given: dict[str, Any] = {option: {hostile: b"x"}}
            try:
                result = prover.run_code(look, **given)
            except InvalidRequest:
                continue
            except Exception as error:
                found.append(f"{option} {hostile[:40]!r}: {type(error).__name__}: {error}")
                continue
            allowed = ["/data/input"] if option == "inputs" else []
            if result.stdout.strip() not in ("[]", str(allowed)):
                found.append(f"{option} {hostile[:40]!r}: {describe(result)}")
        for first, second in (("a", "a/b"), ("a/b", "a")):
            try:
                both: dict[str, Any] = {option: {first: b"x", second: b"x"}}
                prover.run_code("print(1)", **both)
            except BelljarError:
                pass
    places = [Path(folder) for folder in OUTSIDE] + [Path.cwd(), Path.cwd().parent]
    found += [f"on the host: {place / name}" for place in places if os.path.lexists(place / name)]
    if wrong := prover.works():
        found.append(wrong)
    return conclude(found, f"{len(names)} names, two ways each")


def _must_refuse(prover: Prover, what: str, **options: Any) -> list[str]:
    try:
        result = prover.run_code("print(1)", **options)
    except InvalidRequest:
        return []
    except Exception as error:
        return [f"{what}: {type(error).__name__}: {error}"]
    return [f"{what} was accepted: {describe(result)}"]
