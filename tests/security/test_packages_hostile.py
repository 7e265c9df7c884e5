"""S5: packages that attack the host while they are built, with the real uv and compiler."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.environments import bytecode, inspect_layer, watched
from belljar.errors import BelljarError, PackageRefused
from belljar.model import KIB, MIB
from tests.functional.test_layers import Shop, shop

__all__ = ["shop"]


def deflated(path: Path, name: str, member: str, head: str, size_bytes: int) -> None:
    """A wheel of a few megabytes with one large member."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open(member, "w", force_zip64=True) as file:
            file.write(head.encode())
            for _ in range(size_bytes // (16 * MIB)):
                file.write(b" " * (16 * MIB))
        archive.writestr(f"{name}.py", "")
        if member != f"{info}/METADATA":
            archive.writestr(f"{info}/METADATA", metadata(name))
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")


def metadata(name: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\n"


@pytest.mark.slow
def test_metadata_that_inflates_ends_uv_and_not_the_host(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata is read in one piece, and 3.6 MB of wheel may hold 3.5 GiB of it."""
    monkeypatch.setattr(watched, "MEMORY_BYTES", 384 * MIB)
    wheel = shop.wheels / "bomb-1.0-py3-none-any.whl"
    deflated(wheel, "bomb", "bomb-1.0.dist-info/METADATA", metadata("bomb"), 1024 * MIB)
    assert wheel.stat().st_size < 8 * MIB
    with pytest.raises(BelljarError) as refused:
        shop.layer("bomb")
    assert "memory" in refused.value.hint
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * KIB
    assert peak < 900 * MIB
    assert shop.left_over() == []


def test_a_huge_script_is_not_read_into_our_memory(tmp_path: Path) -> None:
    """Scripts get another first line; the rest is as long as the stranger likes."""
    script = tmp_path / "bin" / "tool"
    script.parent.mkdir()
    with script.open("wb") as file:
        file.write(b"#!/usr/bin/python3\nprint(1)\n#")
        file.truncate(600 * MIB)
    code = f"""
        import resource
        from pathlib import Path
        from belljar.environments import inspect_layer
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        inspect_layer.mend_commands(Path({str(script.parent)!r}))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) * KIB < 64 * MIB
    with script.open("rb") as file:
        assert file.read(34) == b"#!/usr/bin/env python3\nprint(1)\n#\0"
    assert os.listdir(script.parent) == ["tool"]


@pytest.mark.parametrize("kind", ["symbolic", "second name", "fifo"])
def test_a_layer_is_checked_before_anything_in_it_is_read(tmp_path: Path, kind: str) -> None:
    files = tmp_path / "files"
    files.mkdir()
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_text("secret = 1\n")
    if kind == "symbolic":
        (files / "module.py").symlink_to(elsewhere)
    elif kind == "second name":
        os.link(elsewhere, files / "module.py")
    else:
        os.mkfifo(files / "module.py")
    with pytest.raises(PackageRefused, match="not a plain file"):
        inspect_layer.check(files)


# What somebody would do who had found a hole in Python's parser, in the compiler's place. Each line
# answers with what it got; the socket is the only descriptor there is.
ATTACK = """
import os, socket, subprocess
def attack(source, name):
    found = []
    for what, try_it in (
        ("open", lambda: open("/etc/hostname").read()),
        ("write", lambda: open("/tmp/belljar-was-here", "w")),
        ("list", lambda: os.listdir("/")),
        ("fork", os.fork),
        ("exec", lambda: os.execv("/bin/true", ["true"])),
        ("socket", socket.socket),
        ("signal", lambda: os.kill(os.getppid(), 0)),
        ("limits", lambda: __import__("resource").getrlimit(0)),
        ("code", lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)),
    ):
        try:
            try_it()
            found.append(what)
        except OSError:
            pass
    return (" ".join(found) or "nothing").encode()
import mmap
source_compiler._compiled = attack
"""


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[bytecode._Compiler]:
    before, _, last = bytecode._PROGRAM.rpartition("source_compiler.live")
    attack = ATTACK.replace("{", "{{").replace("}", "}}")
    monkeypatch.setattr(bytecode, "_PROGRAM", f"{before}{attack}source_compiler.live{last}")
    made = bytecode._Compiler()
    yield made
    made.close()


def test_whoever_takes_the_compiler_over_has_nothing(compiler: bytecode._Compiler) -> None:
    assert compiler.ask("module.py", b"x = 1\n") == b"nothing"
    pid = compiler._process.pid
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    assert (status["Seccomp"], status["NoNewPrivs"], int(status["CapEff"], 16)) == ("2", "1", 0)
    if os.getuid() == 0:
        assert "0" not in status["Uid"].split()
        named = [os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")]
        assert {link.partition(":")[0] for link in named} == {"/dev/null", "socket"}


def test_a_source_that_takes_the_compiler_down_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _, last = bytecode._PROGRAM.rpartition("source_compiler.live")
    fall = (
        "real = source_compiler._compiled\n"
        "def fall(source, name):\n"
        "    if name == 'b.py': source_compiler.os.abort()\n"
        "    return real(source, name)\n"
        "source_compiler._compiled = fall\n"
    )
    monkeypatch.setattr(bytecode, "_PROGRAM", f"{before}{fall}source_compiler.live{last}")
    for name in "abc":
        (tmp_path / f"{name}.py").write_text(f"{name} = 1\n")
    bytecode.compile_sources(tmp_path, unbounded(tmp_path))
    made = {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert made == {"a", "c"}


def test_a_compiler_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytecode, "SOURCE_S", 0.2)
    monkeypatch.setattr(bytecode, "MOST_LOST", 2)
    monkeypatch.setattr(bytecode, "_PROGRAM", "import time; time.sleep(1000)")
    for number in range(50):
        (tmp_path / f"m{number}.py").write_text("x = 1\n")
    bytecode.compile_sources(tmp_path, unbounded(tmp_path))
    assert not list(tmp_path.rglob("*.pyc"))


def test_bytecode_never_lands_outside(tmp_path: Path) -> None:
    """Where it belongs, a wheel may have put something of its own."""
    files = tmp_path / "files"
    for name in ("one", "two"):
        (files / name).mkdir(parents=True)
        (files / name / "module.py").write_text("x = 1\n")
    (files / "one" / "__pycache__").write_text("a file")
    tag = f"module.{sys.implementation.cache_tag}.pyc"
    (files / "two" / "__pycache__" / tag).mkdir(parents=True)
    (files / "huge.py").write_bytes(b"#" * (bytecode.MOST_SOURCE_BYTES + 1))
    bytecode.compile_sources(files, unbounded(tmp_path))
    assert not [path for path in tmp_path.rglob("*.pyc") if path.is_file()]


def unbounded(scratch: Path) -> watched.Bounds:
    return watched.Bounds(
        scratch=scratch, deadline=float("inf"), seconds=0, most_bytes=1 << 40, lock_fds=()
    )
