"""F2: keys, quotas and CPU seconds, in SQLite and in PostgreSQL: the same code, the same tests."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from alembic import autogenerate
from alembic.migration import MigrationContext

from belljar.errors import InvalidRequest, Unavailable
from belljar.server import keys, state
from belljar.server import server as server_module
from belljar.server.app import build
from belljar.server.settings import ServerSettings
from belljar.server.state import State
from belljar.server.tenants import Quotas
from belljar.testing.served import Served, served


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state/state.db"
    found: str = request.getfixturevalue("cluster").database()
    return found


def test_f2_what_is_put_in_comes_out(url: str) -> None:
    first, _ = keys.make("ann", operator=True, now=1.5)
    second, _ = keys.make("ann", now=2.5)
    here = State(url)
    here.add(first, Quotas(runs_per_minute=3, engines=("jail",), maxima={"timeout_s": 2.5}))
    here.add(second)
    here.spend(7, [("ann", 1.25), ("eve", 2.0)])
    here.close()
    again = State(url)
    assert again.all_keys() == [first, second]
    own = again.tenants()["ann"]
    assert (own.runs_per_minute, own.engines, own.maxima) == (3, ("jail",), {"timeout_s": 2.5})
    assert own.model_fields_set == {"runs_per_minute", "engines", "maxima"}
    again.set_quotas("ann", Quotas(sandboxes=1))
    assert again.tenants() == {"ann": Quotas(sandboxes=1)}
    again.spend(7, [("ann", 2.5)])
    assert again.spent(7) == {"ann": 3.75, "eve": 2.0} and again.spent(8) == {}
    again.spend(7 + 40, [("ann", 1.0)])
    assert again.spent(7) == {"ann": 3.75, "eve": 2.0}, "the clock may have jumped"
    for day in range(8, 8 + state.KEPT_DAYS - 1):
        again.spend(day, [("ann", 1.0)])
    assert again.spent(7) == {"eve": 2.0}, "a month is enough"
    assert again.remove(first.id) and not again.remove(first.id)
    assert again.all_keys() == [second]
    again.close()


def test_f2_what_cannot_be_read_costs_its_own_tenant_alone(url: str) -> None:
    here = State(url)
    good, _ = keys.make("ann", now=1.5)
    bad, _ = keys.make("bob", now=2.5)
    here.add(good, Quotas(sandboxes=1))
    here.add(bad)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        broken = {"quotas": '{"a_quota_of_the_next_version": 1}'}
        connection.execute(state.TENANTS.update().where(state.TENANTS.c.name == "bob"), broken)
        connection.execute(state.KEYS.update().where(state.KEYS.c.id == bad.id), {"hash": "?"})
    engine.dispose()
    assert here.all_keys() == [good]
    assert here.tenants() == {"ann": Quotas(sandboxes=1), "bob": None}
    here.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    small = {"pool_size": 1, "build_environments": False, "engines": ["jail"]}
    with served(keys=True, sandboxes=small) as found:
        yield found


def test_f2_a_removed_key_is_none_although_some_quotas_cannot_be_read(server: Served) -> None:
    bob, eve = (server.belljar("keys", "add", name).strip() for name in ("bob", "eve"))
    until(lambda: asked(server, bob).status == asked(server, eve).status == 200)
    engine = sa.create_engine(f"sqlite:///{server.home}/server/state.db")

    def write(quotas: str) -> None:
        with engine.begin() as connection:
            eves = state.TENANTS.c.name == "eve"
            connection.execute(state.TENANTS.update().where(eves), {"quotas": quotas})

    write('{"a_quota_of_the_next_version": 1}')
    until(lambda: asked(server, eve).status == 429)
    assert "cannot read this key's quotas" in asked(server, eve).json()["error"]["message"]
    upload = server.ask(
        *("POST", "/v1/datasets?name=a", b"1"),
        headers={"Content-Type": "application/octet-stream"},
        key=eve,
    )
    assert upload.status == 429
    assert asked(server, bob).status == 200
    server.belljar("keys", "remove", bob.split("_")[1])
    until(lambda: asked(server, bob).status == 401)
    assert server.ask("GET", "/ready").status == 200
    write("{}")
    until(lambda: asked(server, eve).status == 200)
    engine.dispose()


def test_f2_keys_that_cannot_be_read_hold_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    here = State(url)
    key, text = keys.make("ann", now=1.0)
    here.add(key)
    here.close()
    settings = ServerSettings(state=url, sandboxes={"home": str(tmp_path), "pool_size": 0})
    monkeypatch.setattr(server_module, "REFRESH_S", 0.05)

    async def play() -> None:
        found = server_module.Server(settings)
        found.ready = True
        refreshing = asyncio.ensure_future(found._refresh())
        transport = httpx.ASGITransport(build(found))
        client = httpx.AsyncClient(
            transport=transport,
            base_url="http://127.0.0.1",
            headers={"Authorization": f"Bearer {text}"},
        )
        assert (await client.get("/ready")).status_code == 200
        (tmp_path / "state.db").unlink()
        (tmp_path / "state.db").mkdir()  # cannot be read
        found.state._engine.dispose()
        read = found._keys_read
        await asyncio.sleep(0.3)
        assert (await client.get("/v1/usage")).status_code == 200
        found._keys_read = read - keys.KEYS_LATE_S
        await asyncio.sleep(0.3)
        assert (await client.get("/ready")).json()["error"]["code"] == "storage_unavailable"
        assert (await client.get("/v1/usage")).status_code == 200
        found._keys_read = read - keys.KEYS_HOLD_S
        refused = await client.get("/v1/usage")
        assert refused.status_code == 503 and refused.json()["error"]["retryable"]
        refreshing.cancel()
        await asyncio.wait((refreshing,))

    asyncio.run(play())


def test_f2_many_open_and_write_at_once(url: str) -> None:
    """A server and `belljar keys` may be started together, on a database that is still empty."""

    def work(number: int) -> None:
        here = State(url)
        key, _ = keys.make(f"t{number % 2}", now=float(number))
        here.add(key)
        here.spend(1, [("both", float(number))])
        here.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    here = State(url)
    assert (len(here.all_keys()), sorted(here.tenants())) == (8, ["t0", "t1"])
    assert here.spent(1) == {"both": float(sum(range(8)))}, "what each has used adds up"
    here.close()


def test_f2_the_migrations_make_the_tables_that_the_code_has(url: str) -> None:
    State(url).close()
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        options = {"version_table": state.VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert autogenerate.compare_metadata(context, state.METADATA) == []
        assert context.get_current_revision() == state.NEWEST
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {state.VERSION_TABLE} SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(Unavailable, match="newer than this Belljar"):
        State(url)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ("hunter2", InvalidRequest),
        ("mysql://u:hunter2@h/d", InvalidRequest),
        ("sqlite://", InvalidRequest),
        ("sqlite:////proc/hunter/state.db", Unavailable),
        ("postgresql://u:hunter2@/d?host=/nonexistent", Unavailable),
    ],
)
def test_f2_what_cannot_be_opened_is_told_without_its_password(
    wrong: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        State(wrong)
    error: Any = caught.value
    assert error.hint and "hunter2" not in error.message + error.hint


def test_f2_a_missing_driver_is_told_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Unavailable, match="psycopg") as caught:
        State("postgresql://u@/d?host=/nonexistent")
    assert "[server,postgres]'" in caught.value.hint


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_f2_a_server_with_everything_in_postgresql(cluster: Any) -> None:
    """State and trail in one database: keys and quotas are seen, a restart forgets nothing."""
    url = cluster.database()
    small = {"pool_size": 1, "build_environments": False, "engines": ["jail"]}
    with served(keys=True, state=url, trail=url, sandboxes=small) as server:
        assert not list(server.home.rglob("*.db"))
        ran = server.execute("sum(range(3_000_000)); print(1)").json()
        assert ran["output"] == "1\n"
        told = server.ask("GET", f"/v1/trail/{ran['execution_id']}").json()
        assert (told["status"], told["attempt"]["tenant"]) == ("ok", "tester")
        bob = server.belljar("keys", "add", "bob", "--quota", "runs_per_minute=1").strip()
        until(lambda: asked(server, bob).status == 200)
        assert asked(server, bob).status == 429
        server.belljar("keys", "quotas", "bob", "--quota", "runs_per_minute=5")
        until(lambda: asked(server, bob).status == 200)
        server.belljar("keys", "remove", bob.split("_")[1])
        until(lambda: asked(server, bob).status == 401)
        used = server.ask("GET", "/v1/usage").json()["cpu_s_today"]
        assert used > 0
        assert server.stop() == 0
        server.restart()
        server.wait_ready()
        assert server.ask("GET", "/v1/usage").json()["cpu_s_today"] >= used
        # A database that goes away for a moment stops runs, not the server.
        name = url.partition("@/")[2].partition("?")[0]
        cluster.do(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        cluster.do(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        refused = server.execute("print(1)")
        assert (refused.status, refused.json()["error"]["code"]) == (503, "trail_error")
        cluster.do(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        until(lambda: server.execute("print(1)").status == 200)


def asked(server: Served, key: str) -> Any:
    return server.ask("POST", "/execute", {"code": "print(1)"}, key=key)
