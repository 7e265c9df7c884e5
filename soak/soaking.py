"""One soak from beginning to end: load, faults, and what is found afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from .checks import Evidence
from .faults import Injector, plan
from .harm import DISK, DOCKER
from .jobs import jobs
from .load import Load
from .machine import Traces
from .place import METERED, Place, place
from .record import Record
from .talk import clients
from .watching import watch

DAY_S = 86_400
READY_S = 90.0
LAST_S = 5.0
"""So long before the end no fault begins any more."""
JUDGED = (
    *("kind", "id", "seq", "time", "action", "request_id", "tenant", "status", "exit_code"),
    *("stdout_sha256", "usage", "count"),
)
"""What of a line the checks look at; an hour's lines would not be small otherwise."""


@dataclass(frozen=True, kw_only=True)
class Options:
    seconds: float
    seed: int
    workers: int
    rate: float
    faults: Sequence[str]
    docker: bool


class NotReady(Exception):
    """There is nothing to soak: the server does not work here at all."""


async def soak(
    options: Options, interrupted: asyncio.Event, tell: Callable[[str], None],
    progress: Callable[[Record, float], None],
) -> Evidence:  # fmt: skip
    start = time.monotonic()
    record = Record(seed=options.seed, epoch=time.time())

    def now() -> float:
        return time.monotonic() - start

    with place(record, now, docker=options.docker) as where:
        traces = Traces(where)
        async with clients() as http:
            injector = Injector(where, record, traces, http, now=now, tell=tell)
            await injector.start()
            try:
                async with asyncio.timeout(READY_S):
                    await injector.recovered()
            except TimeoutError:
                log = where.log.read_text(errors="replace")[-2000:]
                raise NotReady(f"{injector.last}\n{log}") from None
            environments = await _environments(where, http)
            tell(f"ready: {where.url}, environments {', '.join(sorted(environments))}")
            start += now()  # the soak begins here
            record.epoch = time.time()
            for life in record.lives:
                life.began, life.ready = 0.0, 0.0
            load = Load(
                where, record, http, jobs(environments),
                workers=options.workers, rate=options.rate, now=now,
            )  # fmt: skip
            await _under_load(options, injector, load, interrupted, progress)
            tell("load and faults are over")
            record.interrupted = interrupted.is_set()
            record.duration_s = now()
            charged = await _charged(injector, http)
            await injector.stop()
        tell("the server has stopped; looking at what is left")
        if (status := where.life.exit_status) != 0:
            record.seen.append(f"the last server ended with status {status}")
        same_day = record.epoch // DAY_S == time.time() // DAY_S
        return await asyncio.to_thread(
            _evidence, where, record, traces, charged if same_day else None
        )


async def _under_load(
    options: Options, injector: Injector, load: Load, interrupted: asyncio.Event,
    progress: Callable[[Record, float], None],
) -> None:  # fmt: skip
    where, record, now = injector.place, injector.record, injector.now
    kinds = [kind for kind in options.faults if where.has_disk or kind not in DISK]
    kinds = [kind for kind in kinds if where.docker or kind not in DOCKER]
    planned = plan(options.seed, options.seconds, kinds)
    beside = [
        asyncio.create_task(watch(where, record, injector.traces, now)),
        asyncio.create_task(_supervise(injector)),
        asyncio.create_task(injector.follow(planned, options.seed, until=options.seconds - LAST_S)),
    ]
    load.start()
    try:
        while now() < options.seconds and not interrupted.is_set():
            progress(record, now())
            for task in beside:
                if task.done() and not task.cancelled() and (error := task.exception()):
                    raise error
            if error := load.broken():
                raise error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await interrupted.wait()
        async with injector.under_way:  # a fault that has begun is lifted
            beside.pop().cancel()
        await load.stop()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def _supervise(injector: Injector) -> None:
    """As a service manager would: a server that dies by itself is started again, and told of."""
    while True:
        async with injector.under_way:
            if not injector.place.alive():
                await injector.start()
        await asyncio.sleep(0.5)


async def _environments(where: Place, http: httpx.AsyncClient) -> frozenset[str]:
    answer = await http.get(
        f"{where.url}/v1/environments", headers={"Authorization": f"Bearer {where.operator}"}
    )
    ready = [one["name"] for one in answer.json()["environments"] if one["ready"]]
    return frozenset([*ready, "docker"] if where.docker else ready)


async def _charged(injector: Injector, http: httpx.AsyncClient) -> dict[str, float] | None:
    """CPU seconds of today by tenant, if the server is there to say so."""
    where, found = injector.place, {}
    try:
        async with asyncio.timeout(READY_S):
            await injector.recovered()
            for tenant in where.tenants.values():
                headers = {"Authorization": f"Bearer {tenant.key}"}
                answer = await http.get(f"{where.url}/v1/usage", headers=headers)
                found[tenant.name] = float(answer.json()["cpu_s_today"])
    except (TimeoutError, httpx.HTTPError, KeyError, ValueError) as error:
        injector.record.seen.append(f"at the end the server does not work: {error!r}")
        return None
    return found


# -- afterwards ------------------------------------------------------------------------------------


def _evidence(
    where: Place, record: Record, traces: Traces, charged: dict[str, float] | None
) -> Evidence:
    left = traces.left({life.pid for life in record.lives})
    if where.docker:
        left += [f"container {name}" for name in where.docker.containers()]
    for tenant in where.tenants.values():
        used = [op for op in record.ops if (op.tenant, op.kind) == (tenant.name, "egress")]
        came = f"Bearer {tenant.secret}" in where.upstream.shown
        if any(op.outcome == "right" for op in used) and not came:
            record.seen.append(
                f"{tenant.name}'s code used its secret, and the host never got the value"
            )
    exported = where.folder / "trail.jsonl"
    where.belljar("trail", "export", "--output", str(exported), check=False)
    verdict = where.belljar("trail", "verify", "--json", check=False)
    try:
        verified = json.loads(verdict.stdout)
    except ValueError:
        verified = {"sound": False, "problem": (verdict.stdout + verdict.stderr)[-500:]}
    return Evidence(
        record=record,
        lines=_lines(exported),
        verified=verified,
        charged_s=charged,
        metered=METERED,
        left=left,
        leaks=leaks(where),
        complaints=complaints(where.log.read_text(errors="replace")),
    )


def _lines(exported: Path) -> list[dict[str, object]]:
    if not exported.exists():
        return []
    with exported.open() as rows:
        lines = (json.loads(row)["line"] for row in rows)
        return [{name: line[name] for name in JUDGED if name in line} for line in lines]


def leaks(where: Place) -> list[str]:
    """Files of the server's in which a tenant's secret is found, in whichever form."""
    forms = [form for tenant in where.tenants.values() for form in tenant.forms()]
    found = []
    for path in _files(where.folder):
        content = path.read_bytes()
        if any(form in content for form in forms):
            found.append(str(path.relative_to(where.folder)))
    return found


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def complaints(log: str) -> list[str]:
    """Each exception that the server did not foresee, once, with how often it was logged."""
    counted: dict[str, int] = {}
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("{"):
            try:
                said = json.loads(line)
            except ValueError:
                continue
            text = str(said.get("exception") or "")
            if text:
                key = f"{said.get('event')} {said.get('route', '')}: {_last(text)}"
                counted[key] = counted.get(key, 0) + 1
        elif line.startswith("Traceback "):
            rest = lines[number + 1 :]
            end = next((one for one in rest if re.match(r"[A-Za-z_.]+(:|$)", one)), "?")
            counted[f"on standard error: {end}"] = counted.get(f"on standard error: {end}", 0) + 1
    return [f"{what} ({count} times)" for what, count in counted.items()]


def _last(trace: str) -> str:
    """Of a traceback: where it was raised, and what."""
    lines = [line.strip() for line in trace.strip().splitlines()]
    places = [line for line in lines if line.startswith("File ")]
    return f"{lines[-1][:200]} ({places[-1] if places else 'nowhere'})"
