"""What is in the guest's root: an interpreter, a shell with the usual tools, and Belljar's guest.

Everything comes from this machine, so that packages built for its interpreter work inside; nothing
that is this machine's own (accounts, names, configuration) comes along.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from belljar.engines.linux.places import COMMANDS, INPUT, WRITABLE
from belljar.engines.linux.root import ETC_FILES
from belljar.runtimes.interpreter import base_interpreter, base_prefix

from . import cpio

INTERPRETER = "/usr/local/bin/python3"
GUEST = "usr/lib/belljar"
MODULES = f"{GUEST}/modules"

TOOLS = """
awk base64 basename bash bc bzip2 cat chmod cksum cmp comm cp csplit cut date dd df diff dirname
du echo egrep env expand expr false fgrep file find fold gawk grep gunzip gzip head hostname id
install join kill less ln ls mawk md5sum mkdir mkfifo mktemp mv nice nl nohup nproc od paste
patch pr printenv printf ps pwd readlink realpath rm rmdir sed seq sh sha1sum sha256sum
sha512sum shuf sleep sort split stat stty sum sync tac tail tar tee test timeout touch tr true
truncate tsort tty uname unexpand uniq unlink wc which whoami xargs xz yes zcat
""".split()  # noqa: SIM905
"""Those of them that this machine has."""

LIBRARIES = (
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libgomp.so.1",
    "libatomic.so.1",
    "libz.so.1",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libutil.so.1",
    "libresolv.so.2",
    "libnss_dns.so.2",
    "libnss_files.so.2",
)
"""What wheels expect of any Linux, and what libc loads by name."""

_LEFT_OUT = frozenset(
    (
        "dist-packages",
        "ensurepip",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
        "tkinter",
        "turtledemo",
    )
)
_NO_MODULES = ("_tkinter", "_test", "_ctypes_test", "xx")
"""Compiled modules that no run needs; the first would bring a window system along."""
_WORTH_STRIPPING = 64 * 1024
_LDD = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)

INIT = f"""\
#!{INTERPRETER} -IB
import sys
sys.path.insert(0, "/{GUEST}")
from belljar.engines.microvm import inside
del sys.path[0]
inside.main()
"""
_SOURCES = (
    "engines/__init__.py",
    "engines/linux/__init__.py",
    "engines/linux/capabilities.py",
    "engines/linux/kernel.py",
    "engines/linux/landlock.py",
    "engines/linux/places.py",
    "engines/linux/seccomp.py",
    "engines/linux/socket_options.py",
    "engines/linux/syscalls.py",
    "engines/microvm/__init__.py",
    "engines/microvm/group.py",
    "engines/microvm/inside.py",
    "runtimes/__init__.py",
)


def base() -> Iterator[cpio.Entry]:
    """All but Belljar's own part, which changes more often."""
    seen = set()
    for entry in _base():
        if entry.path not in seen:
            seen.add(entry.path)
            yield _stripped(entry)


def _base() -> Iterator[cpio.Entry]:
    yield from _python()
    yield from _tools()
    for name, content in ETC_FILES.items():
        yield cpio.text(f"etc/{name}", content)
    for name in ("python", "python3"):
        yield cpio.link(f"{COMMANDS.lstrip('/')}/{name}", INTERPRETER)
    for place in (*WRITABLE, INPUT, "/proc", "/sys", "/dev", "/run", "/root"):
        yield cpio.folder(place.lstrip("/"))
    yield cpio.link("var/tmp", "../tmp")
    yield from _tree(Path("/usr/share/zoneinfo"), "usr/share/zoneinfo", without={"posix", "right"})


def guest() -> Iterator[cpio.Entry]:
    """Belljar's own part: closed to everybody but root inside."""
    package = Path(__file__).resolve().parents[2]
    yield cpio.text("init", INIT, 0o700)
    yield cpio.folder(GUEST, 0o700)
    yield cpio.text(f"{GUEST}/belljar/__init__.py", "")
    names = [*_SOURCES, *_guest_files(package)]
    for name in names:
        yield cpio.text(f"{GUEST}/belljar/{name}", (package / name).read_text())


def _guest_files(package: Path) -> list[str]:
    return [
        f"runtimes/guest/{file.name}" for file in sorted((package / "runtimes/guest").glob("*.py"))
    ]


def _stripped(entry: cpio.Entry) -> cpio.Entry:
    """Without what only a debugger reads: half of an interpreter that somebody built himself. It
    would be unpacked by every machine that boots, and lie in every snapshot."""
    strip = shutil.which("strip")
    if not strip or len(entry.content) < _WORTH_STRIPPING or entry.content[:4] != b"\x7fELF":
        return entry
    with tempfile.NamedTemporaryFile() as file:
        file.write(entry.content)
        file.flush()
        done = subprocess.run([strip, "--strip-unneeded", file.name], capture_output=True)
        if done.returncode:
            return entry
        return dataclasses.replace(entry, content=Path(file.name).read_bytes())


def _python() -> Iterator[cpio.Entry]:
    """The base interpreter with its standard library, below /usr/local wherever it was."""
    program = Path(base_interpreter())
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path(sysconfig.get_path("stdlib", vars={"base": base_prefix()}))
    yield cpio.copy(f"usr/local/bin/{version}", program)
    yield cpio.link("usr/local/bin/python3", version)
    yield cpio.link("usr/local/bin/python", version)
    without = _LEFT_OUT | {p.name for p in library.glob("config-*")}
    yield from _tree(library, f"usr/local/lib/{version}", without=without)
    modules = library.glob("lib-dynload/*.so")
    loaded = [program, *(path for path in modules if not path.name.startswith(_NO_MODULES))]
    yield from _libraries(loaded)


def _tools() -> Iterator[cpio.Entry]:
    found = []
    for name in TOOLS:
        program = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        if program is None:
            continue
        real = Path(program).resolve()
        yield cpio.copy(f"usr/bin/{name}", real)
        found.append(real)
    for top in ("bin", "sbin"):
        yield cpio.link(top, "usr/bin")
    yield from _libraries(found)
    yield from _libraries([path for name in LIBRARIES if (path := _library(name))])


def _tree(source: Path, target: str, *, without: Iterable[str] = ()) -> Iterator[cpio.Entry]:
    if not source.is_dir():
        return
    skipped = frozenset(without)
    for folder, folders, files in os.walk(source):
        below = os.path.relpath(folder, source)
        folders[:] = sorted(name for name in folders if name not in skipped)
        for name in sorted(files):
            # Compiled for this interpreter without options; those for others are never read.
            if ".opt-" in name or name.endswith((".a", ".exe", ".whl")):
                continue
            if below == "lib-dynload" and name.startswith(_NO_MODULES):
                continue
            path = Path(folder, name)
            place = os.path.normpath(f"{target}/{below}/{name}")
            if path.is_file() and os.access(path, os.R_OK):
                yield cpio.copy(place, path)


def _library(name: str) -> Path | None:
    for folder in _library_folders():
        if (found := Path(folder, name)).exists():
            return found
    return None


def _library_folders() -> list[str]:
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    return [
        f"/lib/{multiarch}",
        f"/usr/lib/{multiarch}",
        "/lib64",
        "/usr/lib64",
        "/lib",
        "/usr/lib",
    ]


def needs(program: Path) -> list[str]:
    """The shared libraries that a program loads at its start, with the loader itself."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True)
    return _LDD.findall(done.stdout)


def _libraries(programs: Iterable[Path]) -> Iterator[cpio.Entry]:
    """Each to where the loader looks without being told: a path that is only this machine's
    (an interpreter in a home folder) would not be found inside."""
    folders = _library_folders()
    seen: set[str] = set()
    for program in programs:
        own = [str(program)] if program.name.startswith("lib") and ".so" in program.name else []
        for path in [*own, *needs(program)]:
            if path in seen:
                continue
            seen.add(path)
            # /lib is a link to /usr/lib on most machines: each library comes under one name only.
            folder = os.path.dirname(path).removeprefix("/usr")
            if folder not in folders:
                folder = folders[0]
            yield cpio.copy(f"{folder.lstrip('/')}/{os.path.basename(path)}", Path(path))
