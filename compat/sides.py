"""The two sides: a sandbox through the public API, and the bare host as an ordinary user."""

from __future__ import annotations

import functools
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from belljar import Belljar, Settings
from belljar.model import GIB, MIB
from compat.accounts import Account, read

NOBODY = 65534
OPEN_FILES = 1024
OUTPUT = "/data/output/outcomes.jsonl"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One target of one suite, to be run by the same driver on both sides."""

    suite: str
    target: str
    driver: Path
    language: str = "python"
    environment: str = "base"
    bare_argv: Sequence[str] = ()
    """What runs the driver on the bare host, before the driver's own path."""
    bare_env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Put beside the driver on both sides."""
    env: Mapping[str, str] = field(default_factory=dict)
    inside_env: Mapping[str, str] = field(default_factory=dict)
    fresh_exec: bool = False
    timeout_s: float = 600.0


def settings() -> Settings:
    """Test suites are heavier than most programs: the operator allows them more."""
    plain = Settings()
    return replace(
        plain,
        pool_size=0,
        maxima=replace(plain.maxima, timeout_s=3600.0),
    )


def bare_python() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def inside(jar: Belljar, job: Job) -> Account:
    started = time.perf_counter()
    result = jar.run(
        job.driver.read_text(),
        language=job.language,
        environment=job.environment,
        files=job.files,
        env={
            "COMPAT_TARGET": job.target,
            "COMPAT_OUTCOMES": OUTPUT,
            **job.env,
            **job.inside_env,
        },
        fresh_exec=job.fresh_exec,
        timeout_s=job.timeout_s,
        memory_bytes=4 * GIB,
        cpus=float(len(os.sched_getaffinity(0))),
        processes=512,
        open_files=OPEN_FILES,
        disk_bytes=2 * GIB,
        disk_files=200_000,
        result_bytes=200 * MIB,
    )
    record = next((f.content for f in result.files if f.path == OUTPUT and f.content), b"")
    how = f"{result.status}, exit code {result.exit_code}, signal {result.signal}"
    return _account(record, how, result.stderr, time.perf_counter() - started)


def bare(job: Job) -> Account:
    folder = Path(tempfile.mkdtemp(prefix="belljar-compat-"))
    try:
        return _bare(job, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bare(job: Job, folder: Path) -> Account:
    started = time.perf_counter()
    driver = folder / ("main" + job.driver.suffix)
    shutil.copyfile(job.driver, driver)
    for name, content in job.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    outcomes = folder / "outcomes.jsonl"
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "COMPAT_TARGET": job.target,
        "COMPAT_OUTCOMES": str(outcomes),
        **job.env,
        **job.bare_env,
    }
    argv = [*(job.bare_argv or [bare_python(), "-s"]), str(driver)]
    reach = [argv[0], *environment.get("PYTHONPATH", "").split(":")]
    argv = _as_ordinary_user(argv, folder, reach=[Path(path) for path in reach if path])
    process = subprocess.Popen(
        argv,
        env=environment,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_like_inside,
    )
    try:
        _, stderr = process.communicate(timeout=job.timeout_s)
        how = f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        _, stderr = process.communicate()
        how = "timeout"
    record = outcomes.read_bytes() if outcomes.exists() else b""
    return _account(record, how, stderr.decode(errors="replace"), time.perf_counter() - started)


def _like_inside() -> None:
    # A shell starts background jobs with SIGINT ignored, and tests would inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Tests that fill the table of descriptors behave otherwise when it has a million places.
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))


def _account(record: bytes, how: str, stderr: str, seconds: float) -> Account:
    outcomes, details, complete = read(record.decode(errors="replace").splitlines())
    ended = "" if complete else f"{how}: {stderr[-1500:]}"
    return Account(outcomes=outcomes, details=details, ended=ended, seconds=seconds)


def _closed(reach: Sequence[Path]) -> Path | None:
    """The folder on the way that others may not enter: root's home, if the interpreter is there."""
    ways = [folder for path in reach for folder in reversed(path.parents)]
    return next((folder for folder in ways if not folder.stat().st_mode & 0o001), None)


def _as_ordinary_user(argv: list[str], folder: Path, *, reach: Sequence[Path]) -> list[str]:
    """Root's tests take other paths than a user's. What lies in root's closed home is bound open.

    In a mount namespace of its own, so that nothing changes for anyone else.
    """
    if os.geteuid() != 0:
        return argv
    os.chown(folder, NOBODY, NOBODY)
    for path in folder.rglob("*"):
        os.chown(path, NOBODY, NOBODY)
    home = _closed(reach)
    needed = {_top(path, home) for path in reach if home and path.is_relative_to(home)}
    steps = ["set -e", "mount --make-rprivate /"]
    # Packages someone installed for the host's interpreter are not part of the comparison.
    steps += [f"mount -t tmpfs empty {shlex.quote(folder)}" for folder in _package_folders()]
    if home and needed:
        spare = folder / "reach"
        steps += [f"mkdir {spare}", f"mount -t tmpfs reach {spare}"]
        for number, path in enumerate(sorted(needed)):
            hold = spare / str(number)
            steps += [f"mkdir {hold}", f"mount --rbind {shlex.quote(str(path))} {hold}"]
        steps += [f"mount -t tmpfs home {home}", f"chmod 755 {home}"]
        for number, path in enumerate(sorted(needed)):
            target = shlex.quote(str(path))
            steps += [f"mkdir -p {target}", f"mount --rbind {spare}/{number} {target}"]
        steps += [f"umount -R -l {spare}", f"rmdir {spare}"]
    drop = f"exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups -- "
    script = "\n".join([*steps, drop + shlex.join(argv)])
    return ["unshare", "--mount", "sh", "-c", script]


@functools.cache
def _package_folders() -> list[str]:
    """Asked of the interpreter itself: a distribution's has other ones than its virtual
    environments let suppose, and not all of them need be there."""
    code = "import site; print(*site.getsitepackages(), sep='\\n')"
    said = subprocess.run([bare_python(), "-s", "-c", code], capture_output=True, text=True)
    return [folder for folder in said.stdout.splitlines() if Path(folder).is_dir()]


def _top(path: Path, home: Path) -> Path:
    """The first folder below home: binding it whole keeps every link inside it working."""
    return home / path.relative_to(home).parts[0]
