"""What goes wrong on purpose, when, and how long the server takes to be itself again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import httpx

from . import harm
from .harm import ENDING, FAULTS
from .machine import Traces
from .place import METERED, TENANTS, Place
from .record import Fault, Record
from .talk import Talk

RECOVER_S = 60.0
LONGEST_GAP_S, SHORTEST_GAP_S = 40.0, 6.0
REST_S = 3.0
"""Between a recovery and the next fault, at least."""
NOTICED_S = 20.0
"""How long the server may take to notice a full disk: the log of a database has some slack."""


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
            deck = list(kinds)
            chance.shuffle(deck)
            if not found:
                deck.sort(key=lambda kind: kind not in ENDING)  # while there is time for them
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
        """For runs that a fault is to meet; the metered tenant's."""
        self.beside = Talk(TENANTS[-1], place, record, http, now)
        """For what else it is to meet."""
        self._http = http
        self._tell = tell

    async def follow(
        self, planned: Sequence[tuple[float, str]], seed: int, *, until: float
    ) -> None:
        """Those that earlier ones held up come late; none begins after `until`."""
        for number, (at, kind) in enumerate(planned):
            await asyncio.sleep(max(REST_S, at - self.now()))
            if self.now() > until:
                return
            async with self.under_way:
                await self._inject(kind, Random(f"{seed} fault {number}"))

    async def _inject(self, kind: str, chance: Random) -> None:
        fault = Fault(kind=kind, began=self.now())
        self.record.faults.append(fault)
        self._tell(f"fault: {kind}")
        self.beside.since = 0.0
        meanwhile = asyncio.gather(harm.reach(self), harm.reach(self), harm.wait(self))
        await asyncio.sleep(0.5)
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
        await meanwhile
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
        if self.place.docker:
            asked.append(("POST", "/v1/runs", {"code": "print(1)", "engine": "docker"}))
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
