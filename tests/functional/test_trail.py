"""P2: the trail in SQLite and in PostgreSQL, through crashes, tampering and pruning."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import resource
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import autogenerate, script
from alembic.migration import MigrationContext

import belljar
from belljar.cli import main
from belljar.errors import InvalidRequest
from belljar.extras import install
from belljar.model import Caller, Request, Result
from belljar.network import Egress
from belljar.settings import Settings
from belljar.trail import records, tables
from belljar.trail.entry import Recorder
from belljar.trail.store import Store
from belljar.trail.trail import Trail, open_writer
from belljar.trail.writer import Writer

CHILD = """
import sys, threading, belljar
jar = belljar.Belljar(belljar.Settings(trail=sys.argv[1], pool_size=2))
lock = threading.Lock()
def work(name):
    for number in range(int(sys.argv[2])):
        code = f"print({number}); raise SystemExit({number % 3})"
        result = jar.run(code, caller=belljar.Caller(tenant=name))
        with lock:
            print(result.execution_id, result.status, result.exit_code, number, flush=True)
threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
jar.close()
"""


# -- two databases ---------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/trail/trail.db"
    database: str = request.getfixturevalue("cluster").database()
    return database


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/trail/trail.db"


def entries(url: str, **wanted: Any) -> list[Any]:
    """Oldest first."""
    with Trail(url) as trail:
        return trail.recent(limit=100_000, **wanted)[::-1]


def sound(url: str, **options: Any) -> Any:
    with Trail(url) as trail:
        verdict = trail.verify(**options)
    assert verdict.sound, verdict.problem
    return verdict


@contextlib.contextmanager
def writing(url: str, **options: Any) -> Iterator[Callable[..., list[Result]]]:
    """Lines without sandboxes: runs `count` of them, as many at once."""
    settings = Settings(trail=url, **options)
    writer = open_writer(settings)

    def write(count: int = 1, caller: Caller | None = None, code: str = "x") -> list[Result]:
        async def one() -> Result:
            recorder = Recorder(writer, settings, caller or Caller())
            async with await recorder.entry("run", Request(code=code)) as entry:
                return await entry.end(Result(status="ok", exit_code=0))

        async def all_() -> list[Result]:
            return list(await asyncio.gather(*(one() for _ in range(count))))

        return asyncio.run(all_())

    try:
        yield write
    finally:
        writer.close()


# -- what is written -------------------------------------------------------------------------------


def test_p2_every_attempt_is_written_refused_ones_too(url: str) -> None:
    """Runs, denials and refusals; a kept sandbox, its runs, commands, packages, forks and end."""
    acme = Caller(tenant="acme", door="http", request_id="r-1")
    told: list[tuple[str, str, str]] = []
    with belljar.Belljar(Settings(trail=url, pool_size=1)) as jar:
        for code in ("print(1)", "raise SystemExit(3)"):
            result = jar.run(code, caller=acme, env={"KEY": "hunter2"}, files={"a": b"abc"})
            told.append((result.execution_id, "run", result.status))
            usage = result.usage
        denied = jar.run("import ctypes", filter="deny", caller=acme)
        told.append((denied.execution_id, "run", "denied"))
        for code, options in (
            ("x" * 200_000, {}),
            ("1", {"timeout_s": 1e9}),
            ("1", {"engine": "?"}),
        ):
            with pytest.raises(InvalidRequest):
                jar.run(code, caller=acme, **options)  # type: ignore[arg-type]
        with belljar.Sandbox(jar, caller=acme) as box:
            told += [(box.run("x = 41").execution_id, "run", "ok")]
            box.rollback(1)
            told += [(box.run("x = 41").execution_id, "run", "ok")]
            told += [(box.exec(["sleep", "9"], timeout_s=0.1).execution_id, "command", "timeout")]
            with pytest.raises(belljar.BelljarError):
                box.install("a-package-that-nobody-allows")
            *_, last = box.stream("x + 1")
            told += [(last.result.execution_id, "run", "ok")]  # type: ignore[attr-defined]
            (branch,) = box.fork(1)
            told += [(branch.run("x").execution_id, "run", "ok")]
            branch.close()
    written = entries(url)
    assert all(entry.attempt["tenant"] == "acme" for entry in written)
    told_by_id = {entry.attempt["id"]: entry for entry in written}
    for id_, action, status in told:
        assert (told_by_id[id_].attempt["action"], told_by_id[id_].status) == (action, status)
    counted = Counter((entry.attempt["action"], entry.status) for entry in written)
    assert counted == {
        ("run", "ok"): 5,
        ("rollback", "ok"): 1,
        ("run", "error"): 1,
        ("run", "denied"): 1,
        ("run", "refused"): 3,
        ("sandbox", "closed"): 1,
        ("command", "timeout"): 1,
        ("install", "refused"): 1,
        ("fork", "closed"): 1,
    }
    first = told_by_id[told[0][0]]
    assert first.attempt["code_sha256"] == records.sha256("print(1)")
    assert first.end["stdout_sha256"] == records.sha256("1\n")
    second = told_by_id[told[1][0]].end
    assert (second["engine"], second["exit_code"]) == ("jail", 3)
    assert second["usage"] == dataclasses.asdict(usage) | {"cpu_ms": round(usage.cpu_ms, 3)}
    assert first.attempt["files"]["listed"][0]["sha256"] == records.sha256(b"abc")
    boxes = {e.attempt["action"]: e.attempt["sandbox"] for e in written if "sandbox" in e.attempt}
    fork = next(entry.attempt for entry in written if entry.attempt["action"] == "fork")
    assert fork["parent"] == boxes["sandbox"] != fork["sandbox"]
    with Trail(url) as trail:
        text = "".join(line.body for line in trail.lines())
    assert "hunter2" not in text and "print(1)" not in text
    assert sound(url).open == frozenset()


def test_p2_an_attempt_is_there_before_the_code_starts(file_url: str) -> None:
    seen: list[str] = []

    def look(stream: str, data: bytes) -> None:
        seen.extend(entry.status for entry in entries(file_url))

    with belljar.Belljar(Settings(trail=file_url, trail_text=True, pool_size=0)) as jar:
        jar.run("print(1)", on_output=look)
    (entry,) = entries(file_url)
    assert seen[0] == "open" and entry.status == "ok" and entry.attempt["code"] == "print(1)"


def test_p2_names_are_data_whatever_they_are(url: str) -> None:
    names = [
        "\0",
        "\ud800",
        "a\0b",
        "'; DROP TABLE trail_lines; --",
        "x" * 100_000,
        "%s{}",
        "",
        "é",
    ]
    with writing(url, trail_text=True) as write:
        ids = {name: write(2, Caller(tenant=name, request_id=name), name) for name in names}
    for name in names:
        found = entries(url, tenant=name)
        assert [e.attempt["id"] for e in found] == [r.execution_id for r in ids[name]], name[:20]
        assert found[0].attempt["code"] == name
    with Trail(url) as trail:
        for hostile in [*names, "%", "_", "' OR 1=1 --"]:
            assert trail.find(hostile) is None
            assert trail.recent(status=hostile) == []
    assert sound(url).lines == 1 + 4 * len(names)


def test_n1_what_was_tried_is_found_by_run_tenant_and_verdict(url: str) -> None:
    settings = Settings(trail=url)
    writer = open_writer(settings)

    async def one(tenant: str, *verdicts: str) -> str:
        entry = await Recorder(writer, settings, Caller(tenant=tenant)).entry(
            "run", Request(code="")
        )
        for port, verdict in enumerate(verdicts, start=1):
            tried = Egress(at=1.0, host="a.example", port=port, verdict=verdict)
            entry.tried(tried)
        await entry.end(Result(status="ok", exit_code=0))
        assert entry.tried(tried) is None  # over is over
        return entry.id

    async def all_() -> list[str]:
        return [await one("x", "allowed", "refused"), await one("y", "blocked")]

    try:
        first, second = asyncio.run(all_())
    finally:
        writer.close()
    with Trail(url) as trail:
        assert [found["port"] for found in trail.egress(id_=first)] == [2, 1]
        (found,) = trail.egress(tenant="y")
        assert (found["id"], found["status"], found["host"]) == (second, "blocked", "a.example")
        (found,) = trail.egress(verdict="refused")
        assert found["id"] == first and trail.egress(before_seq=found["seq"])[0]["port"] == 1
        assert len(trail.egress(limit=2)) == 2 and trail.egress(since="9999") == []
        rested: list[str] = []  # F2: between two lines, so that a long list keeps nobody waiting
        trail.egress(after_each=lambda: rested.append("egress"))
        trail.recent(after_each=lambda: rested.append("recent"))
        assert rested == ["egress"] * 3 + ["recent"] * 2
        assert trail.find(first) and len(trail.recent()) == 2
        query = sa.text("EXPLAIN QUERY PLAN SELECT body FROM trail_lines WHERE kind = 'egress'")
        if url.startswith("sqlite"):
            with trail._reading() as connection:
                assert "ix_trail_lines_egress" in str(connection.execute(query).all())
    assert sound(url).open == frozenset()


def test_p2_fifty_callers_pay_for_few_transactions(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = []
    transact = Writer._transact

    def counted(self: Writer, batch: list[Any], **options: Any) -> Any:
        transactions.append(len(batch))
        return transact(self, batch, **options)

    monkeypatch.setattr(Writer, "_transact", counted)
    with writing(file_url) as write:
        write(50)
    assert sum(transactions) == 100 and len(transactions) < 50


# -- failing closed --------------------------------------------------------------------------------


@pytest.fixture
def broken(url: str, request: pytest.FixtureRequest) -> Callable[[bool], None]:
    """Takes the database away and gives it back: a full disk, a server that lets nobody in."""

    def sqlite(away: bool) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0 if away else hard, hard))

    def postgresql(away: bool) -> None:
        cluster = request.getfixturevalue("cluster")
        name = sa.make_url(url).database
        cluster.do(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {'false' if away else 'true'}")
        if away:
            cluster.do(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
            )

    return sqlite if url.startswith("sqlite") else postgresql


def test_p2_nothing_runs_that_cannot_be_written(url: str, broken: Callable[[bool], None]) -> None:
    printed: list[bytes] = []

    def fail_later(stream: str, data: bytes) -> None:
        printed.append(data)
        broken(True)

    with belljar.Belljar(Settings(trail=url, pool_size=1)) as jar:
        assert jar.run("print(1)").success
        broken(True)
        try:
            with pytest.raises(belljar.TrailError, match="could not be written") as refused:
                jar.run("print(2)", on_output=lambda *_: printed.append(b"ran"))
            assert not refused.value.ran and not printed and refused.value.hint
        finally:
            broken(False)
        try:
            with pytest.raises(belljar.TrailError, match="could not be written") as withheld:
                jar.run("print(3, flush=True); import time; time.sleep(0.5)", on_output=fail_later)
            assert withheld.value.ran and printed[0] == b"3\n"
        finally:
            broken(False)
        assert jar.run("print(4)").success  # it works again, without being told
    told = [(entry.status, entry.attempt["action"]) for entry in entries(url)]
    assert told == [("ok", "run"), ("refused", "refusals"), ("lost", "run"), ("ok", "run")]
    sound(url)


def test_p2_a_trail_that_cannot_be_opened_refuses_every_run(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    os.chmod(tmp_path / "open", 0o777)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    urls = [
        f"sqlite:///{tmp_path}/open/trail.db",
        f"sqlite:///{tmp_path}/link",
        f"sqlite:///{tmp_path}",
        "postgresql+psycopg://u:secret@/d?host=/nonexistent",
        "sqlite://",
        "mysql://x",
        "secret",
    ]
    for url in urls:
        with belljar.Belljar(Settings(trail=url)) as jar:
            for _ in range(2):
                with pytest.raises((belljar.TrailError, InvalidRequest)) as refused:
                    jar.run("print(1)")
                assert "secret" not in str(refused.value)
    assert not (tmp_path / "elsewhere").exists()


def test_p2_what_is_not_installed_is_told_with_what_to_type(file_url: str) -> None:
    code = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "import belljar\n"
        "try: belljar.Belljar(belljar.Settings(trail=sys.argv[1])).run('1')\n"
        "except belljar.TrailError as error: print(error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, file_url], check=True, capture_output=True, text=True
    )
    assert done.stdout == install("trail") + "\n"


# -- crashes, company ------------------------------------------------------------------------------


def child(url: str, runs: int = 1_000_000) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", CHILD, url, str(runs)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def killed(process: subprocess.Popen[str], *, after_s: float) -> list[list[str]]:
    """Everything it had told when it was killed under load."""
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(after_s)
    process.kill()
    told = [first, *process.stdout.read().splitlines(keepends=True)]
    process.wait()
    return [line.split() for line in told if line.endswith("\n")]


def check_told(url: str, told: list[list[str]]) -> None:
    by_id = {entry.attempt["id"]: entry for entry in entries(url)}
    for id_, status, exit_code, number in told:
        entry = by_id[id_]
        assert (entry.end["status"], str(entry.end["exit_code"])) == (status, exit_code)
        assert entry.end["stdout_sha256"] == records.sha256(f"{number}\n")


def mark_lost(url: str, *, living: int = 0) -> None:
    """The next opening. PostgreSQL may take a moment to notice that a client is gone."""
    deadline = time.monotonic() + 10
    while True:
        open_writer(Settings(trail=url)).close()
        if url.startswith("sqlite") or len(sound(url).open) <= living:
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_rounds(url: str, rounds: int) -> None:
    told: list[list[str]] = []
    for number in range(rounds):
        told += killed(child(url), after_s=0.05 + 0.37 * number % 0.4)
        mark_lost(url)
        verdict = sound(url)
        assert verdict.open == frozenset()
    check_told(url, told)
    with Trail(url) as trail:
        kinds = Counter(line.kind for line in trail.lines())
    assert kinds["attempt"] == kinds["end"] + kinds["lost"]
    assert kinds["end"] >= len(told) > 0 and kinds["lost"] > 0
    assert kinds["began"] == 1 and len({id_ for id_, *_ in told}) == len(told)
    # Between an answer's commit and its print there are at most as many as there are callers.
    assert kinds["end"] <= len(told) + 4 * rounds


def test_p2_sigkill_under_load_loses_nothing_that_was_told(url: str) -> None:
    kill_rounds(url, 5 if url.startswith("sqlite") else 2)


@pytest.mark.slow
def test_p2_sigkill_under_load_twenty_times(url: str) -> None:
    kill_rounds(url, 20)


def test_p2_processes_share_a_trail_and_the_living_are_spared(url: str) -> None:
    """One is killed, one works on; whoever opens it meanwhile calls only the dead one's lost."""
    with belljar.Belljar(Settings(trail=url, pool_size=1)) as jar, ThreadPoolExecutor(1) as pool:
        release = threading.Event()
        long = pool.submit(jar.run, "input()", stdin_descriptor=_pipe_until(release))
        worker, victim = child(url, 15), child(url)
        told = killed(victim, after_s=0.1)
        assert worker.stdout is not None
        told += [line.split() for line in worker.stdout.read().splitlines()]
        assert worker.wait() == 0 and len(told) >= 60
        mark_lost(url, living=1)
        open_writer(Settings(trail=url)).close()
        assert len(entries(url, status="open")) == 1  # our own
        release.set()
        assert long.result().success
    check_told(url, told)
    verdict = sound(url)
    counted = Counter(entry.status for entry in entries(url))
    assert verdict.lines == 1 + 2 * sum(counted.values()) and not verdict.open
    assert counted["lost"] <= 4  # none if it was killed while all it had begun were being ended


def _pipe_until(release: threading.Event) -> int:
    read, write = os.pipe()

    def wait() -> None:
        release.wait(60)
        os.write(write, b"\n")
        os.close(write)

    threading.Thread(target=wait, daemon=True).start()
    return read


def test_p2_a_fork_of_the_program_neither_writes_nor_harms(url: str) -> None:
    with belljar.Belljar(Settings(trail=url, pool_size=1)) as jar:
        assert jar.run("print(1)").success
        pid = os.fork()
        if pid == 0:
            import gc

            del jar
            gc.collect()  # would take connections down, were they still the parent's
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert jar.run("print(2)").success
        open_writer(Settings(trail=url)).close()
        assert jar.run("print(3)").success
    assert [entry.status for entry in entries(url)] == ["ok"] * 3


# -- tampering, pruning ----------------------------------------------------------------------------


def test_p2_tampering_is_found_where_it_was(url: str) -> None:
    with writing(url) as write:
        write(5)
    head = str(sound(url).head)
    with writing(url) as write:
        write(5)
    sound(url, head=head)
    engine, lines = Store(url).engine, tables.lines
    with Trail(url) as trail:
        kept = list(trail.lines())

    def found(statement: Any) -> int | None:
        with engine.begin() as connection:
            connection.execute(statement)
        with Trail(url) as trail:
            verdict = trail.verify()
        with engine.begin() as connection:
            connection.execute(lines.delete())
            connection.execute(lines.insert(), [line._asdict() for line in kept])
        assert not verdict.sound
        return verdict.at

    edited = lines.update().where(lines.c.seq == 7)
    assert found(edited.values(body=kept[6].body.replace('"x"', '"y"') + " ")) == 7
    assert found(edited.values(tenant="another")) == 7
    assert found(edited.values(status="lost")) == 7
    assert found(edited.values(hash=kept[5].hash)) == 7
    assert found(lines.delete().where(lines.c.seq == 7)) == 8
    assert found(lines.delete().where(lines.c.seq < 7)) == 7
    assert found(lines.insert().values(**kept[2]._replace(seq=22)._asdict())) == 22
    sound(url)
    with engine.begin() as connection:  # the newest ones: only the head shows it
        connection.execute(lines.delete().where(lines.c.seq > 5))
    assert not Trail(url).verify(head=head).sound
    sound(url)
    engine.dispose()


def test_p2_what_pruning_leaves_verifies(url: str) -> None:
    with writing(url) as write:
        first = write(4)
        time.sleep(0.01)
        middle = records.now()
        write(3)
        head = str(sound(url).head)
        with Trail(url) as trail:
            assert trail.prune(before=middle, by="test") == 9
            assert trail.prune(before=middle, by="test") == 0
            assert trail.find(first[0].execution_id) is None
        assert sound(url, head=head).first == 10
        write(2)
        with Trail(url) as trail:
            assert trail.prune(before=records.now(), by="test") > 0
    verdict = sound(url)
    assert verdict.lines == 2  # the newest of the old ones, and the word about it
    with writing(url, trail_keep_days=1e-9) as write:
        write(1)
        time.sleep(0.01)
    with Trail(url) as trail:
        kinds = [line.kind for line in trail.lines()]
    assert kinds == ["attempt", "pruned", "end"]
    sound(url)


def test_p2_pruning_stops_before_what_is_under_way(file_url: str) -> None:
    settings = Settings(trail=file_url)
    writer = open_writer(settings)

    async def prune_meanwhile() -> int:
        async with await Recorder(writer, settings, Caller()).entry("run", Request(code="")):
            with Trail(file_url) as trail:
                return await asyncio.to_thread(trail.prune, before=records.now(), by="test")

    assert asyncio.run(prune_meanwhile()) == 1
    writer.close()
    assert sound(file_url).first == 2


# -- where it is -----------------------------------------------------------------------------------


def test_p2_only_its_owner_can_read_it(tmp_path: Path, file_url: str) -> None:
    old = os.umask(0)
    try:
        with writing(file_url) as write:
            write(1)
            files = list((tmp_path / "trail").rglob("*"))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
            folder = stat.S_IMODE((tmp_path / "trail").stat().st_mode)
    finally:
        os.umask(old)
    assert folder == modes.pop("trail.db-owners") == 0o700
    assert {"trail.db", "trail.db-wal", "trail.db-shm"} < set(modes)
    assert set(modes.values()) == {0o600}
    os.chmod(tmp_path / "trail/trail.db", 0o644)
    with writing(file_url) as write:
        write(1)
    assert stat.S_IMODE((tmp_path / "trail/trail.db").stat().st_mode) == 0o600


def test_p2_the_migrations_make_the_tables_and_many_may_open_at_once(url: str) -> None:
    def open_and_close(_: int) -> None:
        open_writer(Settings(trail=url)).close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(open_and_close, range(8)))
    assert sound(url).lines == 1
    store = Store(url)
    assert store.revision() == tables.REVISION
    with store.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": tables.VERSION_TABLE, "compare_type": True}
        )
        assert autogenerate.compare_metadata(context, tables.metadata) == []
    with store.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {tables.VERSION_TABLE} SET version_num = '9999'")
    for refused in (lambda: open_writer(Settings(trail=url)), lambda: Trail(url)):
        with pytest.raises(belljar.TrailError):
            refused()
    store.close()


def test_p2_the_newest_migration_is_known_without_alembic() -> None:
    folder = Path(tables.__file__).parent / "migrations"
    assert script.ScriptDirectory(folder).get_current_head() == tables.REVISION


# -- the command line ------------------------------------------------------------------------------


def test_p2_the_command_line_reads_verifies_exports_and_prunes(
    file_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BELLJAR_TRAIL", file_url)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> tuple[int, str]:
        status = main.call(["trail", *words])
        return status, capsys.readouterr().out

    done = subprocess.run(
        [sys.executable, "-m", "belljar.cli.main", "run", "-c", "print(1)", "--json"],
        capture_output=True,
        check=True,
    )
    ran = json.loads(done.stdout)["execution_id"]
    with writing(file_url, trail_text=True) as write:
        other = write(1, Caller(tenant="a[bold]\x1b[31m\ud800", door="http"), "evil\x1b]0;")[0]
    status, out = call("list", "--json")
    assert status == 0
    newest, oldest = json.loads(out)
    assert (newest["attempt"]["id"], oldest["attempt"]["id"]) == (other.execution_id, ran)
    assert oldest["attempt"]["door"] == "cli" and oldest["status"] == "ok"
    status, out = call("list")
    assert status == 0 and ran[:12] in out and "\x1b" not in out and "a[bold]" in out
    assert call("list", "--status", "lost", "--since", "1h", "--json") == (0, "[]\n")
    status, out = call("show", other.execution_id[:10])
    assert status == 0 and "evil" in out and "\x1b" not in out
    assert json.loads(call("show", ran, "--json")[1])["end"]["exit_code"] == 0
    assert call("show", "ffff")[0] == main.REFUSED
    status, out = call("verify", "--json")
    verdict = json.loads(out)
    assert status == 0 and verdict["sound"] and verdict["lines"] == 5
    assert call("verify", "--head", verdict["head"])[0] == 0
    assert call("verify", "--head", "0" * 64)[0] == 1
    exported = tmp_path / "export.jsonl"
    assert call("export", "--output", str(exported)) == (0, "")
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    assert call("export")[1] == exported.read_text()
    assert call("verify", "--file", str(exported), "--head", verdict["head"])[0] == 0
    exported.write_text(exported.read_text().replace('"cli"', '"mcp"'))
    status, out = call("verify", "--file", str(exported))
    assert status == 1 and "line 2" in out
    assert call("prune", "--older-than", "1h") == (0, "0 lines were taken out\n")
    assert call("prune", "--older-than", "2999-01-01") == (0, "4 lines were taken out\n")
    assert call("verify")[0] == 0
    assert call("prune", "--older-than", "soon")[0] == main.REFUSED
    assert call("list", "--trail", f"sqlite:///{tmp_path}/none/trail.db")[0] == main.REFUSED


def test_p2_settings_of_the_trail_are_checked() -> None:
    with pytest.raises(InvalidRequest):
        Settings(trail_sync="never")  # type: ignore[arg-type]
    assert dataclasses.replace(Settings(), trail="").trail == ""
