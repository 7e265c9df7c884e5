"""P2: what a full disk, a deleted file or a caller who leaves does to the trail: nothing that looks
like tampering, nothing open for ever, nothing without a trace."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar import aio
from belljar.errors import TrailError
from belljar.model import Caller, OutputFile, Request, Result
from belljar.network import Egress
from belljar.settings import Settings
from belljar.trail import crowd, records
from belljar.trail.entry import Recorder
from belljar.trail.trail import Trail, open_writer
from belljar.trail.writer import Writer

TRIED = Egress(at=0.0, host="a.example", port=443, verdict="allowed")

FULL_DISK = """
import asyncio, json, os, sys
from belljar.errors import TrailError
from belljar.model import Caller, Request, Result
from belljar.network import Egress
from belljar.settings import Settings
from belljar.trail.entry import Recorder
from belljar.trail.trail import open_writer

disk = sys.argv[1]
settings = Settings(trail=f"sqlite:///{disk}/trail/trail.db")
tried = Egress(at=0.0, host="a.example", port=443, verdict="allowed")

def fill():
    with open(disk + "/filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass

async def main():
    writer = open_writer(settings)
    recorder = Recorder(writer, settings, Caller(tenant="t"))
    before = await recorder.entry("run", Request(code="x"))
    await before.written()
    fill()
    told = {"failed": 0}
    for _ in range(100_000):  # what SQLite has already, it may still use
        try:
            await before.tried(tried)
        except TrailError:
            told["failed"] += 1
            break
    told["trouble"] = bool(writer.trouble())
    for code in ("y", "z"):
        entry = await recorder.entry("run", Request(code=code))
        try:
            await entry.written()
        except TrailError as error:
            told[code] = error.ran
            await entry.fail(error)
    refused = await recorder.entry("run", Request(code="q"), refused=True)
    try:
        await refused.close("refused", error="quota_exceeded", count=7)
    except TrailError:
        pass
    os.unlink(disk + "/filler")
    while writer.trouble():
        await asyncio.sleep(0.05)
    await before.tried(tried)
    told["end"] = (await before.end(Result(status="ok", exit_code=0))).status
    after = await recorder.entry("run", Request(code="after"))
    await after.end(Result(status="ok", exit_code=0))
    await asyncio.to_thread(writer.close)
    from belljar.trail.trail import Trail
    with Trail(settings.trail) as trail:
        verdict = trail.verify()
        told["problems"] = [list(one) for one in verdict.problems]
        told["open"] = len(verdict.open)
        told["entries"] = [
            [one.status, one.attempt["action"], one.end.get("error"), one.end.get("count")]
            for one in trail.recent(limit=100)[::-1]
        ]
    print(json.dumps(told))

asyncio.run(main())
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/trail/trail.db"


def on_a_small_disk(script: str, folder: Path) -> Any:
    """Runs it in a mount namespace of its own, with the path of a tmpfs of 4 MiB."""
    disk = folder / "disk"
    disk.mkdir()
    own = ["--mount"] if os.getuid() == 0 else ["--mount", "--map-root-user"]
    mount = 'mount -t tmpfs -o size=4m,mode=700 none "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", *own, "sh", "-c", mount, "sh", str(disk), sys.executable, script],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_p2_a_full_disk_never_looks_like_tampering(tmp_path: Path) -> None:
    told = on_a_small_disk(FULL_DISK, tmp_path)
    assert told["failed"] and told["trouble"]
    assert (told["y"], told["z"]) == (False, False), "nothing ran that could not be written"
    assert told["problems"] == [] and told["open"] == 0
    assert told["end"] == "ok", "the run outlived the full disk"
    counts: Counter[str] = Counter()
    for _, action, error, count in told["entries"]:
        if action == "refusals":
            counts[error] += count
    assert counts == {"TrailError": 2, "quota_exceeded": 7}
    runs = [status for status, action, _, _ in told["entries"] if action == "run"]
    assert runs == ["ok", "ok"]


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_p2_an_owner_whose_file_was_deleted_lives_on(url: str) -> None:
    settings = Settings(trail=url)

    folder = Path(url.removeprefix("sqlite:///") + "-owners")

    def forget() -> None:
        for file in folder.iterdir():
            file.unlink()

    async def main() -> None:
        writer = open_writer(settings)
        recorder = Recorder(writer, settings, Caller())
        taken_for_dead = await recorder.entry("run", Request(code="1"))
        await taken_for_dead.written()
        forget()
        open_writer(settings).close()  # another process, which gives it up for lost
        tried = taken_for_dead.tried(TRIED)
        assert tried is not None
        await tried
        with pytest.raises(TrailError) as withheld:
            await taken_for_dead.end(Result(status="ok", exit_code=0))
        assert withheld.value.ran
        async with asyncio.timeout(60):
            while not list(folder.iterdir()):
                await (await recorder.entry("run", Request(code="0"))).close()
        spared = await recorder.entry("run", Request(code="2"))
        await spared.written()
        open_writer(settings).close()
        assert (await spared.end(Result(status="ok", exit_code=0))).success
        await asyncio.to_thread(writer.close)

    asyncio.run(main())
    with Trail(url) as trail:
        assert trail.verify().problems == ()
        statuses = [one.status for one in trail.recent(limit=100_000)]
        assert (statuses[-1], set(statuses[:-1])) == ("lost", {"ok"})
        assert len(trail.egress()) == 1


# -- a caller who leaves ---------------------------------------------------------------------------


def leave(url: str, work: Callable[[Writer, Recorder], Any]) -> list[str]:
    """The statuses of what is in the trail after somebody was cancelled in the middle of it."""
    settings = Settings(trail=url)

    async def main() -> None:
        writer = open_writer(settings)
        await work(writer, Recorder(writer, settings, Caller()))
        await asyncio.to_thread(writer.close)

    asyncio.run(main())
    with Trail(url) as trail:
        verdict = trail.verify()
        assert verdict.sound and not verdict.open
        return [one.status for one in trail.recent()]


async def cancelled(work: Any) -> None:
    """Begun, and cancelled at the first thing that it waits for."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


LARGE = b"x" * (8 << 20)


def test_p2_a_caller_who_leaves_while_files_are_hashed_leaves_nothing_open(url: str) -> None:
    async def work(writer: Writer, recorder: Recorder) -> None:
        entry = await recorder.entry("run", Request(code="x"))
        await entry.written()
        file = OutputFile(path="/data/output/large", size=len(LARGE), content=LARGE)
        result = Result(status="ok", exit_code=0, files=(file,))
        await cancelled(entry.end(result))

    assert leave(url, work) == ["ok"]


def test_p2_a_run_whose_caller_leaves_while_its_files_are_hashed_has_its_end(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    answered = records.answered

    def slowly(result: Result) -> dict[str, Any]:
        begun.set()
        assert go_on.wait(60)
        return answered(result)

    async def main() -> None:
        async with aio.Belljar(Settings(trail=url, pool_size=1)) as jar:
            monkeypatch.setattr(records, "answered", slowly)
            code = "open('/data/output/large', 'wb').write(bytes(2 << 20))"
            run = asyncio.ensure_future(jar.run(code))
            assert await asyncio.to_thread(begun.wait, 60)
            run.cancel()
            await asyncio.wait((run,))
            assert run.cancelled()
            go_on.set()

    asyncio.run(main())
    with Trail(url) as trail:
        assert [one.status for one in trail.recent()] == ["ok"]
        assert not trail.verify().open


def test_p2_a_caller_who_leaves_while_an_attempt_is_written_leaves_nothing_open(url: str) -> None:
    async def enter(recorder: Recorder, request: Request) -> None:
        async with await recorder.entry("run", request):
            raise AssertionError("it was cancelled before")

    async def work(writer: Writer, recorder: Recorder) -> None:
        await cancelled(enter(recorder, Request(code="x")))
        await cancelled(enter(recorder, Request(code="x", files={"large": LARGE})))

    assert leave(url, work) == ["cancelled", "cancelled"]


def test_p2_what_cannot_be_made_into_a_line_still_ends(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(writer: Writer, recorder: Recorder) -> None:
        entry = await recorder.entry("run", Request(code="x"))
        file = OutputFile(path="/data/output/large", size=len(LARGE), content=LARGE)
        monkeypatch.setattr("belljar.trail.records.answered", lambda result: 1 / 0)
        await entry.end(Result(status="ok", exit_code=0, files=(file,)))

    assert leave(url, work) == ["failed"]


def test_p2_the_callers_own_callback_is_no_fault_of_the_host(url: str) -> None:
    def wrong(*_: object) -> None:
        raise KeyError("the caller's own")

    with belljar.Belljar(Settings(trail=url, pool_size=1)) as jar:
        with pytest.raises(KeyError, match="the caller's own"):
            jar.run("print(1, flush=True); import time; time.sleep(60)", on_output=wrong)
        with belljar.Sandbox(jar) as box, pytest.raises(KeyError, match="the caller's own"):
            box.run("print(1, flush=True); import time; time.sleep(60)", on_event=wrong)
    with Trail(url) as trail:
        ends = [one.end for one in trail.recent() if one.attempt["action"] == "run"]
        assert [(end or {}).get("status") for end in ends] == ["cancelled"] * 2
        assert [(end or {}).get("error") for end in ends] == ["KeyError"] * 2


# -- how much one tenant may write -----------------------------------------------------------------


def names(count: int) -> dict[str, bytes]:
    return {f"{'n' * 200}{number}": b"" for number in range(count)}


def size_of(url: str) -> int:
    with Trail(url) as trail:
        return sum(len(line.body) for line in trail.lines())


def test_p2_a_refusal_is_short_whatever_was_asked(url: str) -> None:
    request = Request(code="x" * 1000, files=names(900), inputs=names(900), language="\u20ac" * 120)

    async def work(writer: Writer, recorder: Recorder) -> None:
        for _ in range(20):
            entry = await recorder.entry("run", request, refused=True)
            await entry.close("refused", error="quota_exceeded")

    assert leave(url, work) == ["refused"] * 20
    assert size_of(url) / 20 < 2000
    with Trail(url) as trail:
        found = trail.recent(limit=1)[0].attempt
        assert found["cut"]["bytes"] > 50_000 and len(found["cut"]["sha256"]) == 64
        assert found["code_bytes"] == 1000 and len(found["code_sha256"]) == 64


def test_p2_long_lines_of_one_tenant_are_cut_when_its_minute_is_full(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd.time, "monotonic", lambda: 1000.0)
    settings = Settings(trail=url)
    request = Request(code="x", files=names(900), inputs=names(900))

    async def work(writer: Writer, _: Recorder) -> None:
        for tenant, count in (("greedy", 200), ("modest", 2)):
            recorder = Recorder(writer, settings, Caller(tenant=tenant))
            for _ in range(count):
                await (await recorder.entry("run", request)).end(Result(status="ok", exit_code=0))

    leave(url, work)
    with Trail(url) as trail:
        sizes = {}
        for tenant in ("greedy", "modest"):
            attempts = [one.attempt for one in trail.recent(limit=1000, tenant=tenant)]
            sizes[tenant] = sum(len(json.dumps(one)) for one in attempts)
            assert any("cut" in one for one in attempts) == (tenant == "greedy")
        assert all("cut" not in one.attempt for one in trail.recent(tenant="modest"))
    assert sizes["greedy"] < 2 * crowd.TENANT_BYTES_A_MINUTE


def test_p2_readers_beside_the_writer_cost_it_no_line(tmp_path: Path) -> None:
    """One in the same process, then one in another, which would delete the log of a database that
    nobody has locked."""
    url = f"sqlite:///{tmp_path}/trail/trail.db"
    settings = Settings(trail=url)

    async def run(recorder: Recorder) -> None:
        async with await recorder.entry("run", Request(code="x")):
            pass

    async def play() -> None:
        writer = open_writer(settings)
        recorder = Recorder(writer, settings, Caller(tenant="t"))
        await run(recorder)
        with Trail(url) as trail:
            assert len(trail.recent()) == 1
        assert seen_elsewhere(url) == 1
        await run(recorder)
        assert seen_elsewhere(url) == 2
        await asyncio.to_thread(writer.close)

    asyncio.run(play())
    assert seen_elsewhere(url) == 2


def seen_elsewhere(url: str) -> int:
    """How many attempts another process sees."""
    code = (
        "import sys; from belljar.trail.trail import Trail\n"
        "with Trail(sys.argv[1]) as trail: print(trail.verify().sound, len(trail.recent()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, url], capture_output=True, text=True, check=True
    )
    sound, count = done.stdout.split()
    assert sound == "True"
    return int(count)
