"""S2, S4, L4: files of real kept sandboxes, with code inside that does its worst."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

import belljar
from belljar.errors import SandboxFileError, SandboxFileMissing
from belljar.model import GIB, MIB


@pytest.fixture(scope="module")
def box(jar: belljar.Belljar) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(jar, max_runs=1000, lifetime_s=600) as box:
        yield box


@pytest.fixture(autouse=True)
def clean(box: belljar.Sandbox) -> Iterator[None]:
    yield
    for place in ("/workspace", "/data/output", "/tmp"):
        for info in box.files.list(place):
            box.files.remove(info.path, recursive=True)


def run(box: belljar.Sandbox, code: str) -> str | None:
    result = box.run(code)
    assert result.status == "ok", result.stderr
    return result.value


def kind(box: belljar.Sandbox, name: str, *arguments: object, **options: object) -> str:
    with pytest.raises(SandboxFileError) as caught:
        getattr(box.files, name)(*arguments, **options)
    return caught.value.kind


def test_the_code_and_the_caller_see_the_same_files(box: belljar.Sandbox) -> None:
    box.files.write("data/in.csv", "a,b\n1,2\n")
    assert run(box, "open('data/in.csv').read()") == repr("a,b\n1,2\n")
    run(box, "open('/data/output/out', 'wb').write(b'made inside'); open('/tmp/t', 'w').close()")
    assert box.files.read("/data/output/out") == b"made inside"
    assert box.files.stat("/tmp/t").size == 0
    assert run(box, "open('data/in.csv', 'a').write('3,4')") == "3", "the code may change it"
    box.files.mkdir("made/outside")
    run(box, "import os; os.rmdir('made/outside'); os.rmdir('made')")
    with pytest.raises(SandboxFileMissing):
        box.files.stat("made")


def test_whatever_the_code_plants_is_listed_and_not_followed(box: belljar.Sandbox) -> None:
    run(
        box,
        "import os, socket\n"
        "os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'folder-link')\n"
        "os.symlink('/proc/1/root', 'root'); os.symlink('/proc/self/fd', 'fds')\n"
        "os.symlink('loop', 'loop'); os.symlink('/data/input', 'input-link')\n"
        "os.mkfifo('fifo'); s = socket.socket(socket.AF_UNIX); s.bind('socket'); s.close()\n"
        "open(b'\\xff\\x1b[2J\\n', 'w').close()\n"
        "with open('giant', 'wb') as f: f.truncate(10 << 40)\n"
        "os.mkdir('dark'); open('dark/x', 'w').close(); os.chmod('dark', 0)",
    )
    found = {info.name: info.kind for info in box.files.list()}
    assert found.pop("\udcff\x1b[2J\n") == "file"
    links = ("link", "folder-link", "root", "fds", "loop", "input-link")
    assert found == {
        **dict.fromkeys(links, "link"),
        **{"fifo": "fifo", "socket": "socket", "giant": "file", "dark": "folder"},
    }
    for name in links:
        assert kind(box, "read", name) == "link"
        assert kind(box, "write", name, b"x") == "link"
        assert kind(box, "read", name + "/passwd") == "link"
        assert kind(box, "list", name) == "link"
    assert kind(box, "read", "fifo") == kind(box, "write", "fifo", b"") == "not_a_file"
    assert kind(box, "read", "giant") == "too_large"
    giant = box.files.stat("giant")
    assert (giant.size, giant.disk_bytes) == (10 << 40, 0)
    assert kind(box, "list", "dark") == "forbidden"
    assert run(box, "1 + 1") == "2", "it answers as before"


def test_folders_deeper_than_any_path(box: belljar.Sandbox) -> None:
    run(
        box,
        "import os\n"
        "for _ in range(3000):\n    os.mkdir('dddd'); os.chdir('dddd')\n"
        "open('bottom', 'w').close(); os.chdir('/workspace')",
    )
    assert [info.name for info in box.files.list("/".join(["dddd"] * 3000))] == ["bottom"]
    assert len(box.files.list(depth=64)) == 64
    box.files.remove("dddd", recursive=True)
    assert box.files.list() == []


def test_a_folder_that_the_code_swaps_for_a_link_all_the_time(box: belljar.Sandbox) -> None:
    run(
        box,
        "import os\n"
        "os.makedirs('a/now'); open('a/now/file', 'w').write('inside')\n"
        "os.makedirs('/tmp/elsewhere'); open('/tmp/elsewhere/file', 'w').write('secret')\n"
        "os.symlink('/tmp/elsewhere', 'a/other')",
    )
    swap = (
        "import ctypes\n"
        "exchange = ctypes.CDLL(None).renameat2\n"
        "while True: exchange(-100, b'/workspace/a/now', -100, b'/workspace/a/other', 2)"
    )
    process = box.start(["python3", "-c", swap])
    refused = 0
    try:
        for number in range(200):
            for ask in (
                lambda: box.files.read("a/now/file") == b"inside",
                lambda name=f"a/now/{number}": box.files.write(name, b"x") is None,
                lambda: box.files.list("a/now"),
            ):
                try:
                    assert ask()
                except SandboxFileError as error:
                    assert error.kind in ("link", "not_a_folder", "missing")
                    refused += 1
    finally:
        process.kill()
        process.wait(10)
    assert [info.name for info in box.files.list("/tmp/elsewhere")] == ["file"]


def test_a_full_disk_is_told(jar: belljar.Belljar, tmp_path: Path) -> None:
    """L4. The agent answers on, and the half file is gone."""
    (tmp_path / "big").write_bytes(bytes(30 * MIB))
    with belljar.Sandbox(jar, disk_bytes=16 * MIB) as box:
        assert kind(box, "upload", tmp_path / "big", "big") == "full"
        assert box.files.list() == []
        box.files.write("small", b"x" * MIB)
        assert kind(box, "write", "big", bytes(20 * MIB)) == "full"
        assert [info.size for info in box.files.list()] == [MIB]


def test_runs_go_on_while_many_files_are_removed(box: belljar.Sandbox) -> None:
    """The agent is one thread: what takes long is done in slices."""
    run(
        box,
        "import os\nos.mkdir('many')\n"
        "for n in range(8000): os.close(os.open('many/%d' % n, os.O_CREAT))",
    )

    async def remove_and_ask() -> float:
        files = box.files._files
        removing = asyncio.ensure_future(files.remove("many", recursive=True))
        slowest_s = 0.0
        while not removing.done():
            started = time.perf_counter()
            await files.exists("x")
            slowest_s = max(slowest_s, time.perf_counter() - started)
        await removing
        return slowest_s

    assert box.files._portal.call(remove_and_ask()) < 10.0, "the agent did nothing else"
    assert box.files.list() == []


def test_watching_what_the_code_does(box: belljar.Sandbox) -> None:
    async def watch() -> list[tuple[str, str]]:
        seen = []
        async with aclosing(box.files._files.watch(interval_s=0.05)) as changes:
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0.3)
            await box._opened().run("open('new', 'w').close()")
            seen.append(await asyncio.wait_for(waiting, 20))
            await box._opened().run("open('new', 'w').write('content')")
            seen.append(await asyncio.wait_for(anext(changes), 20))
            await box._opened().run("import os; os.remove('new')")
            seen.append(await asyncio.wait_for(anext(changes), 20))
        return [(change.what, change.path) for change in seen]

    assert box.files._portal.call(watch()) == [
        ("created", "/workspace/new"),
        ("changed", "/workspace/new"),
        ("removed", "/workspace/new"),
    ]


@pytest.mark.slow
def test_a_gigabyte_goes_in_and_comes_back(jar: belljar.Belljar, tmp_path: Path) -> None:
    """S4: with bounded memory on this side."""
    block = os.urandom(MIB)
    digest = hashlib.sha256()
    with open(tmp_path / "big", "wb") as file:
        for number in range(1024):
            piece = number.to_bytes(4, "big") + block[4:]
            file.write(piece)
            digest.update(piece)
    limits = {"memory_bytes": 3 * GIB, "disk_bytes": 2 * GIB}
    with belljar.Sandbox(jar, **limits) as box:
        box.files.write("small", b"x")
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        assert box.files.upload(tmp_path / "big", "big") == GIB
        in_s = time.perf_counter() - started
        started = time.perf_counter()
        assert box.files.download("big", tmp_path / "back") == GIB
        back_s = time.perf_counter() - started
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        inside = run(
            box,
            "import hashlib\nhashlib.file_digest(open('big', 'rb'), 'sha256').hexdigest()",
        )
    print(f"1 GiB in: {in_s:.1f} s, back: {back_s:.1f} s, host grew by {grown_kib // 1024} MiB")
    assert inside == repr(digest.hexdigest())
    with open(tmp_path / "back", "rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest.hexdigest()
    assert grown_kib < 64 * 1024
