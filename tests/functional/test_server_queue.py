"""F2, P2: many at once, the queue, the trail; SIGTERM and SIGKILL in the middle of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from belljar.testing.served import Served, served
from belljar.trail.trail import Trail

SMALL = {"pool_size": 2, "build_environments": False, "engines": ["jail"]}
PLENTY_S = 60.0


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


async def post(server: Served, body: Any, key: str = "") -> Reply:
    """One request on a connection of its own."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST /execute HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key or server.key}\r\nContent-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    )
    writer.write(head.encode() + content)
    try:
        async with asyncio.timeout(PLENTY_S):
            reply = await reader.read()
    finally:
        writer.close()
    start, _, rest = reply.partition(b"\r\n\r\n")
    first, *lines = start.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return Reply(int(first.split()[1]), headers, json.loads(rest))


def trail_of(server: Served) -> Trail:
    return Trail(f"sqlite:///{server.home}/trail/trail.db")


def test_f2_a_thousand_at_a_queue_of_a_hundred() -> None:
    """Each gets a right answer or a 429, none hangs, and the trail counts as the clients do."""
    with served(
        connections=5000, quotas={"queue": 100}, sandboxes={**SMALL, "concurrency": 4}
    ) as server:

        async def all_at_once() -> list[Reply]:
            return await asyncio.gather(
                *(post(server, {"code": f"print({number})"}) for number in range(1000))
            )

        replies = asyncio.run(all_at_once())
        for number, reply in enumerate(replies):
            if reply.status == 200:
                assert reply.body["output"] == f"{number}\n"
            else:
                assert (reply.status, reply.body["error"]["code"]) == (429, "queue_full")
                assert reply.body["error"]["retryable"] and int(reply.headers["retry-after"]) >= 1
        counts = Counter(reply.status for reply in replies)
        assert counts[200] >= 104 and counts[429] > 0, counts
        with trail_of(server) as trail:
            lines = trail.recent(limit=5000)
            assert Counter(line.status for line in lines) == {
                "ok": counts[200],
                "refused": counts[429],
            }
            told = {line.attempt["id"] for line in lines if line.status == "ok"}
            assert told == {r.body["execution_id"] for r in replies if r.status == 200}
            assert trail.verify().sound
        assert server.execute("print(1)").status == 200


@pytest.fixture(scope="module")
def slow_server() -> Iterator[Served]:
    with served(keys=True, sandboxes={**SMALL, "concurrency": 1}) as server:
        yield server


def test_f2_a_crowd_of_one_tenant_does_not_keep_another_out(slow_server: Served) -> None:
    other = slow_server.belljar("keys", "add", "other").strip()
    sleep = {"code": "import time; time.sleep(0.1)"}

    async def play() -> list[str]:
        ended: list[str] = []

        async def one(name: str, key: str = "") -> None:
            while (reply := await post(slow_server, sleep, key)).status == 401:
                await asyncio.sleep(0.1)  # until the server has seen the new key
            assert reply.status == 200
            ended.append(name)

        await one("first", other)
        crowd = [asyncio.create_task(one("many")) for _ in range(20)]
        await asyncio.sleep(0.3)
        await one("other", other)
        await asyncio.gather(*crowd)
        return ended

    ended = asyncio.run(play())
    assert ended.index("other") < 12, ended


def test_who_goes_while_waiting_never_runs(slow_server: Served) -> None:
    async def play() -> None:
        first = asyncio.create_task(post(slow_server, {"code": "import time; time.sleep(1)"}))
        await asyncio.sleep(0.3)
        second = asyncio.create_task(post(slow_server, {"code": "print('never')"}))
        await asyncio.sleep(0.3)
        second.cancel()
        assert (await first).status == 200

    asyncio.run(play())
    wanted = hashlib.sha256(b"print('never')").hexdigest()
    deadline = time.monotonic() + PLENTY_S
    with trail_of(slow_server) as trail:
        while True:
            found = [line for line in trail.recent() if line.attempt.get("code_sha256") == wanted]
            if found or time.monotonic() > deadline:
                break
            time.sleep(0.05)
    assert [line.status for line in found] == ["refused"]


def test_sigterm_drains_then_kills() -> None:
    with served(drain_s=2.0, sandboxes=SMALL) as server:

        async def play() -> tuple[Reply, Reply]:
            short = asyncio.create_task(post(server, {"code": "import time; time.sleep(1)"}))
            long = asyncio.create_task(
                post(server, {"code": "import time; time.sleep(60)", "timeout": 60})
            )
            await asyncio.sleep(0.5)
            os.kill(server.process.pid, signal.SIGTERM)
            return await short, await long

        short, long = asyncio.run(play())
        assert short.status == 200
        # Its code ran: what that did it would do twice.
        assert (long.status, long.body["error"]["retryable"]) == (500, False)
        assert "the code ran" in long.body["error"]["message"]
        assert server.process.wait(PLENTY_S) == 0


def under(pid: int) -> set[int]:
    """The processes below one, with itself."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_text()
            except OSError:
                continue
            parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def killed_under_load(server: Served, round_: int) -> int:
    """SIGKILL in the middle of many requests; returns how many answers clients had."""
    answers: list[tuple[str, dict[str, Any]]] = []
    over = threading.Event()

    def client(name: int) -> None:
        number = 0
        while not over.is_set():
            text = f"{round_}-{name}-{number}"
            number += 1
            try:
                answer = server.execute(f"print({text!r})")
            except OSError:
                return
            assert answer.status == 200
            answers.append((text, answer.json()))

    clients = [threading.Thread(target=client, args=(name,)) for name in range(8)]
    for one in clients:
        one.start()
    while len(answers) < 50:
        time.sleep(0.01)
    time.sleep(0.05 * (round_ % 5))
    before = under(server.process.pid)
    server.process.kill()
    server.process.wait()
    over.set()
    for one in clients:
        one.join(PLENTY_S)
        assert not one.is_alive()
    assert server.process.stdout is not None
    server.process.stdout.close()
    deadline = time.monotonic() + PLENTY_S
    while left := [pid for pid in before if alive(pid)]:
        assert time.monotonic() < deadline, f"{left} outlived their server"
        time.sleep(0.02)
    server.restart()
    server.wait_ready(within_s=PLENTY_S)
    with trail_of(server) as trail:
        assert trail.verify().sound
        for text, answer in answers:
            assert answer["output"] == f"{text}\n"
            line = trail.find(answer["execution_id"])
            assert line is not None and line.end is not None and line.status == "ok"
            assert line.end["stdout_sha256"] == hashlib.sha256(f"{text}\n".encode()).hexdigest()
        assert not trail.recent(status="open"), "attempts of the dead server are still open"
    return len(answers)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_p2_sigkill_under_load(rounds: int = 2) -> None:
    with served(sandboxes=SMALL) as server:
        for round_ in range(rounds):
            assert killed_under_load(server, round_) >= 50


@pytest.mark.slow
def test_p2_sigkill_under_load_twenty_times() -> None:
    test_p2_sigkill_under_load(20)
