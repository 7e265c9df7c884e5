"""Belljar over HTTP: one request after the other, then many clients at once.

A real server, with its trail, in a process of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from pathlib import Path
from typing import Any

from rich.progress import track

from belljar.testing.served import Served, served
from bench import contenders
from bench.contenders import BASE, Code
from bench.timing import Contender, in_turns, percentile

CLIENTS = 50
_BODY = json.dumps({"code": BASE}).encode()


def measure(*, requests: int, seconds: float) -> dict[str, Any]:
    with served(keys=True, log_level="warning") as server:
        return {
            "execute": _one_after_the_other(server, requests),
            "load": asyncio.run(_many(server, seconds)),
        }


def _one_after_the_other(server: Served, requests: int) -> dict[str, float]:
    """On one connection that stays open, as a program that runs code often would have it: without
    a break, when new sandboxes are made while others run, and with pauses as long as bare Python
    takes. That is measured before and after."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}

    def once() -> None:
        connection.request("POST", "/execute", _BODY, headers)
        _check(connection.getresponse().read())

    bare = contenders.bare(Code(group="base", text=BASE, environment="base"))
    straight = Contender(name="one after the other", group="base", once=once)
    in_turns([bare, straight], track(range(requests // 10), description="server, warming up"))
    straight.samples_ms.clear()
    for _ in track(range(requests), description="server, one after the other"):
        straight.turn()
    paused = Contender(name="with pauses", group="base", once=once, burst=5)
    in_turns([bare, paused], track(range(requests // 10), description="server, with pauses"))
    beside = percentile(bare.samples_ms, 50)
    return {
        "p50_ms": percentile(straight.samples_ms, 50),
        "p99_ms": percentile(straight.samples_ms, 99),
        "with_pauses_p50_ms": percentile(paused.samples_ms, 50),
        "bare_p50_ms": beside,
        "ratio": percentile(straight.samples_ms, 50) / beside,
        "with_pauses_ratio": percentile(paused.samples_ms, 50) / beside,
        "failures": float(len(straight.failures) + len(paused.failures)),
    }


async def _many(server: Served, seconds: float) -> dict[str, float]:
    samples: list[float] = []
    failures: list[str] = []
    host, _, port = server.url.removeprefix("http://").partition(":")
    head = (
        f"POST /execute HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {server.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(_BODY)}\r\n\r\n"
    ).encode()
    began = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        while (started := time.perf_counter()) < began + seconds:
            writer.write(head + _BODY)
            try:
                _check(await _answer(reader))
            except (OSError, RuntimeError, asyncio.IncompleteReadError) as error:
                failures.append(str(error)[:200])
                await asyncio.sleep(0.05)
            else:
                samples.append((time.perf_counter() - started) * 1000)
        writer.close()

    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    await asyncio.sleep(seconds / 4)  # pools and caches have their size
    early = _resident_bytes(server)
    await asyncio.gather(*clients)
    return {
        "per_second": len(samples) / seconds,
        "p50_ms": percentile(samples, 50),
        "p99_ms": percentile(samples, 99),
        "failures": float(len(failures)),
        "resident_bytes": float(_resident_bytes(server)),
        "grown_bytes": float(_resident_bytes(server) - early),
    }


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length)


def _check(content: bytes) -> None:
    if json.loads(content).get("output") != "1\n":
        raise RuntimeError(content.decode()[:200])


def _resident_bytes(server: Served) -> int:
    """Of the server's own process; its sandboxes are bounded by their limits."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) * 1024
