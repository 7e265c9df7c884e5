"""The images: `base`, a small Debian with Python, and environments on top of it.

From the Dockerfile where the daemon reaches a registry. Otherwise mmdebstrap makes the same from
Debian's packages, which needs neither a registry nor root; its archive is kept, so that another
daemon gets the image in seconds.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from belljar.engines.linux.places import COMMANDS, INPUT, OUTPUT, WORKSPACE
from belljar.engines.linux.root import ETC_FILES
from belljar.errors import EngineError, EngineUnavailable
from belljar.settings import Settings

from . import available
from .daemon import Daemon, name
from .plan import UIDS

SUITES = {(3, 9): "bullseye", (3, 11): "bookworm", (3, 13): "trixie"}
"""Debian's releases by the Python they have."""
LABELS = {"belljar.image": "3"}
"""The version of what we put into an image."""
PACKAGES = ("python3", "tzdata")
BUILD_S = 1800.0
_IN_ETC = ("passwd", "group", "nsswitch.conf", "host.conf")
"""Docker empties hosts, hostname and resolv.conf in every container."""
_UNWANTED = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/log",
)
_NO_REGISTRY = ("no such host", "dial tcp", "timeout", "connection refused", "network is unreach")

Say = Callable[[str], None]


def suite_for(version: tuple[int, int] = sys.version_info[:2]) -> str:
    """The release whose Python is ours, so that environments built here fit; else the newest."""
    return SUITES.get(version, SUITES[max(SUITES)])


def python_of(suite: str) -> tuple[int, int]:
    for version, known in SUITES.items():
        if known == suite:
            return version
    raise EngineUnavailable(
        f"suite: {suite!r} is unknown", hint=f"known: {', '.join(SUITES.values())}"
    )


def build_base(
    daemon: Daemon, settings: Settings, *, suite: str, method: str = "auto", say: Say
) -> str:
    """`method`: dockerfile, mmdebstrap, or auto, which tries them in this order."""
    python_of(suite)
    image = available.image_of("base", settings)
    if method in ("auto", "dockerfile"):
        say(f"{image}: building from the Dockerfile")
        try:
            _from_dockerfile(daemon, image, suite)
            return image
        except EngineError as error:
            offline = any(words in error.message for words in _NO_REGISTRY)
            if method == "dockerfile" or not offline:
                raise
            say(f"{image}: no registry can be reached")
    archive = _bootstrapped(settings, suite, say)
    say(f"{image}: importing {archive}")
    changes = [f"LABEL {key}={value}" for key, value in _labels(suite).items()]
    query = {"fromSrc": "-", "repo": image, "tag": "latest", "changes": "\n".join(changes)}
    with archive.open("rb") as file:
        _told(daemon.send_file("/images/create", file, query=query, wait_s=BUILD_S))
    return image


def build_on_base(
    daemon: Daemon, settings: Settings, environment: str, folder: Path, mount: str, *, say: Say
) -> str:
    """An environment's folder as a layer on the base image. Needs no registry."""
    image = available.image_of(environment, settings)
    base = available.image_of("base", settings)
    say(f"{image}: building from {base} and {folder}")
    recipe = f"FROM {base}\nCOPY environment {mount}\n"
    with _context({"Dockerfile": recipe}, folder) as file:
        _build(daemon, image, file, {})
    return image


def suite_of(daemon: Daemon, settings: Settings) -> str | None:
    """Which release the base image is made of; None for an image that is not ours."""
    image = available.image_of("base", settings)
    found = daemon.call_now("GET", f"/images/{name(image)}/json")
    labels = (found.get("Config") or {}).get("Labels") or {}
    suite = labels.get("belljar.suite")
    return str(suite) if suite else None


def _from_dockerfile(daemon: Daemon, image: str, suite: str) -> None:
    recipe = Path(__file__).with_name("Dockerfile").read_text()
    with _context({"Dockerfile": recipe}, None) as file:
        _build(daemon, image, file, _labels(suite), arguments={"SUITE": suite})


def _build(
    daemon: Daemon,
    image: str,
    context: IO[bytes],
    labels: Mapping[str, str],
    arguments: Mapping[str, str] | None = None,
) -> None:
    query = {
        "t": image,
        "labels": json.dumps(labels),
        "buildargs": json.dumps(arguments or {}),
        "rm": "1",
        "forcerm": "1",
    }
    _told(daemon.send_file("/build", context, query=query, wait_s=BUILD_S))


def _told(log: bytes) -> None:
    """The daemon answers 200 and tells the error in the log."""
    for line in log.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "error" in entry:
            raise EngineError(f"the image could not be built: {str(entry['error'])[:500]}")


def _labels(suite: str) -> dict[str, str]:
    return {**LABELS, "belljar.suite": suite}


# -- what goes into an archive ---------------------------------------------------------------------


def rootfs() -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The files and folders that make an image one of ours."""
    for folder in (WORKSPACE, "/data", INPUT, OUTPUT, "/opt/belljar", COMMANDS):
        entry = tarfile.TarInfo(folder.lstrip("/"))
        entry.type = tarfile.DIRTYPE
        # Podman gives what it mounts there the mode of the folder below.
        entry.mode = 0o1777 if folder in (WORKSPACE, OUTPUT) else 0o755
        yield entry, b""
    for file in _IN_ETC:
        content = (ETC_FILES[file] + _names(file)).encode()
        entry = tarfile.TarInfo(f"etc/{file}")
        entry.size, entry.mode = len(content), 0o644
        yield entry, content
    for command in ("python", "python3"):
        entry = tarfile.TarInfo(f"{COMMANDS.lstrip('/')}/{command}")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/usr/bin/python3"
        yield entry, b""


def _names(file: str) -> str:
    """Every uid that a sandbox may have is the same user by name."""
    if file == "passwd":
        return "".join(f"sandbox:x:{uid}:{uid}:sandbox:{WORKSPACE}:/bin/sh\n" for uid in UIDS)
    return "".join(f"sandbox:x:{uid}:\n" for uid in UIDS) if file == "group" else ""


@contextmanager
def _context(files: Mapping[str, str], environment: Path | None) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for path, text in files.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
            if environment:
                archive.add(environment, "environment", filter=_owned_by_root)
            else:
                for entry, content in rootfs():
                    entry.name = f"rootfs/{entry.name}"
                    archive.addfile(entry, io.BytesIO(content))
        file.seek(0)
        yield file


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


# -- without a registry ----------------------------------------------------------------------------


def _bootstrapped(settings: Settings, suite: str, say: Say) -> Path:
    """The archive of a root made by mmdebstrap; made once."""
    folder = settings.home.absolute() / "images"
    archive = folder / f"base-{suite}-{os.uname().machine}-{LABELS['belljar.image']}.tar"
    if archive.exists():
        return archive
    if not shutil.which("mmdebstrap"):
        raise EngineUnavailable(
            "without a registry the image is made with mmdebstrap, which is not installed",
            hint="apt-get install mmdebstrap; or give an image of your own: docker_images",
        )
    folder.mkdir(parents=True, exist_ok=True)
    say(f"making Debian {suite} with mmdebstrap (about a minute)")
    scratch = Path(tempfile.mkdtemp(prefix=".base-", dir=folder))
    try:
        made, ours = scratch / "root.tar", scratch / "ours.tar"
        with tarfile.open(ours, "w") as tar:
            for entry, content in rootfs():
                tar.addfile(entry, io.BytesIO(content))
        _run_mmdebstrap(suite, ours, made)
        made.rename(archive)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return archive


def _run_mmdebstrap(suite: str, ours: Path, target: Path) -> None:
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    for folder in _UNWANTED:
        command.append(f'--customize-hook=rm -rf "$1"/{folder}/*')
    command.append(f"--customize-hook=tar-in {shlex.quote(str(ours))} /")
    command.append('--customize-hook=find "$1" -xdev -type f -perm /6000 -exec chmod ug-s {} +')
    done = subprocess.run(
        [*command, suite, str(target)], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise EngineError(
            f"mmdebstrap ended with status {done.returncode}: {done.stderr.strip()[-600:]}",
            hint="it needs Debian's package index: check the network and the apt sources",
        )
