"""S2: the host's side of a kept sandbox's files, against an honest agent and against liars."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from belljar.conversation import Conversation
from belljar.errors import (
    InvalidRequest,
    SandboxFileError,
    SandboxFileExists,
    SandboxFileMissing,
    SandboxLost,
)
from belljar.kept import content, entries
from belljar.kept import files as host_files
from belljar.kept.files import Files
from belljar.kept.sync_files import SyncFiles
from belljar.portal import Portal
from belljar.runtimes.guest import protocol
from belljar.runtimes.guest.files import Files as GuestFiles
from belljar.runtimes.guest.files import Refused

Answer = Callable[[dict[str, Any], Callable[[bytes], None]], dict[str, Any]]
"""(question, way to send frames before the answer) → what is said."""
Test = Callable[[Files], Awaitable[None]]


class Wall:
    """Only a stream: nothing here is contained, and nothing here tests containment."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.isolation: dict[str, str] = {}

    def look(self) -> None: ...

    def settle(self) -> None: ...

    def kill(self) -> None:
        self.stream.shutdown(socket.SHUT_RDWR)


def serve(stream: socket.socket, answer: Answer, take: Callable[[int, bytes], None]) -> None:
    """What the keeper does with questions about files."""
    reader = protocol.Reader(protocol.KEPT_FROM_HOST)
    with stream:
        while data := stream.recv(1 << 18):
            for kind, payload in reader.feed(data):
                if kind == protocol.TO:
                    (channel,) = protocol.CHANNEL.unpack_from(payload)
                    take(channel, payload[protocol.CHANNEL.size :])
                    continue
                ask = protocol.unpack(payload)
                said = answer(ask, stream.sendall)
                if not said:
                    return
                stream.sendall(protocol.message(protocol.ANSWER, {"id": ask["id"], **said}))


def piece(channel: int, data: bytes, stream: int = 3) -> bytes:
    return protocol.frame(protocol.FROM, protocol.OUTPUT.pack(channel, stream) + data)


def honest(guest: GuestFiles) -> Answer:
    def answer(ask: dict[str, Any], send: Callable[[bytes], None]) -> dict[str, Any]:
        def put_out(channel: int, stream: int, data: bytes) -> None:
            for start in range(0, len(data), protocol.CHUNK):
                send(piece(channel, data[start : start + protocol.CHUNK], stream))

        try:
            return {"ok": guest.ask(ask, put_out)}
        except Refused as refusal:
            return {"error": {"kind": refusal.kind, "message": str(refusal)}}

    return answer


@asynccontextmanager
async def talking(
    answer: Answer, take: Callable[[int, bytes], None] = lambda *_: None
) -> AsyncGenerator[Files, None]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    thread = threading.Thread(target=serve, args=(theirs, answer, take), daemon=True)
    thread.start()
    talk = Conversation(Wall(ours))  # type: ignore[arg-type]
    try:
        yield Files(talk)
        while content._letting_go:
            await asyncio.gather(*content._letting_go)
    finally:
        talk._lose("the test is over")
        ours.close()
        await asyncio.to_thread(thread.join, 10)


@pytest.fixture
def box(tmp_path: Path) -> Callable[[Test], GuestFiles]:
    """Runs a test with the real files of an agent; afterwards nothing may be open in it."""
    base = tmp_path / "guest"
    base.mkdir()
    roots = {}
    for place in ("workspace", "input", "output", "tmp"):
        (base / place).mkdir()
        roots[place] = os.open(base / place, os.O_RDONLY | os.O_DIRECTORY)
    guest = GuestFiles(roots)

    async def with_files(test: Test) -> None:
        async with talking(honest(guest), guest.content) as files:
            await test(files)
        assert not guest._held

    def run(test: Test) -> GuestFiles:
        asyncio.run(with_files(test))
        return guest

    return run


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "guest/workspace"


def kind_of(work: Coroutine[Any, Any, object]) -> Coroutine[Any, Any, str]:
    async def run() -> str:
        with pytest.raises(SandboxFileError) as caught:
            await work
        assert str(caught.value).isprintable()
        return caught.value.kind

    return run()


# -- an honest agent -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_536, 262_144, 262_145, 3_000_000, 9_000_001])
def test_content_goes_both_ways(
    box: Callable[[Test], object], workspace: Path, tmp_path: Path, size: int
) -> None:
    data = os.urandom(size)
    (tmp_path / "local").write_bytes(data)

    async def test(files: Files) -> None:
        await files.write("a/b", data)
        assert (workspace / "a/b").read_bytes() == data
        assert await files.read("a/b") == data
        assert await files.upload(tmp_path / "local", "c", mode=0o600) == size
        assert (workspace / "c").read_bytes() == data
        assert (await files.stat("c")).mode == 0o600
        assert await files.download("c", tmp_path / "back") == size
        assert (tmp_path / "back").read_bytes() == data
        async with files.open("c") as reader:
            assert reader.size == size
            assert b"".join([piece async for piece in reader]) == data
        async with files.open("c") as reader:
            parts = []
            while part := await reader.read(100_001):
                parts.append(part)
            assert all(len(part) == 100_001 for part in parts[:-1])
            assert b"".join(parts) == data

    box(test)
    assert sorted(os.listdir(tmp_path)) == ["back", "guest", "local"]


def test_a_gigabyte_costs_the_host_a_few_megabytes(
    box: Callable[[Test], object], workspace: Path, tmp_path: Path
) -> None:
    """S4. A sparse one here, so that it costs the machine no disk."""
    with open(workspace / "big", "wb") as file:
        file.truncate(1 << 30)

    async def test(files: Files) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        size = 0
        async with files.open("big") as reader:
            async for piece in reader:
                size += len(piece)
        assert size == 1 << 30
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 64 * 1024

    box(test)


def test_text_and_folders(box: Callable[[Test], object]) -> None:
    async def test(files: Files) -> None:
        await files.write("x/hello.txt", "grüß dich")
        assert await files.read_text("x/hello.txt") == "grüß dich"
        await files.write("x/odd", b"\xff")
        assert await files.read_text("x/odd") == "\ufffd"
        await files.mkdir("x/y/z")
        assert [info.path for info in await files.list()] == ["/workspace/x"]
        found = await files.list("/workspace", depth=3)
        assert [info.path.removeprefix("/workspace/") for info in found] == [
            "x", "x/hello.txt", "x/odd", "x/y", "x/y/z",
        ]  # fmt: skip
        assert [info.kind for info in found] == ["folder", "file", "file", "folder", "folder"]
        assert found[1].name == "hello.txt" and found[1].is_file and found[0].is_folder
        assert await files.exists("x") and not await files.exists("x/hello.txt/below")
        await files.move("x/hello.txt", "/data/output/moved")
        assert await files.read("/data/output/moved") == "grüß dich".encode()
        await files.remove("x", recursive=True)
        assert not await files.exists("x")
        await files.remove("x", missing_ok=True)
        assert await kind_of(files.remove("x")) == "missing"

    box(test)


def test_errors_have_a_class_and_a_kind(box: Callable[[Test], object], workspace: Path) -> None:
    (workspace / "link").symlink_to("/etc")
    os.mkfifo(workspace / "fifo")

    async def test(files: Files) -> None:
        with pytest.raises(SandboxFileMissing):
            await files.read("nothing")
        await files.write("there", b"")
        with pytest.raises(SandboxFileExists):
            async with files.open("there", "xb"):
                pass
        with pytest.raises(SandboxFileExists):
            await files.move("link", "there")
        with pytest.raises(SandboxFileExists):
            await files.mkdir("there", exist_ok=False)
        assert await kind_of(files.read("link/passwd")) == "link"
        assert await kind_of(files.read("fifo")) == "not_a_file"
        assert await kind_of(files.write("fifo", b"")) == "not_a_file"
        assert await kind_of(files.write("/data/input/x", b"")) == "read_only"
        assert await kind_of(files.read("../etc/passwd")) == "name"
        assert await kind_of(files.list("there")) == "not_a_folder"
        assert (await files.stat("link")).kind == "link"
        assert await files.exists("link") and not await files.exists("link/passwd")
        with pytest.raises(InvalidRequest):
            files.open("x", "r+")  # type: ignore[call-overload]
        with pytest.raises(InvalidRequest):
            files.open("x", "wb", permissions=0o4755)
        with pytest.raises(InvalidRequest):
            await files.list(depth=100)

    box(test)


def test_a_giant_is_refused_before_it_is_read(
    box: Callable[[Test], object], workspace: Path, tmp_path: Path
) -> None:
    with open(workspace / "giant", "wb") as file:
        file.truncate(8 << 40)

    async def test(files: Files) -> None:
        info = await files.stat("giant")
        assert (info.size, info.disk_bytes) == (8 << 40, 0)
        assert await kind_of(files.read("giant")) == "too_large"
        assert await kind_of(files.download("giant", tmp_path / "giant")) == "too_large"
        async with files.open("giant") as reader:
            assert await reader.read(10) == bytes(10)

    box(test)
    assert os.listdir(tmp_path) == ["guest"]


def test_names_that_are_not_text(box: Callable[[Test], object], workspace: Path) -> None:
    name = b"\xff\x1b[31m\n"
    (workspace / os.fsdecode(name)).write_bytes(b"x")

    async def test(files: Files) -> None:
        (info,) = await files.list()
        assert info.name.encode("utf-8", "surrogateescape") == name
        assert info.printable == "/workspace/\\udcff\\x1b[31m\\n"
        assert await files.read(info.path) == b"x"
        await files.remove(info.path)

    box(test)


def test_a_large_folder(box: Callable[[Test], object], workspace: Path) -> None:
    for number in range(2500):
        (workspace / f"{number:05}").touch()

    async def test(files: Files) -> None:
        assert [int(info.name) for info in await files.list()] == list(range(2500))
        assert await kind_of(files.list(most_entries=100)) == "too_many"
        async with aclosing(files.entries()) as each:
            async for info in each:
                assert info.name == "00000"
                break

    box(test)


def test_what_is_given_up_half_way(
    box: Callable[[Test], object], workspace: Path, tmp_path: Path
) -> None:
    (workspace / "big").write_bytes(bytes(5_000_000))

    async def test(files: Files) -> None:
        with pytest.raises(RuntimeError):
            async with files.open("new", "wb") as writer:
                await writer.write(b"half")
                raise RuntimeError
        async with files.open("big") as reader:
            await reader.read(10)
        reading = asyncio.ensure_future(files.download("big", tmp_path / "back"))
        await asyncio.sleep(0.005)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    box(test)
    assert os.listdir(workspace) == ["big"]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


def test_a_download_replaces_a_link_and_does_not_follow_it(
    box: Callable[[Test], object], workspace: Path, tmp_path: Path
) -> None:
    (workspace / "f").write_bytes(b"from inside")
    precious = tmp_path / "precious"
    precious.write_text("untouched")
    (tmp_path / "target").symlink_to(precious)

    async def test(files: Files) -> None:
        await files.download("f", tmp_path / "target")
        with pytest.raises(InvalidRequest):
            await files.download("f", tmp_path)
        with pytest.raises(FileNotFoundError):
            await files.download("f", tmp_path / "no/such/folder")
        with pytest.raises(InvalidRequest):
            await files.upload("/dev/zero", "zeros")
        with pytest.raises(FileNotFoundError):
            await files.upload(tmp_path / "nothing", "nothing")
        assert not await files.exists("nothing")

    box(test)
    assert precious.read_text() == "untouched"
    assert not (tmp_path / "target").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"from inside"


def test_a_full_disk_ends_an_upload_early(
    box: Callable[[Test], GuestFiles], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L4. Nobody sends a gigabyte to a disk that has been full for long."""
    from belljar.runtimes.guest import contents

    def full(file: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    async def test(files: Files) -> None:
        monkeypatch.setattr(contents, "write_all", full)
        writer = files.open("f", "wb")
        sent = 0

        async def fill() -> None:
            nonlocal sent
            async with writer:
                for _ in range(100):
                    await writer.write(bytes(1 << 20))
                    sent += 1

        assert await kind_of(fill()) == "full"
        assert sent < 20
        assert await kind_of(files.write("g", b"x")) == "full"

    box(test)
    assert os.listdir(workspace) == []


def test_watching(box: Callable[[Test], object], workspace: Path) -> None:
    (workspace / "old").write_text("x")

    async def test(files: Files) -> None:
        seen = []
        async with aclosing(files.watch(interval_s=0.02)) as watch:
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0.2)
            (workspace / "sub").mkdir()
            seen.append(await waiting)
            (workspace / "old").write_text("longer")
            seen.append(await anext(watch))
            (workspace / "old").unlink()
            seen.append(await anext(watch))
        assert [(change.what, change.path) for change in seen] == [
            ("created", "/workspace/sub"),
            ("changed", "/workspace/old"),
            ("removed", "/workspace/old"),
        ]
        assert seen[0].info and seen[0].info.is_folder
        assert seen[1].info and seen[1].info.size == 6
        assert seen[2].info is None

    box(test)


def test_a_folder_moves_between_file_systems(
    box: Callable[[Test], object], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def other(source: Any, target: Any, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        if src_dir_fd != dst_dir_fd:
            raise OSError(18, "Invalid cross-device link")
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    async def test(files: Files) -> None:
        await files.write("tree/a/b", b"1")
        await files.write("tree/c", b"2")
        monkeypatch.setattr(os, "rename", other)
        await files.move("tree", "/tmp/tree")
        found = await files.list("/tmp", depth=9)
        assert [info.path for info in found if info.is_file] == ["/tmp/tree/a/b", "/tmp/tree/c"]
        assert await files.list() == []

    box(test)


def test_the_synchronous_face(tmp_path: Path, workspace: Path, box: object) -> None:
    """A1: every method of the asynchronous one is there, and does the same."""
    names = {name for name in vars(Files) if not name.startswith("_")}
    assert names == {name for name in vars(SyncFiles) if not name.startswith("_")}
    roots = {"workspace": os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)}
    guest = GuestFiles(roots)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    serving = (theirs, honest(guest), guest.content)
    threading.Thread(target=serve, args=serving, daemon=True).start()
    portal = Portal()

    async def start() -> Files:
        return Files(Conversation(Wall(ours)))  # type: ignore[arg-type]

    files = SyncFiles(portal.call(start()), portal)
    try:
        files.write("a", "text")
        assert files.read("a") == b"text" and files.read_text("a") == "text"
        with files.open("b", "wb") as writer:
            writer.write(bytes(600_000))
            assert writer.written == 600_000
        with files.open("b") as reader:
            assert reader.size == sum(len(piece) for piece in reader) == 600_000
        with files.open("b") as reader:
            assert reader.read(3) == bytes(3)
        assert [info.name for info in files.list()] == ["a", "b"]
        for info in files.entries():
            assert info == files.stat("a")
            break
        files.move("a", "c")
        files.mkdir("folder/inner")
        files.remove("folder", recursive=True)
        assert files.exists("c") and not files.exists("a")
        assert files.download("c", tmp_path / "c") == 4
        assert files.upload(tmp_path / "c", "d") == 4
        with pytest.raises(SandboxFileMissing):
            files.read("nothing")
        watch = iter(files.watch(interval_s=0.02))
        timer = threading.Timer(0.3, (workspace / "new").touch)
        timer.start()
        assert next(watch).path == "/workspace/new"
        timer.join()
        watch.close()  # type: ignore[attr-defined]
    finally:
        portal.close()
        ours.close()


# -- liars -----------------------------------------------------------------------------------------

BLOCK = bytes(1 << 14)
ROW = ["name", "file", 1, 1, 1, 0o644]


def lying(said: object, frames: Callable[[int], bytes] = lambda _: b"") -> Answer:
    """Says the same to everything."""

    def answer(ask: dict[str, Any], send: Callable[[bytes], None]) -> dict[str, Any]:
        send(frames(ask["id"]))
        return {"ok": said}

    return answer


def asked(answer: Answer, test: Test) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), talking(answer) as files:
            await test(files)

    asyncio.run(run())


def replaced(position: int, value: object) -> list[object]:
    return [value if number == position else item for number, item in enumerate(ROW)]


@pytest.mark.parametrize(
    "row",
    [
        None, [], {}, "row", ROW[:5], [*ROW, 1],
        *(replaced(1, value) for value in ("x", None, 1, ["file"])),
        *(replaced(2, value) for value in (-1, 1 << 63, "1", 1.5, None, True)),
        *(replaced(3, value) for value in (-1, 1 << 63, None)),
        *(replaced(4, value) for value in (1 << 100, "now", None, 1.0)),
        *(replaced(5, value) for value in (-1, 0o10000, None)),
    ],
)  # fmt: skip
def test_an_entry_that_is_none(row: object) -> None:
    async def test(files: Files) -> None:
        assert await kind_of(files.stat("x")) == "garbled"
        assert await kind_of(files.list("x")) == "garbled"

    asked(lying({"entry": row, "entries": [row], "end": True}), test)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/etc/passwd", "../../x", "a\0b", "n" * 256, "\ud800", None, 7, ["x"]],
)
def test_names_that_no_file_can_have(name: object) -> None:
    """Somebody might join one to a path of the host."""

    async def test(files: Files) -> None:
        assert await kind_of(files.list()) == "garbled"

    asked(lying({"entries": [replaced(0, name)], "end": True}), test)


@pytest.mark.parametrize(
    "said",
    [
        {}, {"entries": "x", "end": True}, {"entries": [ROW]}, {"entries": [ROW], "end": 1},
        {"entries": [ROW, ROW], "end": True}, {"entries": [ROW], "end": False},
        {"entries": [replaced(0, "b"), replaced(0, "a")], "end": True},
        {"entries": [replaced(0, f"{number:05}") for number in range(5000)], "end": True},
    ],
)  # fmt: skip
def test_pages_that_are_none(said: object) -> None:
    """Among them the same page for ever, which would fill the host's memory."""

    async def test(files: Files) -> None:
        assert await kind_of(files.list()) == "garbled"

    asked(lying(said), test)


def test_no_entries_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_files, "_PATIENCE", 200)

    async def test(files: Files) -> None:
        assert await kind_of(files.list()) == "garbled"
        assert await kind_of(files.remove("x", recursive=True)) == "busy"

    asked(lying({"entries": [], "end": False, "more": True}), test)


@pytest.mark.parametrize(
    ("said", "frames"),
    [
        ({"size": 10, "bytes": 10, "end": True}, lambda channel: b""),
        ({"size": 10, "bytes": 3, "end": True}, lambda channel: piece(channel, b"four")),
        ({"size": 10, "bytes": 4, "end": True}, lambda channel: piece(channel, b"four", 1)),
        ({"size": 10, "bytes": -1, "end": True}, lambda channel: b""),
        ({"size": -1, "bytes": 4, "end": True}, lambda channel: piece(channel, b"four")),
        ({"size": None, "bytes": 4, "end": True}, lambda channel: piece(channel, b"four")),
        ({"size": 4, "bytes": 4, "end": "yes"}, lambda channel: piece(channel, b"four")),
        ({"size": 4, "bytes": 4}, lambda channel: piece(channel, b"four")),
        ({"size": 1, "bytes": 1 << 20, "end": True}, lambda channel: 64 * piece(channel, BLOCK)),
        ({"size": 10, "bytes": 4, "end": False}, lambda channel: piece(channel, b"four")),
    ],
)  # fmt: skip
def test_content_that_is_not_what_was_announced(
    said: object, frames: Callable[[int], bytes], tmp_path: Path
) -> None:
    async def test(files: Files) -> None:
        assert await kind_of(files.read("x")) == "garbled"
        assert await kind_of(files.download("x", tmp_path / "x")) == "garbled"

    asked(lying(said, frames), test)
    assert os.listdir(tmp_path) == []


def test_more_content_than_was_asked_for_is_not_held() -> None:
    """L5: a piece is 256 KiB; a guest that answers with a gigabyte fills its own time only."""

    def flood(ask: dict[str, Any], send: Callable[[bytes], None]) -> dict[str, Any]:
        frame = piece(ask["id"], bytes(1 << 19))
        for _ in range(1024):
            send(frame)
        return {"ok": {"size": 1 << 29, "bytes": 1 << 29, "end": True}}

    async def test(files: Files) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert await kind_of(files.read("x")) == "garbled"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024

    asked(flood, test)


def test_a_file_without_end_stops_at_the_bound(tmp_path: Path) -> None:
    def endless(ask: dict[str, Any], send: Callable[[bytes], None]) -> dict[str, Any]:
        for _ in range(4):
            send(piece(ask["id"], bytes(1 << 16)))
        return {"ok": {"size": 0, "bytes": 1 << 18, "end": False}}

    async def test(files: Files) -> None:
        assert await kind_of(files.read("x", most_bytes=10 << 20)) == "too_large"
        local = tmp_path / "x"
        assert await kind_of(files.download("x", local, most_bytes=10 << 20)) == "too_large"

    asked(endless, test)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("written", [0, 3, 5, -4, None, "4"])
def test_a_write_that_was_none(written: object) -> None:
    async def test(files: Files) -> None:
        assert await kind_of(files.write("x", b"four")) == "garbled"

    asked(lying({"handle": 1, "written": written, "size": 4}), test)


@pytest.mark.parametrize(
    "said",
    [
        {"changes": None, "more": False},
        {"changes": [["created", "x"]], "more": False},
        {"changes": [["exploded", "x", ROW]], "more": False},
        {"changes": [["created", "../x", ROW]], "more": False},
        {"changes": [["removed", "/etc/passwd", None]], "more": False},
        {"changes": [["created", "x", None]], "more": False},
        {"changes": [], "more": None},
    ],
)
def test_changes_that_are_none(said: object) -> None:
    async def test(files: Files) -> None:
        async with aclosing(files.watch()) as watch:
            assert await kind_of(anext(watch)) == "garbled"  # type: ignore[arg-type]

    asked(lying(said), test)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"kind": "missing", "message": "no"}, "missing"),
        ({"kind": "garbled", "message": "x"}, "os"),
        ({"kind": ["x"], "message": {"y": 1}}, "os"),
        ({}, "os"),
        ({"kind": "full", "message": "\x1b[2J\ud800" + "x" * 5000}, "full"),
    ],
)
def test_refusals_are_text_within_bounds(error: object, kind: str) -> None:
    async def test(files: Files) -> None:
        with pytest.raises(SandboxFileError) as caught:
            await files.stat("x")
        assert caught.value.kind == kind
        assert str(caught.value).isprintable() and len(str(caught.value)) < 1500
        str(caught.value).encode()

    asked(lambda ask, send: {"error": error}, test)  # type: ignore[dict-item]


def test_a_sandbox_that_goes_away(tmp_path: Path) -> None:
    async def test(files: Files) -> None:
        with pytest.raises(SandboxLost):
            await files.download("x", tmp_path / "x")
        with pytest.raises(SandboxLost):
            await files.write("x", b"x")

    asked(lambda ask, send: {}, test)
    assert os.listdir(tmp_path) == []


def test_what_the_guest_names_stays_printable() -> None:
    assert (
        entries.printable("a\u202eb\n\x1b\udcff\U0001f514") == "a\\u202eb\\n\\x1b\\udcff\U0001f514"
    )
    json.dumps(entries.printable("\udcff")).encode()
