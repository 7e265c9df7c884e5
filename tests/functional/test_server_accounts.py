"""F2: what tenants are charged: while code runs, whatever becomes of the server, and no more than
they may have. And what operators can end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar import aio
from belljar.kept.sandbox import Sandbox
from belljar.mcp import once as mcp_once
from belljar.model import OutputFile, Usage
from belljar.probes import host
from belljar.server.state import State
from belljar.testing.served import Answer, Served, served
from belljar.trail.trail import Trail

SMALL = {"pool_size": 1, "build_environments": False, "engines": ["jail"]}
BURN = "while True: pass"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(keys=True, sandboxes=SMALL) as server:
        yield server


@pytest.fixture
def later() -> Iterator[Callable[..., Future[Answer]]]:
    """Asks on another thread."""
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


def until(look: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def key_for(server: Served, tenant: str, *quotas: str) -> str:
    options = [word for quota in quotas for word in ("--quota", quota)]
    key = server.belljar("keys", "add", tenant, *options).strip()
    until(lambda: server.ask("GET", "/v1/usage", key=key).status == 200)
    return key


def used_s(server: Served, key: str) -> float:
    found: float = server.ask("GET", "/v1/usage", key=key).json()["cpu_s_today"]
    return found


def execute(server: Served, key: str, code: str, **fields: Any) -> Answer:
    body = {"code": code, **fields}
    return server.ask("POST", "/execute", body, key=key, timeout_s=180)


# -- while it runs ---------------------------------------------------------------------------------


def test_f2_what_runs_is_charged_before_the_server_can_be_killed(
    later: Callable[..., Future[Answer]],
) -> None:
    with served(keys=True, sandboxes=SMALL) as server:
        bob = key_for(server, "bob", "cpu_s_per_day=1000")
        running = later(execute, server, bob, BURN, timeout=100)
        state = State(f"sqlite:///{server.home}/server/state.db")
        day = int(time.time() // 86_400)
        until(lambda: state.spent(day).get("bob", 0.0) > 1)
        known = state.spent(day)["bob"]
        server.process.kill()
        server.process.wait()
        assert running.exception() is not None
        server.restart()
        server.wait_ready()
        assert used_s(server, bob) >= known - 0.001
        state.close()


def test_f2_a_run_ends_when_the_days_cpu_seconds_do(server: Served) -> None:
    key = key_for(server, "short", "cpu_s_per_day=1")
    answer = execute(server, key, BURN, timeout=100)
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (429, "quota_exceeded")
    assert "was ended" in error["message"] and not error["retryable"]
    assert "Retry-After" not in answer.headers, "what it did it would do twice"
    assert 1 <= used_s(server, key) < 20
    with Trail(f"sqlite:///{server.home}/trail/trail.db") as trail:
        until(lambda: trail.recent(tenant="short", status="cancelled"))
        end = trail.recent(tenant="short", status="cancelled")[0].end
        assert end and end["error"] == "OutOfCpu"


@pytest.mark.parametrize("told", [False, True], ids=["answer", "events"])
def test_f2_a_run_in_a_kept_sandbox_ends_with_them_too(server: Served, told: bool) -> None:
    key = key_for(server, f"kept{told}", "cpu_s_per_day=1")
    box = server.ask("POST", "/v1/sandboxes", {}, key=key).json()["id"]
    body = {"code": BURN, "timeout_s": 100}
    headers = {"Accept": "text/event-stream"} if told else {}
    path = f"/v1/sandboxes/{box}/runs"
    answer = server.ask("POST", path, body, key=key, headers=headers, timeout_s=180)
    assert answer.status == 200 and b"CPU seconds of today are used up" in answer.content
    assert b'"status": "killed"' in answer.content
    assert 1 <= used_s(server, key) < 20
    assert server.ask("POST", path, body, key=key).status == 429


@pytest.mark.usefixtures("cgroups_of_ours")
def test_f2_programs_in_the_background_end_with_them(server: Served) -> None:
    key = key_for(server, "beside", "cpu_s_per_day=1")
    box = server.ask("POST", "/v1/sandboxes", {}, key=key).json()["id"]
    started = {"program": ["sh", "-c", "while :; do :; done"], "detached": True}
    assert server.ask("POST", f"/v1/sandboxes/{box}/processes", started, key=key).status == 200
    until(lambda: server.ask("GET", f"/v1/sandboxes/{box}", key=key).status == 410)
    assert 1 <= used_s(server, key) < 20


def test_f2_servers_that_share_their_state_add_up(tmp_path: Path) -> None:
    state = f"sqlite:///{tmp_path}/state.db"
    with (
        served(keys=True, state=state, sandboxes=SMALL) as first,
        served(state=state, sandboxes=SMALL) as second,
    ):
        bob = key_for(first, "bob")
        until(lambda: second.ask("GET", "/v1/usage", key=bob).status == 200)
        code = "sum(range(20_000_000))"
        used = 0.0
        for server in (first, second, first):
            assert execute(server, bob, code).json()["success"]
            before = used
            until(lambda before=before: used_s(first, bob) > before + 0.05)
            until(lambda: abs(used_s(first, bob) - used_s(second, bob)) < 0.001)
            used = used_s(first, bob)
        first.belljar("keys", "quotas", "bob", "--quota", "cpu_s_per_day=1")
        while execute(first, bob, code).status == 200:
            pass
        until(lambda: execute(second, bob, "1").status == 429)


def test_p2_turning_somebody_away_takes_little_of_the_trail(server: Served) -> None:
    key = key_for(server, "loud", "runs_per_minute=1")
    files = {f"{'n' * 100}{number}": "" for number in range(600)}
    body = {"code": "1", "files": files, "inputs": files}
    statuses = {server.ask("POST", "/v1/runs", body, key=key).status for _ in range(40)}
    assert 429 in statuses
    with Trail(f"sqlite:///{server.home}/trail/trail.db") as trail:
        refused = {
            one.attempt["id"]
            for one in trail.recent(tenant="loud", status="refused", limit=100)
            if (one.end or {}).get("error") == "quota_exceeded"
        }
        sizes = [len(line.body) for line in trail.lines() if line.id in refused]
        assert len(refused) >= 39 and sum(sizes) / len(refused) < 2000


# -- one run for a model ---------------------------------------------------------------------------

LEFT_RUNNING = "import subprocess; p = subprocess.Popen(['sh', '-c', 'while :; do :; done'])"


@pytest.mark.usefixtures("cgroups_of_ours")
def test_a4_looking_for_files_ends_and_what_was_left_running_is_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    async def look(box: Sandbox, given: set[str], found: list[OutputFile]) -> None:
        found.append(OutputFile(path="/workspace/one", size=0, content=None))
        while (box.cpu_ms() or 0) < 300:
            await asyncio.sleep(0.01)
        try:
            await asyncio.Event().wait()  # a listing that the code keeps from ending
        finally:
            ended.append(box.ended)

    async def main() -> belljar.Result:
        async with aio.Belljar() as jar:
            await jar.run("1")
            return await mcp_once.once(jar, LEFT_RUNNING, {})

    monkeypatch.setattr(mcp_once, "_left", look)
    result = asyncio.run(main())
    assert result.success and [file.path for file in result.files] == ["/workspace/one"]
    assert any("search for files" in warning for warning in result.warnings)
    assert result.usage.cpu_ms >= 300
    assert len(ended) == 1


def test_a4_a_run_for_a_model_is_watched_too() -> None:
    class Enough(Exception):
        pass

    def on_usage(usage: Usage) -> None:
        if usage.cpu_ms > 200:
            raise Enough

    async def main() -> None:
        async with aio.Belljar() as jar:
            await mcp_once.once(jar, BURN, {"timeout_s": 100.0, "on_usage": on_usage})

    with pytest.raises(Enough):
        asyncio.run(main())


# -- operators -------------------------------------------------------------------------------------


def test_f2_what_a_tenant_without_keys_left_running_ends(server: Served) -> None:
    key = key_for(server, "gone")
    box = server.ask("POST", "/v1/sandboxes", {}, key=key).json()["id"]
    started = {"program": ["sleep", "1000"], "detached": True}
    assert server.ask("POST", f"/v1/sandboxes/{box}/processes", started, key=key).status == 200
    second = server.belljar("keys", "add", "gone").strip()
    until(lambda: server.ask("GET", "/v1/usage", key=second).status == 200)
    server.belljar("keys", "remove", key.split("_")[1])
    until(lambda: server.ask("GET", "/v1/usage", key=key).status == 401)
    assert server.ask("GET", f"/v1/sandboxes/{box}", key=second).status == 200, "a key is left"
    server.belljar("keys", "remove", second.split("_")[1])
    with Trail(f"sqlite:///{server.home}/trail/trail.db") as trail:
        until(lambda: trail.recent(tenant="gone", status="closed"))
        end = trail.recent(tenant="gone", status="closed")[0].end
        assert end and end["reason"] == "its tenant has no key any more"
    everyone = server.ask("GET", "/v1/sandboxes?everyone=true").json()["sandboxes"]
    assert box not in [one["id"] for one in everyone]


@pytest.mark.parametrize("route", ["/execute", "/v1/runs"])
def test_f2_a_run_ends_with_the_key_that_asked_for_it(
    server: Served, route: str, later: Callable[..., Future[Answer]]
) -> None:
    key, other = key_for(server, "former"), key_for(server, "former")
    mark = host.new_mark()
    code = f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'{mark}', 0, 0, 0); time.sleep(55)"
    ended = later(server.ask, "POST", route, {"code": code}, key=key)
    until(lambda: host.named(mark))
    server.belljar("keys", "remove", key.split("_")[1])
    answer = ended.result(50)
    assert answer.status == 401 and b"key was removed" in answer.content
    until(lambda: not host.named(mark))
    assert server.ask("GET", "/v1/usage", key=other).status == 200, "one key, not its tenant"


def test_f2_a_tool_call_ends_with_its_key(
    server: Served, later: Callable[..., Future[Answer]]
) -> None:
    key = key_for(server, "agent")
    mark = host.new_mark()
    code = f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'{mark}', 0, 0, 0); time.sleep(55)"
    call = {"name": "run_code", "arguments": {"code": code, "timeout_s": 60}}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    headers = {"Accept": "application/json, text/event-stream"}
    begin = {
        **asked,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-03-26",
            "capabilities": {},
            "clientInfo": {"name": "a", "version": "1"},
        },
    }
    begun = server.ask("POST", "/mcp", begin, key=key, headers=headers)
    headers |= {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
    ended = later(server.ask, "POST", "/mcp", {**asked, "params": call}, key=key, headers=headers)
    until(lambda: host.named(mark))
    server.belljar("keys", "remove", key.split("_")[1])
    until(lambda: not host.named(mark))
    with pytest.raises((OSError, HTTPException)):
        ended.result(50)


def test_f2_an_upload_ends_with_its_key(server: Served) -> None:
    key = key_for(server, "sender")
    with contextlib.closing(HTTPConnection(server.url.removeprefix("http://"), timeout=50)) as sent:
        sent.putrequest("POST", "/v1/datasets?name=slow")
        for name, value in (
            ("Authorization", f"Bearer {key}"),
            ("Content-Type", "application/octet-stream"),
            ("Content-Length", "1000000000"),
        ):
            sent.putheader(name, value)
        sent.endheaders()
        sent.send(b"x" * 100_000)
        server.belljar("keys", "remove", key.split("_")[1])
        with pytest.raises((OSError, HTTPException)):
            for _ in range(600):
                sent.send(b"x" * 100_000)
                time.sleep(0.05)
            raise AssertionError("it goes on")


def test_f2_an_operator_sees_and_ends_any_sandbox_and_nobody_else_does(server: Served) -> None:
    bob, eve = key_for(server, "bob"), key_for(server, "eve")
    box = server.ask("POST", "/v1/sandboxes", {}, key=bob).json()["id"]
    assert server.ask("GET", "/v1/sandboxes?everyone=true", key=eve).status == 403
    assert server.ask("DELETE", f"/v1/sandboxes/{box}", key=eve).status == 404
    found = server.ask("GET", "/v1/sandboxes?everyone=true").json()["sandboxes"]
    assert (box, "bob") in [(one["id"], one["tenant"]) for one in found]
    assert server.ask("GET", f"/v1/sandboxes/{box}").status == 404, "to be ended, not to be used"
    assert server.ask("DELETE", f"/v1/sandboxes/{box}").status == 200
    ended = server.ask("GET", f"/v1/sandboxes/{box}", key=bob)
    assert ended.status == 410 and "an operator ended it" in ended.json()["error"]["message"]


# -- what breaks -----------------------------------------------------------------------------------


def zygotes_of(pid: int) -> set[int]:
    """Processes that it holds a pidfd of, and whose pid namespace is right below ours."""
    found = set()
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            told = file.read_text()
            lines = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
            held = int(lines.get("Pid", "-1"))
            status = Path(f"/proc/{held}/status").read_text() if held > 0 else ""
        except FileNotFoundError:
            continue  # it was closed, or has ended, meanwhile
        if status:
            numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            if len(numbers.split()) == 3:
                found.add(held)
    return found


def test_a3_a_sandbox_that_was_lost_is_told(later: Callable[..., Future[Answer]]) -> None:
    with served(keys=True, sandboxes=SMALL) as server:
        code = "import time\ntime.sleep(100)"
        running = later(execute, server, "", code, timeout=110)
        until(lambda: server.ask("GET", "/health").json()["running"])
        zygotes = zygotes_of(server.process.pid)
        assert zygotes
        for pid in zygotes:
            os.kill(pid, signal.SIGKILL)
        answer = running.result().json()
        assert answer["success"] is False and "belljar:" in answer["error"], answer


def limit_files(server: Served, size: int) -> None:
    """What a full disk does to whoever writes: every write to a file fails."""
    import resource

    _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    soft = hard if size < 0 else size
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (soft, hard))


def test_p2_a_server_that_cannot_write_its_trail_says_so(
    later: Callable[..., Future[Answer]],
) -> None:
    with served(keys=True, sandboxes=SMALL) as server:
        under_way = later(execute, server, "", "import time; time.sleep(5)")
        with Trail(f"sqlite:///{server.home}/trail/trail.db") as trail:
            until(lambda: trail.recent(status="open"))
        limit_files(server, 0)
        try:
            refused = execute(server, "", "print(1)")
            assert (refused.status, refused.json()["error"]["retryable"]) == (503, True)
            until(lambda: server.ask("GET", "/ready").status == 503)
            assert server.ask("GET", "/ready").json()["error"]["code"] == "trail_error"
            withheld = under_way.result()
            assert withheld.status == 500
            error = withheld.json()["error"]
            assert (error["code"], error["retryable"]) == ("trail_error", False)
            assert "the code ran" in error["message"]
        finally:
            limit_files(server, -1)
        until(lambda: server.ask("GET", "/ready").status == 200)
        assert execute(server, "", "print(1)").json()["success"]
        assert "sound" in server.belljar("trail", "verify", "--json")
        with Trail(f"sqlite:///{server.home}/trail/trail.db") as trail:
            verdict = trail.verify()
            assert verdict.sound and not verdict.open
            statuses = [one.status for one in trail.recent()]
            assert sorted(statuses) == ["lost", "ok", "refused"]


def test_f2_what_the_filter_took_is_charged_when_nothing_else_runs(server: Served) -> None:
    """It runs before limits are compared with what the code needs."""
    key = key_for(server, "filtered", "cpu_s_per_day=100")
    asked = {"filter": "warn", "language_level": "restricted", "disk_bytes": 1_000_000}
    code = "\n".join(["a.b.c(d)(e)[f]"] * 6000)
    answer = server.ask("POST", "/v1/runs", {"code": code, **asked}, key=key)
    assert answer.status == 400 and answer.json()["error"]["code"] == "limit_exceeded"
    until(lambda: used_s(server, key) > 0.05)
    with Trail(f"sqlite:///{server.home}/trail/trail.db") as trail:
        end = trail.recent(tenant="filtered", status="refused")[0].end
        assert end and end["usage"]["cpu_ms"] > 50


def test_f2_describing_a_dataset_is_charged_and_ended_like_a_run(server: Served) -> None:
    key = key_for(server, "describer", "cpu_s_per_day=1")
    rows = "\n".join(f"{n},{n * 7},abc" for n in range(700_000)).encode()
    headers = {"Content-Type": "application/octet-stream"}
    made = server.ask("POST", "/v1/datasets?name=a.csv", rows, key=key, headers=headers)
    path = f"/v1/datasets/{made.json()['id']}/description"
    statuses = set()
    for _ in range(20):  # none is remembered before it has ended
        answer = server.ask("GET", path, key=key)
        statuses.add(answer.status)
        if answer.status == 429:
            break
        server.ask("DELETE", path.removesuffix("/description"), key=key)
        made = server.ask("POST", "/v1/datasets?name=a.csv", rows, key=key, headers=headers)
        path = f"/v1/datasets/{made.json()['id']}/description"
    assert 429 in statuses
    assert used_s(server, key) >= 1
    rid = "a-refused-description"
    server.ask("GET", path, key=key, headers={"X-Request-ID": rid})
    with Trail(f"sqlite:///{server.home}/trail/trail.db") as trail:
        until(
            lambda: any(
                one.attempt.get("request_id") == rid for one in trail.recent(tenant="describer")
            )
        )
