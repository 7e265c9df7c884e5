"""The parts that a package layer is built with: walking, watching, inspecting, noting (S5).

Shell scripts stand in for uv here; tests/functional/test_layers.py runs the real one.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from belljar.environments import folders, inspect_layer, layers, trees, watched
from belljar.environments.catalogue import BASE, DATA, NODE
from belljar.environments.resolve import parse_pins
from belljar.errors import EnvironmentUnavailable, PackageRefused
from belljar.model import MIB
from belljar.settings import Settings

KEY = "0123456789abcdef" * 2


# --- folders that a stranger filled


def test_a_folder_as_deep_as_paths_are_long_is_walked_measured_and_deleted(tmp_path: Path) -> None:
    top = tmp_path / "top"
    deepest, depth = str(top), 0
    os.mkdir(deepest)
    while len(deepest) < 4000:
        deepest += "/d"
        os.mkdir(deepest)
        depth += 1
    assert depth > sys.getrecursionlimit()
    assert sum(1 for _ in trees.entries(top)) == depth
    for entry in list(trees.entries(top)):
        os.chmod(entry.path, 0o555)
    trees.delete(top)
    assert not top.exists()


def test_links_are_neither_followed_nor_deleted_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(outside)
    (tmp_path / "itself").symlink_to(outside)
    assert [entry.name for entry in trees.entries(top)] == ["link"]
    trees.delete(top)
    trees.delete(tmp_path / "itself")
    trees.delete(tmp_path / "never there")
    assert [item.name for item in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").exists()


def test_small_files_count_by_the_page_and_linked_ones_once(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "one").write_text("x")
    (tmp_path / "page and a bit").write_bytes(b"x" * 4097)
    assert sum(map(trees.on_disk, trees.entries(tmp_path))) == 4 * 4096
    (tmp_path / "again").hardlink_to(tmp_path / "page and a bit")
    assert sum(map(trees.on_disk, trees.entries(tmp_path))) == 4 * 4096


# --- watching


def bounds(path: Path, *, seconds: float = 30.0, most_bytes: int = MIB) -> watched.Bounds:
    lock_fd = os.open(path, os.O_RDONLY)
    return watched.Bounds(
        scratch=path,
        deadline=time.monotonic() + seconds,
        seconds=seconds,
        most_bytes=most_bytes,
        lock_fds=(lock_fd,),
    )


def sh(script: str, limits: watched.Bounds) -> list[str]:
    lines: list[str] = []
    watched.run(["/bin/sh", "-c", script], limits, on_line=lines.append)
    return lines


def alive(pid: int) -> bool:
    """Not one that only waits for its parent to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("hidden", ["", "exec >/dev/null 2>&1; "], ids=["talking", "silent"])
def test_S5_too_slow_is_killed_with_all_that_it_started(tmp_path: Path, hidden: str) -> None:
    started = time.monotonic()
    with pytest.raises(EnvironmentUnavailable, match=r"not built within 0.5 s"):
        sh(f"{hidden}sleep 60 & echo $! > pid; wait", bounds(tmp_path, seconds=0.5))
    assert time.monotonic() - started < 10
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)


def test_S5_too_large_is_killed_while_it_writes(tmp_path: Path) -> None:
    with pytest.raises(PackageRefused, match="more than 1 MiB on disk"):
        sh("i=0; while :; do i=$((i+1)); head -c 200000 /dev/zero > f$i; sleep 0.05; done",
           bounds(tmp_path))  # fmt: skip
    assert sum(map(trees.on_disk, trees.entries(tmp_path))) < 8 * MIB


def test_S5_many_empty_files_are_too_large_too(tmp_path: Path) -> None:
    with pytest.raises(PackageRefused, match="on disk"):
        sh("i=0; while :; do i=$((i+1)); : > f$i; done", bounds(tmp_path))


def test_endless_lines_cost_little(tmp_path: Path) -> None:
    longest = 0

    def see(line: str) -> None:
        nonlocal longest
        longest = max(longest, len(line))

    watched.run(["/bin/sh", "-c", "head -c 20000000 /dev/zero"], bounds(tmp_path), on_line=see)
    assert 0 < longest <= 2 * watched.LINE_BYTES


def test_a_failure_is_told_without_addresses_and_paths(tmp_path: Path) -> None:
    script = f"""
        echo 'Failed to fetch: `https://user:secret@mirror.example/simple/x/`' >&2
        echo '{tmp_path}/cache/x: gone' >&2
        exit 2
    """
    with pytest.raises(watched.Failed) as caught:
        sh(script, bounds(tmp_path))
    text = str(caught.value)
    assert "Failed to fetch" in text and "cache/x: gone" in text
    assert "secret" not in text and "mirror" not in text and str(tmp_path) not in text


def test_the_program_sees_the_operators_index_and_little_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {
        "UV_DEFAULT_INDEX": "1",
        "UV_INDEX": "2",
        "UV_INDEX_INHOUSE_PASSWORD": "3",
        "UV_FIND_LINKS": "4",
        "HTTPS_PROXY": "5",
        "no_proxy": "6",
        "SSL_CERT_FILE": "7",
        "NETRC": "8",
    }
    unseen = {
        "AWS_SECRET_ACCESS_KEY": "x",
        "UV_CONSTRAINT": "x",
        "UV_OVERRIDE": "x",
        "UV_CONFIG_FILE": "x",
        "UV_TARGET": "x",
        "UV_PYTHON": "x",
        "UV_NO_BINARY": "x",
        "UV_PRERELEASE": "allow",
        "PYTHONPATH": "x",
        "PYTHONSTARTUP": "x",
        "VIRTUAL_ENV": "x",
        "XDG_CONFIG_HOME": "x",
        "LD_PRELOAD": "",
    }
    for name, value in (seen | unseen).items():
        monkeypatch.setenv(name, value)
    told = dict(line.split("=", 1) for line in sh("env", bounds(tmp_path)) if "=" in line)
    assert seen.items() <= told.items()
    assert not unseen.keys() & told.keys()
    assert told["HOME"] == str(tmp_path)
    assert told["UV_NO_CONFIG"] == "1"
    assert told["UV_CACHE_DIR"].startswith(str(tmp_path))


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnavailable, match="cannot run"):
        watched.run([str(tmp_path / "uv")], bounds(tmp_path), on_line=print)


# --- what uv answers


def test_pins_are_read() -> None:
    text = f"""\
alpha==1.0 \\
    --hash=sha256:{"b" * 64} \\
    --hash=sha256:{"a" * 64}
beta-two==2!1.0rc1+cpu \\
    --hash=sha256:{"c" * 64}
"""
    one, two = parse_pins(text)
    assert (one.name, one.version) == ("alpha", "1.0")
    assert one.hashes == (f"sha256:{'a' * 64}", f"sha256:{'b' * 64}")
    assert str(two) == f"beta-two==2!1.0rc1+cpu --hash=sha256:{'c' * 64}"


@pytest.mark.parametrize(
    "line",
    [
        "alpha @ https://example.org/a.whl",
        "-e .",
        "--index-url https://example.org",
        "alpha==1 ; python_version > '3'",
        "alpha",
        "    --hash=sha256:00",
        "    --hash=md5:" + "0" * 64,
        "# a comment",
    ],
)
def test_an_answer_that_is_not_understood_is_an_error(line: str) -> None:
    with pytest.raises(EnvironmentUnavailable, match="not understood"):
        parse_pins(line + "\n")


# --- what may be in a layer


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


EXTENSION = EXTENSION_SUFFIXES[0]


def test_S5_what_acts_by_itself_or_hides_the_standard_library_is_dropped(tmp_path: Path) -> None:
    bad = [
        "a.pth",
        "json.py",
        "random.pyc",
        f"zlib{EXTENSION}",
        "typing/__init__.py",
        "email/deep/x.py",
        "sitecustomize.py",
        "usercustomize/__init__.py",
        ".lock",
    ]
    good = [
        "good/json.py",
        "good/inner.pth",
        "json_tools.py",
        "json-1.0.dist-info/METADATA",
        "bin/json",
        "share/json.txt",
    ]
    put(tmp_path, *bad, *good, "json-1.0.dist-info/direct_url.json")
    dropped = inspect_layer.drop(tmp_path)
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert left == set(good)
    assert dropped == sorted({name.partition("/")[0] for name in bad} - {".lock"})


def test_the_names_that_can_be_imported(tmp_path: Path) -> None:
    put(
        tmp_path,
        "single.py",
        f"native{EXTENSION}",
        "abi.abi3.so",
        "package/__init__.py",
        "space/inner/module.py",
        "share/doc.txt",
        "bin/tool",
        "not-a-name/x.py",
        "readme.txt",
        "package-1.0.dist-info/METADATA",
    )
    assert inspect_layer.imports(tmp_path) == {"single", "native", "abi", "package", "space"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"#!/opt/x/bin/python3.11\nbody\n", b"#!/usr/bin/env python3\nbody\n"),
        (
            b"#!/bin/sh\n'''exec' \"/very long/python\" \"$0\" \"$@\"\n' '''\nbody\n",
            b"#!/usr/bin/env python3\nbody\n",
        ),
        (b"#!/bin/sh\necho python\n", b"#!/bin/sh\necho python\n"),
        (b"\x7fELF python", b"\x7fELF python"),
        (b"", b""),
    ],
    ids=["script", "long path", "shell", "program", "empty"],
)
def test_commands_start_the_sandboxes_python(tmp_path: Path, before: bytes, after: bytes) -> None:
    command = tmp_path / "bin" / "tool"
    command.parent.mkdir()
    command.write_bytes(before)
    command.chmod(0o755)
    inspect_layer.mend_commands(command.parent)
    inspect_layer.mend_commands(tmp_path / "no bin")
    assert command.read_bytes() == after
    assert os.access(command, os.X_OK)


def test_sealed_means_that_all_can_read_and_none_write(tmp_path: Path) -> None:
    files = tmp_path / "files"
    put(files, "a/b.py", "bin/tool", "setuid")
    (files / "bin/tool").chmod(0o700)
    (files / "setuid").chmod(0o6777)
    assert inspect_layer.seal(files) == 5 * 4096
    modes = {
        str(path.relative_to(files)): stat.S_IMODE(path.stat().st_mode) for path in files.rglob("*")
    }
    expected = {"a": 0o555, "a/b.py": 0o444, "bin": 0o555, "bin/tool": 0o555, "setuid": 0o555}
    assert modes == expected
    assert stat.S_IMODE(files.stat().st_mode) == 0o555
    trees.delete(files)


@pytest.mark.parametrize("kind", ["outside", "inside", "dangling", "hard", "fifo"])
def test_S5_what_is_no_plain_file_is_refused(tmp_path: Path, kind: str) -> None:
    files = tmp_path / "files"
    put(files, "a/b.py")
    odd = files / "a" / "odd"
    if kind == "hard":
        (tmp_path / "elsewhere").write_text("secret")
        odd.hardlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(odd)
    else:
        odd.symlink_to({"outside": "/etc/passwd", "inside": "b.py", "dangling": "no"}[kind])
    with pytest.raises(PackageRefused, match="'a/odd' is not a plain file"):
        inspect_layer.seal(files)


# --- what is noted


def note(settings: Settings, text: str) -> Path:
    path = layers.request_path(["humanize"], settings, BASE, {})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def store(settings: Settings, text: str) -> None:
    folder = layers.root(settings) / KEY
    (folder / layers.FILES).mkdir(parents=True, exist_ok=True)
    (folder / layers.MANIFEST).write_text(text)


REQUEST = json.dumps({"requirements": ["humanize"], "environment": "base", "layer": KEY})
HELD = json.dumps({"packages": {"humanize": "4.1"}, "bytes": 9, "imports": ["humanize"]})


def test_a_set_that_is_there_is_found(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    note(settings, REQUEST)
    store(settings, HELD)
    found = layers.layer(["humanize"], settings, environment=BASE)
    assert found == layers.Layer(
        key=KEY,
        folder=tmp_path / "layers" / KEY / "files",
        packages={"humanize": "4.1"},
        bytes=9,
        imports=frozenset({"humanize"}),
        tenant="local",
    )
    assert layers.installed(settings) == [found]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"layer": 5}', REQUEST[: len(REQUEST) // 2]]
    + [REQUEST.replace(KEY, key) for key in ("../../etc", "/etc", "", "f" * 32, KEY.upper())],
)
def test_a_damaged_note_is_no_note(tmp_path: Path, text: str) -> None:
    settings = Settings(home=tmp_path)
    note(settings, text)
    store(settings, HELD)
    assert layers.locate(["humanize"], settings, environment=BASE) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"packages": 1}', HELD[:-9]])
def test_a_damaged_layer_is_no_layer(tmp_path: Path, text: str) -> None:
    settings = Settings(home=tmp_path)
    note(settings, REQUEST)
    store(settings, text)
    assert layers.locate(["humanize"], settings, environment=BASE) is None
    assert layers.installed(settings) == []


def test_an_answer_is_for_one_environment_with_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path)

    def where(*requirements: str, environment=BASE, versions=()) -> Path:  # type: ignore[no-untyped-def]
        return layers.request_path(requirements, settings, environment, dict(versions))

    first = where("a", "b")
    assert first == where("b", "a", "a")
    others = [
        where("a"),
        where("a", "b", environment=DATA),
        where("a", "b", environment=DATA, versions={"numpy": "1"}),
        where("a", "b", environment=DATA, versions={"numpy": "2"}),
    ]
    monkeypatch.setattr(layers, "EXTENSION_SUFFIXES", [".cpython-399-riscv.so"])
    others.append(where("a", "b"))
    assert len({first, *others}) == 6


def test_what_the_environment_has(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert layers.provided(BASE, settings) == {}
    assert layers.provided(DATA, settings) is None
    manifest = folders.folder_of(DATA, settings) / folders.MANIFEST
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"versions": {"Scikit_Learn": "1.5"}}')
    assert layers.provided(DATA, settings) == {"scikit-learn": "1.5"}
    manifest.write_text('{"versions": ')
    assert layers.provided(DATA, settings) is None


def test_packages_are_for_python(tmp_path: Path) -> None:
    with pytest.raises(PackageRefused, match="'node' has no Python"):
        layers.layer(["humanize"], Settings(home=tmp_path), environment=NODE)


def test_an_operator_who_builds_ahead_is_told_how(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, build_environments=False)
    with pytest.raises(EnvironmentUnavailable) as caught:
        layers.layer(["humanize==4.*", "rich"], settings, environment=BASE)
    assert caught.value.hint == (
        "belljar env build base --packages 'humanize==4.*' --packages rich"
    )
    assert not (tmp_path / "layers").exists()


def test_asking_for_a_layer_imports_little() -> None:
    """On the path of every run with packages: nothing that builds may be loaded for it."""
    code = (
        "import sys; from belljar.environments import layers; "
        "print([m for m in ('uv', 'tempfile', 'shutil', 'subprocess', 'importlib.metadata', "
        "'belljar.environments.assemble') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.strip() == "[]", printed.stderr
