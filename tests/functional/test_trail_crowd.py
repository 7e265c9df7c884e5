"""P2: what one tenant can write into the trail in a minute is bounded, whatever writes it, and what
has no line of its own is told by its number."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from belljar import aio
from belljar.errors import BelljarError, TrailError
from belljar.model import Caller, Request, Result
from belljar.network import Egress
from belljar.server import running
from belljar.server.gate import Visit
from belljar.server.server import Server
from belljar.server.settings import ServerSettings
from belljar.settings import Settings
from belljar.testing.served import served
from belljar.trail import crowd
from belljar.trail.entry import Entry, Recorder
from belljar.trail.trail import Trail, open_writer
from belljar.trail.writer import Writer

FEW = 20_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/trail/trail.db"


@pytest.fixture
def full_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute's worth is little, and this minute does not end."""
    monkeypatch.setattr(crowd, "TENANT_BYTES_A_MINUTE", FEW)
    monkeypatch.setattr(crowd.Crowd, "_look_at_clock", lambda _: None)


def write(url: str, work: Callable[[Writer, Settings], Awaitable[None]]) -> None:
    async def play() -> None:
        settings = Settings(trail=url)
        writer = open_writer(settings)
        try:
            await work(writer, settings)
        finally:
            await asyncio.to_thread(writer.close)

    asyncio.run(play())


def size_of(url: str, tenant: str) -> int:
    with Trail(url) as trail:
        assert trail.verify().sound
        return sum(len(line.body) for line in trail.lines() if line.tenant == tenant)


def refusals(url: str, tenant: str) -> Counter[tuple[str, str]]:
    """(action, error) → how many the trail tells of, one by one or by their number."""
    found: Counter[tuple[str, str]] = Counter()
    with Trail(url) as trail:
        for one in trail.recent(tenant=tenant, status="refused", limit=100_000):
            assert one.end is not None
            action = one.attempt.get("refused") or one.attempt["action"]
            found[action, one.end["error"]] += one.end.get("count", 1)
    return found


def test_p2_refusals_beyond_a_tenants_share_are_counted(url: str, full_soon: None) -> None:
    async def work(writer: Writer, settings: Settings) -> None:
        for tenant, action, count in (
            ("crowd", "run", 400),
            ("crowd", "install", 300),
            ("b", "run", 3),
        ):
            recorder = Recorder(writer, settings, Caller(tenant=tenant))
            for _ in range(count):
                entry = await recorder.entry(action, Request(code="x"), refused=True)
                await entry.close("refused", error="quota_exceeded")

    write(url, work)
    assert refusals(url, "crowd") == {
        ("run", "quota_exceeded"): 400,
        ("install", "quota_exceeded"): 300,
    }
    assert size_of(url, "crowd") < 3 * FEW
    with Trail(url) as trail:
        assert [one.attempt["action"] for one in trail.recent(tenant="b")] == ["run"] * 3


def test_p2_what_runs_has_its_lines_however_full_the_minute_is(url: str, full_soon: None) -> None:
    async def work(writer: Writer, settings: Settings) -> None:
        recorder = Recorder(writer, settings, Caller(tenant="t"))
        for _ in range(100):
            entry = await recorder.entry("run", Request(code="x"), refused=True)
            await entry.close("refused", error="quota_exceeded")
        for _ in range(50):
            async with await recorder.entry("run", Request(code="x")) as entry:
                await entry.end(Result(status="ok", exit_code=0))

    write(url, work)
    with Trail(url) as trail:
        assert len(trail.recent(tenant="t", status="ok", limit=1000)) == 50
    assert sum(refusals(url, "t").values()) == 100


def tried(verdict: str, number: int, **more: Any) -> Egress:
    rule = "*.example" if verdict == "allowed" else ""
    given = {"host": "a.example", "method": "GET", "path": f"/{number}" + "p" * 400, **more}
    return Egress(at=1.0, port=443, verdict=verdict, rule=rule, count=1, **given)


def test_n1_attempts_beyond_a_tenants_share_are_counted(url: str, full_soon: None) -> None:
    """Refused ones by what they are, and a host that was reached is always found."""
    hosts = [f"h{number}.example" for number in range(50)]

    async def work(writer: Writer, settings: Settings) -> None:
        recorder = Recorder(writer, settings, Caller(tenant="t"), sandbox="s")
        runs = [await recorder.entry("run", Request(code="x")) for _ in range(3)]
        for run in runs:
            await run.written()
        telling: list[Awaitable[None] | None] = []
        for number in range(40):  # one by one, until the share is used up
            if writing := runs[0].tried(tried("refused", number, why="no rule allows it")):
                await writing
        for number in range(600):
            run = runs[number % 3]
            telling.append(run.tried(tried("refused", number, why="no rule allows it")))
            telling.append(run.tried(tried("refused", number, host=f"{number}.test", why="no")))
            telling.append(run.tried(tried("allowed", number, bytes_sent=10)))
        for host in hosts:
            telling.append(runs[0].tried(tried("allowed", 0, host=host, method="POST")))
        await asyncio.gather(*(one for one in telling if one is not None))
        for run in runs:
            await run.end(Result(status="ok", exit_code=0))

    write(url, work)
    with Trail(url) as trail:
        assert trail.verify().sound
        lines = trail.egress(tenant="t", limit=100_000)
    counts: Counter[str] = Counter()
    for line in lines:
        counts[line["status"]] += line.get("count", 1)
    assert counts == {"refused": 1240, "allowed": 650}
    assert sum(line.get("bytes_sent", 0) for line in lines) == 6000
    reached = [line for line in lines if line["status"] == "allowed"]
    assert all(line["host"] and line["method"] for line in reached)
    assert {line["host"] for line in reached if line["method"] == "POST"} == set(hosts)
    assert all(len(line["counted_sha256"]) == 64 for line in lines if line["count"] > 1)
    unreached = [line for line in lines if line["status"] == "refused"]
    assert sum(len(str(line)) for line in unreached) < 4 * FEW
    assert {line["id"] for line in unreached} == {line["id"] for line in reached}


def test_n1_what_was_counted_stands_before_the_end_of_its_run(url: str, full_soon: None) -> None:
    """Also if nobody waits for it: the caller is gone."""

    async def work(writer: Writer, settings: Settings) -> None:
        recorder = Recorder(writer, settings, Caller(tenant="t"))
        entry = await recorder.entry("run", Request(code="x"))
        await entry.written()
        for number in range(200):
            entry.tried(tried("blocked", number, why="a secret"))
        await entry.close("cancelled")

    write(url, work)
    with Trail(url) as trail:
        assert trail.verify().sound
        lines = trail.egress(tenant="t", limit=1000)
        end = trail.recent(limit=1)[0].end
    assert sum(line.get("count", 1) for line in lines) == 200
    assert end is not None and all(line["seq"] < end["seq"] for line in lines)


def test_p2_what_a_sandbox_refuses_is_counted_too(url: str, full_soon: None) -> None:
    """A real one, asked for what it cannot do: no checkpoint, no network, no such package."""
    told: Counter[str] = Counter()

    async def refused(what: Awaitable[Any]) -> None:
        try:
            await what
        except (BelljarError, ValueError) as error:
            told[type(error).__name__] += 1
        else:
            raise AssertionError("it was not refused")

    async def play() -> None:
        settings = Settings(trail=url, pool_size=1)
        async with (
            aio.Belljar(settings) as jar,
            aio.Sandbox(jar, max_runs=1, checkpoints=2, caller=Caller(tenant="t")) as box,
        ):
            assert (await box.run("x = 1")).status == "ok"
            for number in range(60):
                await refused(box.rollback(999))
                await refused(box.set_network("a.example"))
                await refused(box.run(f"print({number})"))
                await refused(box.start(()))
            await box.rollback(1)

    asyncio.run(play())
    found = refusals(url, "t")
    assert sum(found.values()) == sum(told.values()) == 240
    assert {action for action, _ in found} == {"rollback", "network", "run", "command"}
    with Trail(url) as trail:
        done = [one.attempt["action"] for one in trail.recent(tenant="t", status="ok")]
    assert done == ["rollback", "run"]
    assert size_of(url, "t") < 4 * FEW


def test_p2_a_server_counts_whom_it_turns_away(tmp_path: Path, url: str, full_soon: None) -> None:
    async def play() -> None:
        server = Server(ServerSettings(trail=url, sandboxes={"home": str(tmp_path)}))
        crowd = Visit(request_id="1", tenant=server.tenant("crowd"))
        other = Visit(request_id="2", tenant=server.tenant("other"))
        for _ in range(200):
            await running.refused(server, crowd, "x", {}, "queue_full")
        await running.refused(server, other, "x", {}, "quota_exceeded")
        await server.stop()

    asyncio.run(play())
    assert refusals(url, "crowd") == {("run", "queue_full"): 200}
    assert refusals(url, "other") == {("run", "quota_exceeded"): 1}
    assert size_of(url, "crowd") < 3 * FEW


def test_p2_a_trail_that_stays_broken_remembers_no_attempt_one_by_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what the database may have got before it failed is in doubt."""
    transact = Writer._transact
    broken = [False]

    def failing(self: Writer, *given: Any, **options: Any) -> Any:
        if broken[0]:
            raise OSError("no database")
        return transact(self, *given, **options)

    monkeypatch.setattr(Writer, "_transact", failing)

    async def work(writer: Writer, settings: Settings) -> None:
        recorder = Recorder(writer, settings, Caller(tenant="t"))
        under_way: list[Entry] = [await recorder.entry("run", Request(code="x")) for _ in range(2)]
        for entry in under_way:
            await entry.written()
        broken[0] = True
        for _ in range(200):
            entry = await recorder.entry("run", Request(code="x"))
            with pytest.raises(TrailError) as failed:
                async with entry:
                    pass
            assert not failed.value.ran
        assert len(writer._owed.doubtful) <= 1
        for entry in under_way:
            with pytest.raises(TrailError) as failed:
                await entry.end(Result(status="ok", exit_code=0))
            assert failed.value.ran
        broken[0] = False
        while True:
            try:
                async with await recorder.entry("run", Request(code="after")):
                    break
            except TrailError:
                await asyncio.sleep(0.05)

    write(url, work)
    with Trail(url) as trail:
        assert trail.verify().sound and not trail.verify().open
        assert len(trail.recent(tenant="t", status="lost")) == 2
    assert refusals(url, "t")["run", "TrailError"] == 200


def test_p2_what_begins_and_ends_while_a_broken_trail_comes_back_is_not_left_open(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt and its end in one batch, the first after the database was away."""
    transact = Writer._transact
    failing, go_on = [False], threading.Event()

    def slowly(self: Writer, *given: Any, **options: Any) -> Any:
        if failing[0]:
            assert go_on.wait(60)
            failing[0] = False
            raise OSError("no database")
        return transact(self, *given, **options)

    async def work(writer: Writer, settings: Settings) -> None:
        recorder = Recorder(writer, settings, Caller(tenant="t"))
        failing[0] = True
        lost = asyncio.ensure_future((await recorder.entry("run", Request(code="x"))).written())
        await asyncio.sleep(0)
        while writer._gathered.qsize():
            await asyncio.sleep(0.01)
        entry = await recorder.entry("run", Request(code="y"))
        entry.begin()
        ending = asyncio.ensure_future(entry.close("failed"))
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(TrailError):
            await lost
        await ending

    monkeypatch.setattr(Writer, "_transact", slowly)
    write(url, work)
    with Trail(url) as trail:
        assert trail.verify().sound and not trail.verify().open
        assert [one.status for one in trail.recent(tenant="t")][:1] == ["failed"]


def test_s5_what_starts_work_counts_against_runs_per_minute() -> None:
    """Restart, rollback and other rules as well, and each branch of a fork; what was allowed can be
    taken back all the same."""
    with served(quotas={"runs_per_minute": 3}) as server:
        made = server.ask("POST", "/v1/sandboxes", {})
        assert made.status == 200, made.json()
        place = f"/v1/sandboxes/{made.json()['id']}"
        fork = server.ask("POST", f"{place}/fork", {"count": 3})
        assert (fork.status, fork.json()["error"]["code"]) == (429, "quota_exceeded")
        assert server.ask("POST", f"{place}/rollback", {"run_id": 9}).status == 400
        assert server.ask("POST", f"{place}/restart", {}).status == 200
        for method, path, body in (
            ("POST", "restart", {}),
            ("POST", "rollback", {"run_id": 9}),
            ("PUT", "network", {"network": []}),
            ("POST", "fork", {"count": 1}),
        ):
            reply = server.ask(method, f"{place}/{path}", body)
            assert (reply.status, reply.json()["error"]["code"]) == (429, "quota_exceeded"), path
