"""S2: a kept sandbox's files, asked for from inside, whatever the code put there."""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belljar.runtimes.guest import files as guest_files
from belljar.runtimes.guest import looking, ways
from belljar.runtimes.guest.files import Files, Refused
from belljar.runtimes.guest.protocol import MAX_PAYLOAD

PLACES = ("workspace", "input", "output", "tmp")


class Guest:
    """Asks as the host does, and looks at the folders from outside."""

    def __init__(self, base: Path) -> None:
        for place in PLACES:
            (base / place).mkdir()
        self.base = base
        self.workspace = base / "workspace"
        self.roots = {
            place: os.open(base / place, os.O_RDONLY | os.O_DIRECTORY) for place in PLACES
        }
        self.files = Files(self.roots)
        self.came = b""
        self._id = 0
        self.slowest_s = 0.0

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer, which must fit a frame."""
        self._id += 1
        ask = json.loads(json.dumps({"id": self._id, "op": op, **fields}))
        started = time.thread_time()
        try:
            answer = self.files.ask(ask, self._take)
        finally:
            self.slowest_s = max(self.slowest_s, time.thread_time() - started)
        assert len(json.dumps(answer)) < MAX_PAYLOAD
        return answer

    def refusal(self, op: str, **fields: Any) -> str:
        with pytest.raises(Refused) as caught:
            self.ask(op, **fields)
        assert str(caught.value).isprintable()
        return caught.value.kind

    def _take(self, channel: int, stream: int, data: bytes) -> None:
        assert (channel, stream) == (self._id, 3)
        self.came += data

    def write(self, path: str, data: bytes, **fields: Any) -> dict[str, Any]:
        options = {"mode": None, "append": False, "exclusive": False, **fields}
        handle = self.ask("write_open", path=path, **options)["handle"]
        for start in range(0, len(data), 1000):
            self.files.content(handle, data[start : start + 1000])
        self.files.content(handle, b"")
        return self.ask("write_close", handle=handle)

    def read(self, path: str, piece: int = 1 << 18) -> bytes:
        self.came = b""
        answer = self.ask("read_open", path=path, bytes=piece)
        handle = answer["handle"]
        while not answer["end"]:
            answer = self.ask("read", handle=handle, offset=len(self.came), bytes=piece)
        self.ask("close", handle=handle)
        return self.came

    def list(self, path: str, limit: int = 1000) -> list[list[Any]]:
        found: list[list[Any]] = []
        fields: dict[str, Any] = {"path": path}
        while True:
            answer = self.ask("list", limit=limit, **fields)
            found += answer["entries"]
            if answer["end"]:
                return found
            fields = {"handle": answer["handle"]}

    def names(self, path: str, limit: int = 1000) -> list[str]:
        return [row[0] for row in self.list(path, limit)]

    def work(self, op: str, **fields: Any) -> int:
        """How many answers it took."""
        count = 1
        answer = self.ask(op, **fields)
        while answer["more"]:
            answer = self.ask(op, handle=answer["handle"])
            count += 1
        return count

    def remove(self, path: str, *, recursive: bool = True) -> int:
        return self.work("remove", path=path, recursive=recursive)

    def changes(self, handle: int) -> list[tuple[str, str]]:
        found = []
        while True:
            answer = self.ask("changes", handle=handle)
            found += [(what, path) for what, path, _ in answer["changes"]]
            if not answer["more"]:
                return sorted(found)

    def watch(self, path: str = "/workspace", depth: int = 64) -> int:
        answer = self.ask("changes", path=path, depth=depth)
        handle: int = answer["handle"]
        while answer["more"]:
            assert not answer["changes"]
            answer = self.ask("changes", handle=handle)
        return handle


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    """Afterwards no descriptor may be open that was not before."""
    guest = Guest(tmp_path)
    before = open_descriptors()
    yield guest
    assert open_descriptors() <= before
    for root in guest.roots.values():
        os.close(root)


def open_descriptors() -> int:
    gc.collect()  # what other tests in this process have dropped
    return len(os.listdir("/proc/self/fd"))


def plant(folder: Path) -> dict[str, str]:
    """One of each kind that is not a plain file, and what it is."""
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "folder-link").symlink_to("/etc")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to(folder / "not-there")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "fifo")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "socket"))
    server.close()
    planted = dict.fromkeys(("link", "folder-link", "loop", "dangling", "up"), "link")
    planted.update(fifo="fifo", socket="socket")
    if os.geteuid() == 0:
        os.mknod(folder / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        planted["device"] = "device"
    return planted


def deep(folder: Path, levels: int, name: str = "d") -> None:
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


# -- paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "", "/", "/etc/passwd", "/data", "/data/other", "/workspacex", "//workspace/x",
        "..", "../x", "/workspace/..", "/workspace/../etc/passwd", "a/../b", "a//b", "./a", "a/.",
        "a/./b", "/workspace//a", "a//", "zero\0byte", "/tmp/../workspace", "n" * 256, "\ud800",
        "a/" * 5000, "x" * 200_000, None, 7, ["a"],
    ],
)  # fmt: skip
def test_paths_that_lead_elsewhere_are_refused(guest: Guest, path: object) -> None:
    for op, more in (
        ("stat", {}),
        ("list", {"limit": 10}),
        ("read_open", {"bytes": 10}),
        ("write_open", {"mode": None, "append": False, "exclusive": False}),
        ("mkdir", {"exist_ok": True}),
        ("remove", {"recursive": True}),
        ("changes", {"depth": 1}),
    ):
        assert guest.refusal(op, path=path, **more) == "name"
    guest.write("x", b"")
    assert guest.refusal("move", path="x", to=path, replace=True) == "name"


def test_relative_and_absolute_name_the_same(guest: Guest) -> None:
    guest.write("a/b", b"1")
    assert guest.read("/workspace/a/b") == guest.read("a/b") == b"1"
    assert guest.names(".") == guest.names("/workspace") == guest.names("/workspace/") == ["a"]
    assert guest.names("a/") == ["b"]
    guest.write("/tmp/t", b"2")
    guest.write("/data/output/o", b"3")
    assert (guest.base / "tmp/t").read_bytes() == b"2"
    assert (guest.base / "output/o").read_bytes() == b"3"


def test_a_place_that_this_wall_does_not_hand_out(tmp_path: Path) -> None:
    guest = Guest(tmp_path)
    os.close(guest.roots.pop("tmp"))
    assert guest.refusal("stat", path="/tmp/x") == "unsupported"


def test_the_places_themselves_stay(guest: Guest) -> None:
    for path in ("/workspace", "/data/output", "/tmp", "."):
        assert guest.refusal("remove", path=path, recursive=True) == "forbidden"
        assert guest.refusal("move", path=path, to="/workspace/x", replace=True) == "forbidden"
        assert guest.ask("stat", path=path)["entry"][1] == "folder"
        assert guest.refusal("read_open", path=path, bytes=1) == "not_a_file"
        assert guest.ask("mkdir", path=path, exist_ok=True) == {}


def test_the_input_is_read_only(guest: Guest) -> None:
    """S2. The agent could write there, where the host's own files come in."""
    (guest.base / "input/given").write_bytes(b"data")
    assert guest.read("/data/input/given") == b"data"
    assert guest.names("/data/input") == ["given"]
    opening = {"mode": None, "append": False, "exclusive": False}
    for op, fields in (
        ("write_open", {"path": "/data/input/given", **opening}),
        ("write_open", {"path": "/data/input/new", **opening}),
        ("mkdir", {"path": "/data/input/new", "exist_ok": True}),
        ("remove", {"path": "/data/input/given", "recursive": False}),
        ("move", {"path": "/data/input/given", "to": "/workspace/x", "replace": False}),
        ("move", {"path": "/workspace/x", "to": "/data/input/given", "replace": True}),
    ):
        assert guest.refusal(op, **fields) == "read_only"
    assert os.listdir(guest.base / "input") == ["given"]


@pytest.mark.parametrize("position", range(4))
def test_a_link_at_any_place_of_a_path_is_not_followed(
    guest: Guest, tmp_path_factory: pytest.TempPathFactory, position: int
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "b/c").mkdir(parents=True)
    (outside / "c").mkdir()
    for folder in (outside, outside / "b", outside / "c", outside / "b/c"):
        (folder / "d").write_text("secret")
    before = sorted(str(path) for path in outside.rglob("*"))
    names = ["a", "b", "c", "d"]
    link = guest.workspace.joinpath(*names[: position + 1])
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside.joinpath(*names[1 : position + 1]))
    path = "/".join(names)
    opening = {"mode": 0o600, "append": False, "exclusive": False}
    assert guest.refusal("read_open", path=path, bytes=10) == "link"
    assert guest.refusal("write_open", path=path, **opening) == "link"
    if position < 3:
        assert guest.refusal("stat", path=path) == "link"
        assert guest.refusal("list", path="a/b/c", limit=10) == "link"
        assert guest.refusal("remove", path=path, recursive=True) == "link"
        assert guest.refusal("mkdir", path=path + "/e", exist_ok=True) == "link"
        guest.write("plain", b"")
        assert guest.refusal("move", path="plain", to=path, replace=True) == "link"
        assert guest.refusal("move", path=path, to="taken", replace=True) == "link"
    else:
        assert guest.ask("stat", path=path)["entry"][1] == "link"
        guest.remove(path)
        assert not link.is_symlink()
    assert sorted(str(path) for path in outside.rglob("*")) == before
    assert (outside / "d").read_text() == "secret"


def test_a_folder_that_is_swapped_for_a_link_while_we_walk(
    guest: Guest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The race itself: another process plays the code, exchanging the two without a gap."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "file").write_text("secret")
    folder = guest.workspace / "a"
    (folder / "now").mkdir(parents=True)
    (folder / "now/file").write_text("inside")
    (folder / "other").symlink_to(outside)
    pid = os.fork()
    if pid == 0:
        exchange(os.fsencode(folder / "now"), os.fsencode(folder / "other"))
    refused, done = set(), 0
    try:
        for number in range(400):
            for ask in (
                lambda: guest.read("a/now/file") == b"inside",
                lambda name=f"a/now/{number}": guest.write(name, b"x"),
                lambda: "file" in guest.names("a/now"),
                lambda name=f"a/now/{number}": guest.remove(name),
            ):
                try:
                    assert ask()
                    done += 1
                except Refused as refusal:
                    refused.add(refusal.kind)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert done
    assert refused <= {"link", "missing", "not_a_folder"}
    assert os.listdir(outside) == ["file"]


def exchange(one: bytes, two: bytes) -> NoReturn:
    """For ever."""
    renameat2 = ctypes.CDLL(None).renameat2
    while True:
        renameat2(-100, one, -100, two, 2)


def test_an_open_file_stays_the_file_that_was_opened(guest: Guest) -> None:
    guest.write("f", b"x" * 300_000)
    handle = guest.ask("read_open", path="f", bytes=10)["handle"]
    (guest.workspace / "f").unlink()
    (guest.workspace / "f").symlink_to("/etc/passwd")
    guest.came = b""
    guest.ask("read", handle=handle, offset=0, bytes=20)
    assert guest.came == b"x" * 20
    guest.ask("close", handle=handle)


# -- names -----------------------------------------------------------------------------------------

HOSTILE = [
    b"new\nline", b"\xff\xfe not utf-8", b"-rf", b" ", b"...", b"\\..\\up", b"%00",
    b"\x1b[31mred", b"n" * 255, b"\xff" * 255, "\u202egnp.exe".encode(), b"$(reboot)", b"..x",
    b"\xed\xa0\x80 surrogate", "\U0001f514".encode(),
]  # fmt: skip


def test_hostile_names_are_listed_and_usable(guest: Guest) -> None:
    for name in HOSTILE:
        with open(os.fsencode(guest.workspace) + b"/" + name, "wb") as file:
            file.write(name)
    names = guest.names("/workspace")
    assert [name.encode("utf-8", "surrogateescape") for name in names] == sorted(HOSTILE)
    for name in names:
        assert guest.read(name) == name.encode("utf-8", "surrogateescape")
        assert guest.refusal("list", path=name, limit=1) == "not_a_folder"
        assert guest.refusal("stat", path=name + "/x") == "not_a_folder"
        guest.work("move", path=name, to="sub/" + name, replace=False)
    assert guest.names("sub") == names
    for name in names:
        guest.remove("sub/" + name, recursive=False)
    assert guest.names("sub") == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    name=st.binary(min_size=1, max_size=60).filter(
        lambda name: not {0, ord("/")} & set(name) and name not in (b".", b"..")
    )
)
def test_any_name_that_a_file_can_have(guest: Guest, name: bytes) -> None:
    text = name.decode("utf-8", "surrogateescape")
    guest.write("n/" + text, name)
    assert guest.names("n") == [text]
    assert guest.read("n/" + text) == name
    guest.remove("n")


@settings(deadline=None, max_examples=300)
@given(
    ask=st.dictionaries(
        st.sampled_from(
            ["path", "to", "handle", "bytes", "offset", "limit", "mode", "append", "depth", "id"]
        ),
        st.none() | st.integers() | st.text(max_size=5) | st.floats() | st.lists(st.integers()),
    ),
    op=st.sampled_from([*guest_files._ANSWERS, "read", "read_open", "nonsense"]),
)
def test_questions_that_are_not_well_formed_are_refused(
    tmp_path_factory: pytest.TempPathFactory, ask: dict[str, Any], op: str
) -> None:
    """Nothing but Refused may come out: another exception would end pid 1, and the sandbox."""
    base = tmp_path_factory.mktemp("g")
    (base / "workspace").mkdir()
    root = os.open(base / "workspace", os.O_RDONLY | os.O_DIRECTORY)
    files = Files({"workspace": root})
    try:
        files.ask({"id": 1, **ask, "op": op}, lambda *_: None)
    except Refused:
        pass
    finally:
        for handle in list(files._held):
            files._drop(handle)
        os.close(root)


# -- asking ----------------------------------------------------------------------------------------


def test_every_kind_is_listed_and_only_files_are_opened(guest: Guest) -> None:
    planted = plant(guest.workspace)
    guest.write("plain", b"x")
    guest.ask("mkdir", path="folder", exist_ok=False)
    found = {row[0]: row[1] for row in guest.list("/workspace")}
    assert found == {**planted, "plain": "file", "folder": "folder"}
    opening = {"mode": None, "append": False, "exclusive": False}
    for name, kind in found.items():
        assert guest.ask("stat", path=name)["entry"][:2] == [name, kind]
        if kind == "file":
            continue
        refused = "link" if kind == "link" else "not_a_file"
        assert guest.refusal("read_open", path=name, bytes=1) == refused
        assert guest.refusal("write_open", path=name, **opening) == refused
        exclusive = {**opening, "exclusive": True}
        assert guest.refusal("write_open", path=name, **exclusive) == "exists"
        if kind != "folder":
            guest.remove(name, recursive=name == "link")
    assert guest.names("/workspace") == ["folder", "plain"]
    assert Path("/etc/passwd").exists()


def test_a_fifo_with_somebody_at_the_other_end(guest: Guest) -> None:
    """Opening it would succeed at once, and then reads and writes would wait for the code."""
    fifo = guest.workspace / "fifo"
    os.mkfifo(fifo)
    other = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        opening = {"mode": None, "append": False, "exclusive": False}
        assert guest.refusal("read_open", path="fifo", bytes=1) == "not_a_file"
        assert guest.refusal("write_open", path="fifo", **opening) == "not_a_file"
    finally:
        os.close(other)


def test_what_stat_says(guest: Guest) -> None:
    guest.write("f", b"12345", mode=0o640)
    os.utime(guest.workspace / "f", ns=(1, 1_600_000_000_123_456_789))
    name, kind, size, disk, mtime_ns, mode = guest.ask("stat", path="f")["entry"]
    assert (name, kind, size, mtime_ns, mode) == ("f", "file", 5, 1_600_000_000_123_456_789, 0o640)
    assert disk == os.stat(guest.workspace / "f").st_blocks * 512
    assert guest.ask("stat", path="/data/output")["entry"][0] == "output"
    assert guest.refusal("stat", path="g") == "missing"
    assert guest.refusal("stat", path="f/g") == "not_a_folder"


def test_a_sparse_giant_is_told_with_what_it_takes(guest: Guest) -> None:
    giant = 10 << 40
    with open(guest.workspace / "giant", "wb") as file:
        try:
            file.truncate(giant)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            giant = 8 << 40
            file.truncate(giant)
    _, _, size, disk, _, _ = guest.ask("stat", path="giant")["entry"]
    assert size == giant
    assert disk < 1 << 20
    answer = guest.ask("read_open", path="giant", bytes=1 << 18)
    assert (answer["size"], answer["bytes"], answer["end"]) == (giant, 1 << 18, False)
    guest.came = b""
    answer = guest.ask("read", handle=answer["handle"], offset=giant - 100, bytes=1000)
    assert (answer, guest.came) == ({"bytes": 100, "end": True}, bytes(100))
    guest.ask("close", handle=guest._id - 1)
    guest.remove("giant")


def test_a_folder_of_many_is_listed_in_order_and_in_bounds(guest: Guest) -> None:
    """Also one that does not fit the window of names that is held at once."""
    count = 5 * looking.WINDOW
    (guest.workspace / "all").mkdir()
    here = os.open(guest.workspace / "all", os.O_RDONLY | os.O_DIRECTORY)
    for number in range(count):
        os.mknod(f"{number * 7919 % count:06}", dir_fd=here)
    os.close(here)
    assert guest.names("all") == [f"{number:06}" for number in range(count)]
    assert guest.slowest_s < 100 * guest_files.SLICE_S  # of CPU: on a busy machine that is dear
    assert guest.remove("all") > 3
    assert guest.slowest_s < 100 * guest_files.SLICE_S  # of CPU: on a busy machine that is dear
    assert os.listdir(guest.workspace) == []


def test_a_page_fits_a_frame_whatever_the_names_are(guest: Guest) -> None:
    for number in range(1500):
        name = b"%04d" % number + b"\xff" * 251
        os.mknod(os.fsencode(guest.workspace) + b"/" + name)
    assert len(guest.names("/workspace", limit=2000)) == 1500


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    names=st.sets(st.text("abcé", min_size=1, max_size=4), max_size=60),
    window=st.integers(1, 20),
    limit=st.integers(1, 20),
)
def test_pages_add_up(
    guest: Guest, monkeypatch: pytest.MonkeyPatch, names: set[str], window: int, limit: int
) -> None:
    monkeypatch.setattr(looking, "WINDOW", window)
    monkeypatch.setattr(guest_files, "SLICE_S", 0.0)
    guest.ask("mkdir", path="p", exist_ok=True)
    for name in names:
        (guest.workspace / "p" / name).touch()
    assert guest.names("p", limit) == sorted(names)
    monkeypatch.setattr(guest_files, "SLICE_S", 1.0)
    guest.remove("p")


def test_a_listing_survives_what_happens_meanwhile(guest: Guest) -> None:
    for number in range(50):
        guest.write(f"{number:02}", b"")
    answer = guest.ask("list", path="/workspace", limit=10)
    for number in range(10, 30):
        (guest.workspace / f"{number:02}").unlink()
    (guest.workspace / "40").unlink()
    (guest.workspace / "40").mkdir()
    rows = answer["entries"]
    while not answer["end"]:
        answer = guest.ask("list", handle=answer["handle"], limit=10)
        rows += answer["entries"]
    assert [int(row[0]) for row in rows] == [*range(10), *range(30, 50)]
    assert {row[0]: row[1] for row in rows}["40"] == "folder"


# -- depth -----------------------------------------------------------------------------------------


def test_three_thousand_folders_deep(guest: Guest) -> None:
    """Far beyond what one path may have for the kernel: listed a level at a time, and removed."""
    deep(guest.workspace, 3000, "dddd")
    path = "/".join(["dddd"] * 3000)
    assert guest.names(path) == ["bottom"]
    assert guest.names(path.rpartition("/")[0]) == ["dddd"]
    guest.write(path + "/bottom", b"found")
    assert guest.read(path + "/bottom") == b"found"
    assert guest.refusal("remove", path="dddd", recursive=False) == "not_empty"
    guest.remove("dddd")
    assert os.listdir(guest.workspace) == []


def test_deeper_than_any_path_can_say(guest: Guest) -> None:
    deep(guest.workspace, ways.MOST_NAMES + 500)
    assert guest.refusal("stat", path="d/" * 4200 + "bottom") == "name"
    watched = guest.watch()
    assert guest.ask("changes", handle=watched)["partial"] is True
    guest.ask("close", handle=watched)
    guest.remove("d")
    assert os.listdir(guest.workspace) == []


def test_a_wide_and_deep_tree_goes_in_small_steps(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_files, "SLICE_S", 0.0)
    for number in range(200):
        guest.write(f"t/{number % 7}/{number % 5}/{number % 3}/{number}", b"x")
        guest.ask("mkdir", path=f"t/empty/{number}", exist_ok=False)
    planted = guest.workspace / "t/3"
    plant(planted)
    (guest.workspace / "t/.removed-0").mkdir()
    (guest.workspace / "t/.removed-0/.removed-1").mkdir()
    (guest.workspace / "t/.removed-0/.removed-1/x").touch()
    assert guest.remove("t") > 400
    assert os.listdir(guest.workspace) == []
    assert Path("/etc/passwd").exists()


def test_removal_that_is_given_up(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_files, "SLICE_S", 0.0)
    for number in range(50):
        guest.write(f"t/sub/{number}", b"x")
    handle = guest.ask("remove", path="t", recursive=True)["handle"]
    guest.ask("remove", handle=handle)
    guest.ask("close", handle=handle)
    assert guest.refusal("remove", handle=handle) == "closed"
    assert 0 < len(guest.names("t/sub")) < 50


def test_what_its_owner_closed_to_himself_is_removed(
    guest: Guest, as_nobody: Callable[[Callable[[], object]], object]
) -> None:
    os.chmod(guest.base, 0o755)
    os.chown(guest.workspace, 65534, 65534)

    def make_and_remove() -> object:
        guest.write("t/dark/deeper/file", b"x")
        guest.write("t/dark/file", b"x")
        os.chmod(guest.workspace / "t/dark/deeper", 0)
        os.chmod(guest.workspace / "t/dark", 0)
        os.chmod(guest.workspace / "t", 0o555)
        refusals = [guest.refusal("list", path="t/dark", limit=1)]
        refusals.append(guest.refusal("read_open", path="t/dark/file", bytes=1))
        guest.remove("t")
        return refusals, os.listdir(guest.workspace)

    assert as_nobody(make_and_remove) == [["forbidden", "forbidden"], []]


@pytest.fixture
def as_nobody(tmp_path: Path) -> Callable[[Callable[[], object]], object]:
    """Runs something in a process of a user without rights, as agents in sandboxes are."""
    folder = tmp_path
    while folder != folder.parent:
        if os.stat(folder).st_mode & 0o005 != 0o005 and os.stat(folder).st_uid == os.getuid():
            os.chmod(folder, os.stat(folder).st_mode | 0o055)
        folder = folder.parent

    def run(what: Callable[[], object]) -> object:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                if os.geteuid() == 0:
                    os.setgroups([])
                    os.setresgid(65534, 65534, 65534)
                    os.setresuid(65534, 65534, 65534)
                os.write(theirs, json.dumps(what()).encode())
            except BaseException as error:
                os.write(theirs, json.dumps(repr(error)).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        with open(ours) as file:
            said = file.read()
        os.waitpid(pid, 0)
        return json.loads(said)

    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    return run


# -- content ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 262_143, 262_144, 262_145, 700_000])
def test_content_goes_in_and_comes_out(guest: Guest, size: int) -> None:
    content = os.urandom(size)
    assert guest.write("deep/er/f", content) == {"written": size, "size": size}
    assert (guest.workspace / "deep/er/f").read_bytes() == content
    assert guest.read("deep/er/f") == content
    assert guest.read("deep/er/f", piece=1000 + size // 3) == content


def test_ways_of_writing(guest: Guest) -> None:
    guest.write("f", b"long content", mode=0o600)
    guest.write("f", b"short")
    assert guest.read("f") == b"short"
    assert guest.ask("stat", path="f")["entry"][5] == 0o600
    assert guest.write("f", b"er", append=True)["size"] == 7
    assert guest.read("f") == b"shorter"
    opening = {"mode": None, "append": False, "exclusive": True}
    assert guest.refusal("write_open", path="f", **opening) == "exists"
    guest.write("g", b"new", exclusive=True)
    assert guest.ask("stat", path="g")["entry"][5] == 0o644 & ~umask()
    for mode in (0o4755, -1, 1 << 20, "644"):
        fields = {**opening, "mode": mode}
        assert guest.refusal("write_open", path="h", **fields) == "unsupported"
    assert guest.names(".") == ["f", "g"]


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_file_that_was_given_up_leaves_nothing_new(guest: Guest) -> None:
    opening = {"mode": None, "append": False, "exclusive": False}
    handle = guest.ask("write_open", path="new", **opening)["handle"]
    guest.files.content(handle, b"half")
    assert guest.ask("write_state", handle=handle) == {"written": 4}
    guest.ask("close", handle=handle)
    assert guest.names(".") == []
    guest.write("old", b"content")
    handle = guest.ask("write_open", path="old", **opening)["handle"]
    guest.ask("close", handle=handle)
    assert guest.names(".") == ["old"]
    # What the code put in its place meanwhile is not ours to remove.
    handle = guest.ask("write_open", path="other", **opening)["handle"]
    (guest.workspace / "other").unlink()
    (guest.workspace / "other").write_text("the code's own")
    guest.ask("close", handle=handle)
    assert guest.names(".") == ["old", "other"]


def test_the_first_error_of_a_write_is_told(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    """L4: a full disk, here for one write only; what follows must not look like a success."""
    opening = {"mode": None, "append": False, "exclusive": False}
    handle = guest.ask("write_open", path="f", **opening)["handle"]
    guest.files.content(handle, b"first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        guest.files.content(handle, b"second")
    guest.files.content(handle, b"third")
    assert guest.refusal("write_state", handle=handle) == "full"
    assert guest.refusal("write_close", handle=handle) == "full"
    assert guest.refusal("write_close", handle=handle) == "closed"
    assert guest.names(".") == []


def test_content_for_nobody_is_dropped(guest: Guest) -> None:
    guest.files.content(12345, b"nobody asked")
    guest.write("f", b"x")
    handle = guest.ask("read_open", path="f", bytes=0)["handle"]
    guest.files.content(handle, b"not a file that is written")
    guest.ask("close", handle=handle)
    assert guest.read("f") == b"x"


def test_content_after_its_end_is_an_error(guest: Guest) -> None:
    opening = {"mode": None, "append": False, "exclusive": False}
    handle = guest.ask("write_open", path="f", **opening)["handle"]
    guest.files.content(handle, b"")
    guest.files.content(handle, b"late")
    assert guest.refusal("write_close", handle=handle) == "unsupported"


def test_a_file_that_grows_or_shrinks_while_it_is_read(guest: Guest) -> None:
    guest.write("f", b"x" * 1000)
    handle = guest.ask("read_open", path="f", bytes=500)["handle"]
    guest.write("f", b"y" * 100, append=True)
    assert guest.ask("read", handle=handle, offset=500, bytes=500)["end"] is False
    assert guest.ask("read", handle=handle, offset=1000, bytes=500) == {"bytes": 100, "end": True}
    guest.write("f", b"")
    assert guest.ask("read", handle=handle, offset=500, bytes=500) == {"bytes": 0, "end": True}
    guest.ask("close", handle=handle)


def test_handles_are_few_and_are_what_they_are(guest: Guest) -> None:
    guest.write("f", b"x" * 10)
    opened = [guest.ask("read_open", path="f", bytes=1)["handle"] for _ in range(64)]
    opening = {"mode": None, "append": False, "exclusive": False}
    assert guest.refusal("read_open", path="f", bytes=1) == "too_many"
    assert guest.refusal("write_open", path="g", **opening) == "too_many"
    assert guest.refusal("list", path=".", limit=1) == "too_many"
    assert guest.refusal("remove", path="f", recursive=True) == "too_many"
    for op, more in (
        ("write_close", {}),
        ("write_state", {}),
        ("list", {"limit": 1}),
        ("remove", {}),
        ("move", {}),
        ("changes", {}),
    ):
        assert guest.refusal(op, handle=opened[0], **more) == "closed"
    for handle in opened:
        guest.ask("close", handle=handle)
    assert guest.refusal("read", handle=opened[0], offset=0, bytes=1) == "closed"
    assert guest.ask("close", handle=opened[0]) == {}
    for handle in ("x", None, 1.5, True, [1]):
        assert guest.refusal("read", handle=handle, offset=0, bytes=1) in ("closed", "unsupported")


# -- changing --------------------------------------------------------------------------------------


def test_folders(guest: Guest) -> None:
    guest.ask("mkdir", path="a/b/c", exist_ok=False)
    guest.ask("mkdir", path="a/b/c", exist_ok=True)
    assert guest.refusal("mkdir", path="a/b/c", exist_ok=False) == "exists"
    guest.write("a/file", b"")
    assert guest.refusal("mkdir", path="a/file", exist_ok=True) == "not_a_folder"
    assert guest.refusal("mkdir", path="a/file/x", exist_ok=True) == "not_a_folder"
    assert guest.refusal("remove", path="a", recursive=False) == "not_empty"
    guest.remove("a/b/c", recursive=False)
    assert guest.refusal("remove", path="a/b/c", recursive=True) == "missing"
    guest.remove("a")
    assert guest.names(".") == []


def test_moving(guest: Guest) -> None:
    guest.write("a", b"1")
    guest.write("b", b"2")
    assert guest.refusal("move", path="a", to="b", replace=False) == "exists"
    assert guest.read("b") == b"2"
    guest.work("move", path="a", to="b", replace=True)
    assert (guest.names("."), guest.read("b")) == (["b"], b"1")
    guest.work("move", path="b", to="/data/output/new/place", replace=False)
    assert guest.read("/data/output/new/place") == b"1"
    guest.work("move", path="/data/output/new", to="folder", replace=False)
    assert guest.read("folder/place") == b"1"
    assert guest.refusal("move", path="gone", to="x", replace=False) == "missing"
    assert guest.refusal("move", path="folder", to="folder/in/itself", replace=False) == "os"


def test_moving_to_another_file_system(
    guest: Guest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Walls with a mount for each place: rename says EXDEV, so the content is copied, in slices."""
    rename = os.rename

    def other(source: Any, target: Any, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        if src_dir_fd != dst_dir_fd:
            raise OSError(errno.EXDEV, "another file system")
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    content = os.urandom(5_000_000)
    guest.write("f", content, mode=0o640)
    os.utime(guest.workspace / "f", ns=(5, 7_000_000_000))
    guest.write("folder/f", b"")
    (guest.workspace / "link").symlink_to("/etc/passwd")
    monkeypatch.setattr(os, "rename", other)
    monkeypatch.setattr(guest_files, "SLICE_S", 0.0)
    assert guest.work("move", path="f", to="/tmp/there/g", replace=False) > 3
    moved = guest.base / "tmp/there/g"
    assert moved.read_bytes() == content
    assert (moved.stat().st_mode & 0o777, moved.stat().st_mtime_ns) == (0o640, 7_000_000_000)
    guest.work("move", path="link", to="/tmp/link", replace=False)
    assert os.readlink(guest.base / "tmp/link") == "/etc/passwd"
    assert guest.refusal("move", path="folder", to="/tmp/folder", replace=False) == "elsewhere"
    assert guest.names(".") == ["folder"]
    guest.write("h", content)
    handle = guest.ask("move", path="h", to="/tmp/h", replace=False)["handle"]
    guest.ask("close", handle=handle)
    assert guest.names("/tmp") == ["link", "there"]
    assert guest.names(".") == ["folder", "h"]


def test_an_owner_gets_what_is_made(tmp_path: Path) -> None:
    """Behind walls where the agent is root and the code is not."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    guest = Guest(tmp_path)
    guest.files = Files(guest.roots, owner=(1234, 1235))
    guest.write("a/b/f", b"x")
    guest.ask("mkdir", path="c/d", exist_ok=False)
    for path in ("a", "a/b", "a/b/f", "c", "c/d"):
        status = os.stat(guest.workspace / path)
        assert (status.st_uid, status.st_gid) == (1234, 1235)


# -- changes ---------------------------------------------------------------------------------------


def test_changes_are_told_once(guest: Guest) -> None:
    guest.write("kept", b"x")
    guest.write("old/file", b"x")
    handle = guest.watch()
    assert guest.changes(handle) == []
    guest.write("kept", b"longer")
    guest.write("new/a", b"1")
    guest.remove("old")
    assert guest.changes(handle) == [
        ("changed", "kept"),
        ("created", "new"),
        ("created", "new/a"),
        ("removed", "old"),
        ("removed", "old/file"),
    ]
    assert guest.changes(handle) == []
    os.chmod(guest.workspace / "kept", 0o600)
    (guest.workspace / "new/a").unlink()
    (guest.workspace / "new/a").symlink_to("/etc")
    assert guest.changes(handle) == [("changed", "kept"), ("changed", "new/a")]
    answer = guest.ask("changes", handle=handle)
    assert answer == {"changes": [], "more": False, "partial": False, "handle": handle}
    guest.ask("close", handle=handle)


def test_watching_one_file_or_what_is_not_there_yet(guest: Guest) -> None:
    handle = guest.watch("later/x")
    assert guest.changes(handle) == []
    guest.write("later/x", b"")
    assert guest.changes(handle) == [("created", "")]
    guest.write("later/x", b"1")
    guest.write("later/y", b"1")
    assert guest.changes(handle) == [("changed", "")]
    guest.remove("later")
    assert guest.changes(handle) == [("removed", "")]
    guest.ask("close", handle=handle)


def test_a_watch_looks_no_deeper_than_asked(guest: Guest) -> None:
    handle = guest.watch(depth=2)
    guest.write("a/b/c/d", b"")
    assert guest.changes(handle) == [("created", "a"), ("created", "a/b")]
    guest.ask("close", handle=handle)


def test_a_watch_is_bounded(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "MOST_WATCHED", 50)
    monkeypatch.setattr(guest_files, "SLICE_S", 0.0)
    for number in range(80):
        guest.write(f"{number}", b"")
    handle = guest.watch()
    assert guest.changes(handle) == []
    for number in range(80):
        guest.write(f"x{number}", b"")
    told = guest.changes(handle)
    assert ("removed", "5") not in told, "it is still there, and was only pushed out of sight"
    assert guest.ask("changes", handle=handle)["partial"] is True
    guest.ask("close", handle=handle)
    watches = [guest.watch() for _ in range(8)]
    assert guest.refusal("changes", path=".", depth=1) == "too_many"
    for watch in watches:
        guest.ask("close", handle=watch)


def test_many_changes_come_in_several_answers(guest: Guest) -> None:
    handle = guest.watch()
    here = os.open(guest.workspace, os.O_RDONLY | os.O_DIRECTORY)
    for number in range(10_000):
        os.mknod(b"\xff" * 100 + b"%d" % number, dir_fd=here)
    os.close(here)
    assert len(guest.changes(handle)) == 10_000
    assert guest.slowest_s < 100 * guest_files.SLICE_S  # of CPU: on a busy machine that is dear
    guest.ask("close", handle=handle)


def test_an_unknown_question(guest: Guest) -> None:
    assert guest.refusal("format_disk") == "unsupported"
    assert guest.refusal("_drop") == "unsupported"
