"""What goes wrong on purpose, when, and how long the server takes to be itself again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

import httpx

from . import machine
from .machine import Traces
from .place import METERED, Place
from .record import Fault, Record
from .talk import Disturbed, Talk

RECOVER_S = 90.0
LONGEST_GAP_S, SHORTEST_GAP_S = 40.0, 6.0
LONG_S = 1200.0
"""From this length on faults that take minutes have their place, too."""
NOTICED_S = 20.0
"""How long a full disk is waited for to be noticed: the log of a database has some slack."""
HANG_S = 75.0

Harm = Callable[["Injector", Random], Awaitable[str]]


def plan(seed: int, duration_s: float, kinds: Sequence[str]) -> list[tuple[float, str]]:
    """When which fault begins. Each kind comes once before any comes twice. The second half has
    none that ends the server: how its size develops takes a long life to see."""
    if not kinds or duration_s < 2 * SHORTEST_GAP_S:
        return []
    chance = Random(f"{seed} faults")
    gap_s = min(LONGEST_GAP_S, max(SHORTEST_GAP_S, duration_s / (len(kinds) + 2)))
    found: list[tuple[float, str]] = []
    at, deck = gap_s / 2, list[str]()
    while at < duration_s - SHORTEST_GAP_S:
        late = at > duration_s / 2
        choice = [kind for kind in deck if not (late and kind in ENDING)]
        if not choice:
            deck = [kind for kind in kinds if kind not in LONG or duration_s >= LONG_S]
            chance.shuffle(deck)
            choice = [kind for kind in deck if not (late and kind in ENDING)]
            if not choice:
                break
        deck.remove(choice[0])
        found.append((at, choice[0]))
        at += gap_s * chance.uniform(0.8, 1.2)
    return found


class Injector:
    """One fault at a time; the next waits until the server has recovered."""

    def __init__(
        self, place: Place, record: Record, traces: Traces, http: httpx.AsyncClient,
        *, now: Callable[[], float], tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.place = place
        self.record = record
        self.traces = traces
        self.now = now
        self.under_way = asyncio.Lock()
        self.talk = Talk(METERED, place, record, http, now)
        self._http = http
        self._tell = tell

    async def follow(self, planned: Sequence[tuple[float, str]], seed: int) -> None:
        for number, (at, kind) in enumerate(planned):
            await asyncio.sleep(max(0.0, at - self.now()))
            async with self.under_way:
                await self._inject(kind, Random(f"{seed} fault {number}"))

    async def _inject(self, kind: str, chance: Random) -> None:
        fault = Fault(kind=kind, began=self.now())
        self.record.faults.append(fault)
        self._tell(f"fault: {kind}")
        fault.detail = await FAULTS[kind](self, chance)
        fault.lifted = self.now()
        for attempt in ("by itself", "after a restart"):
            try:
                async with asyncio.timeout(RECOVER_S):
                    await self.recovered(datasets=kind == "lose-datasets")
                break
            except TimeoutError:
                self.record.seen.append(
                    f"{kind}: not recovered {attempt} in {RECOVER_S:.0f} s: {self.last}"
                )
                await self.stop()
                await self.start()
        fault.recovered = self.now()
        took = fault.recovered - fault.lifted
        self._tell(f"recovered {took:.1f} s later. {fault.detail}".rstrip())

    # -- the server as others see it ---------------------------------------------------------------

    last = ""
    """Why it was not recovered when it was last asked."""

    async def recovered(self, *, datasets: bool = False) -> None:
        """Returns when it is ready, runs code, with a network too, and takes datasets if asked."""
        rule = list(self.place.upstream.rule())
        url = self.place.upstream.url("/hello", secure=True)
        reach = f"import urllib.request; urllib.request.urlopen('{url}', timeout=20).read()"
        asked: list[tuple[str, str, object]] = [
            ("GET", "/ready", None),
            ("POST", "/v1/runs", {"code": "print(1)"}),
            ("POST", "/v1/runs", {"code": reach, "network": rule}),
        ]
        if datasets:
            asked.append(("POST", "/v1/datasets?name=probe", b"1,2\n"))
        while asked:
            if await self.works(*asked[0]):
                asked.pop(0)
            else:
                await asyncio.sleep(0.2)
        life = self.place.life
        life.ready = life.ready or self.now()

    async def works(self, method: str, path: str, body: object = None) -> bool:
        headers = {"Authorization": f"Bearer {self.place.operator}"}
        given: dict[str, object] = {"json": body}
        if isinstance(body, bytes):
            given = {"content": body}
            headers["Content-Type"] = "application/octet-stream"
        try:
            answer = await self._http.request(
                method,
                self.place.url + path,
                headers=headers,
                timeout=30.0,
                **given,  # type: ignore[arg-type]
            )
            found = answer.json()
        except (httpx.HTTPError, OSError, ValueError) as error:
            self.last = f"{path}: {error!r}"
            return False
        self.last = f"{path}: {answer.status_code} {answer.text[:300]}"
        return answer.status_code == 200 and found.get("status", "ok") == "ok"

    async def start(self) -> None:
        if not await asyncio.to_thread(self.place.start):
            self.record.seen.append("the server did not start")

    async def stop(self) -> None:
        if not await asyncio.to_thread(self.place.stop):
            self.record.seen.append("the server did not end within a minute after SIGTERM")

    async def noticed(self) -> bool:
        """Whether runs are refused because the trail cannot be written."""
        deadline = self.now() + NOTICED_S
        while self.now() < deadline:
            if not await self.works("POST", "/v1/runs", {"code": "print(1)"}):
                return True
        return False


# -- the faults ------------------------------------------------------------------------------------


async def kill_server(on: Injector, chance: Random) -> str:
    """While a run spins: what it has used by then is charged, but for a second at most."""
    body = {"code": "while True: pass", "timeout_s": 60.0}
    spin = asyncio.create_task(_spin(on, body))
    await asyncio.sleep(chance.uniform(2.0, 3.0))
    on.place.signal(signal.SIGSTOP)  # for the moment it takes to write its family down
    known = len(await asyncio.to_thread(on.traces.note))
    await asyncio.to_thread(on.place.kill)
    await spin
    left = await asyncio.to_thread(on.traces.gone)
    if left:
        pids = ", ".join(str(one.pid) for one in left)
        on.record.seen.append(f"kill-server: processes outlived the server: {pids}")
    await on.start()
    return f"{known} processes went with it"


async def _spin(on: Injector, body: dict[str, object]) -> None:
    token = on.talk.token()
    judge = lambda _: "a server that was killed has answered"  # noqa: E731
    try:
        await on.talk.stream("spin", "/v1/runs", body, token=token, judge=judge, one_run=True)
    except Disturbed:
        pass  # recorded, with the CPU time that was last told


async def restart_server(on: Injector, chance: Random) -> str:
    await on.stop()
    await on.start()
    return f"exit status {on.record.lives[-2].exit_status}"


async def freeze_server(on: Injector, chance: Random) -> str:
    return await _freeze([on.place.pid], chance.uniform(1.0, 4.0))


async def freeze_gateway(on: Injector, chance: Random) -> str:
    return await _freeze(machine.gateways(on.place.pid), chance.uniform(2.0, 5.0))


async def hang_gateway(on: Injector, chance: Random) -> str:
    return await _freeze(machine.gateways(on.place.pid), HANG_S)


async def kill_gateway(on: Injector, chance: Random) -> str:
    return _kill(machine.gateways(on.place.pid))


async def kill_zygote(on: Injector, chance: Random) -> str:
    found = machine.zygotes(on.place.pid)
    return _kill([chance.choice(found)] if found else [])


async def full_disk(on: Injector, chance: Random) -> str:
    """Whoever asks must be told: runs are refused, and the server says that it is not ready."""
    if not on.place.fill():
        return "could not be filled"
    try:
        if not await on.noticed():
            return "not noticed"
        await asyncio.sleep(2.0)
        if await on.works("GET", "/ready"):
            on.record.seen.append("full-disk: /ready is 200 while the trail cannot be written")
        return "runs were refused"
    finally:
        on.place.make_room()


async def stop_on_full_disk(on: Injector, chance: Random) -> str:
    if not on.place.fill():
        return "could not be filled"
    try:
        noticed = await on.noticed()
        await on.stop()
    finally:
        on.place.make_room()
    await on.start()
    said = "runs were refused" if noticed else "not noticed"
    return f"{said}, exit status {on.record.lives[-2].exit_status}"


async def lose_owners(on: Injector, chance: Random) -> str:
    """The marks of who writes the trail are gone when another process opens it to write."""
    for mark in on.place.disk.glob("*-owners/*"):
        mark.unlink()
    other = await asyncio.to_thread(on.place.belljar, "run", "-c", "print(1)", check=False)
    return f"another process wrote beside it, status {other.returncode}"


async def lose_datasets(on: Injector, chance: Random) -> str:
    await asyncio.to_thread(shutil.rmtree, on.place.home / "server" / "datasets", True)
    return ""


async def lose_authority(on: Injector, chance: Random) -> str:
    """The gateway's certificate authority, and the gateway: the next has to make a new one."""
    for file in (on.place.home / "network").glob("*"):
        file.unlink()
    return _kill(machine.gateways(on.place.pid))


FAULTS: Mapping[str, Harm] = {
    "kill-server": kill_server,
    "restart-server": restart_server,
    "freeze-server": freeze_server,
    "kill-gateway": kill_gateway,
    "freeze-gateway": freeze_gateway,
    "hang-gateway": hang_gateway,
    "kill-zygote": kill_zygote,
    "full-disk": full_disk,
    "stop-on-full-disk": stop_on_full_disk,
    "lose-owners": lose_owners,
    "lose-datasets": lose_datasets,
    "lose-authority": lose_authority,
}
ENDING = {"kill-server", "restart-server", "stop-on-full-disk"}
"""Those that end the server."""
DISK = {"full-disk", "stop-on-full-disk"}
LONG = {"hang-gateway"}


async def _freeze(pids: Sequence[int], seconds: float) -> str:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass  # it was given up on meanwhile
    return f"for {seconds:.1f} s" if pids else "there was none"


def _kill(pids: Sequence[int]) -> str:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return f"{len(pids)} killed" if pids else "there was none"
