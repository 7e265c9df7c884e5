"""The faults: what each breaks, and how that is lifted again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from . import machine
from .jobs import access, kept, reached, say, secret_code
from .talk import Disturbed, Talk

if TYPE_CHECKING:
    from .faults import Injector

HANG_S = 75.0
SPUN_MS, SPIN_S = 2500.0, 12.0
"""How much CPU time a run is seen to use before the server is killed, and how long it may take."""
RETURN_S = 20.0
"""How long a kept sandbox may do without its network when the gateway is back."""
REACH = """\
import time, urllib.request
for _ in range(8):
    urllib.request.urlopen("{url}", timeout=30).read()
    time.sleep(0.3)
print("{token}")
"""

Harm = Callable[["Injector", Random], Awaitable[str]]


async def reach(on: Injector) -> None:
    """A run that keeps telling of its way out."""
    talk, token = on.beside, on.beside.token()
    url = talk.place.upstream.url(f"/hello/{token}")
    body = {"code": REACH.format(url=url, token=token), "network": list(talk.place.upstream.rule())}
    try:
        await talk.ask(
            "reach", "POST", "/v1/runs", body, token=token, judge=say(f"{token}\n"), one_run=True
        )
    except Disturbed:
        pass  # recorded


async def wait(on: Injector) -> None:
    """A run that does nothing for a while, answered in six fields."""
    token = on.beside.token()
    body = {"code": f"import time; time.sleep(3); print('{token}')"}

    def judge(answer: Any) -> str:
        return "" if answer["output"] == f"{token}\n" else "not what was printed"

    try:
        await on.beside.ask(
            "wait", "POST", "/execute", body, token=token, judge=judge, one_run=True
        )
    except Disturbed:
        pass  # recorded


async def kill_server(on: Injector, chance: Random) -> str:
    """While a run spins: what it has used by then is charged, but for a second at most."""
    on.talk.under_way = None
    spin = asyncio.create_task(_spin(on.talk))
    deadline = on.now() + SPIN_S
    while on.now() < deadline and (on.talk.under_way is None or on.talk.under_way.cpu_ms < SPUN_MS):
        await asyncio.sleep(0.1)
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


async def _spin(talk: Talk) -> None:
    token = talk.token()
    body = {"code": "while True: pass", "timeout_s": 60.0}

    def judge(_: Any) -> str:
        return "a server that was killed has answered"

    try:
        await talk.stream("spin", "/v1/runs", body, token=token, judge=judge, one_run=True)
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
    """A kept sandbox that has a secret must get its network back."""
    killed = ""
    try:
        async with kept(on.beside, **access(on.beside)) as box:
            if not await _reaches(on.beside, box):
                return "not done: there is no network"
            killed = _kill(machine.gateways(on.place.pid))
            deadline = on.now() + RETURN_S
            while not await _reaches(on.beside, box):
                if on.now() > deadline:
                    on.record.seen.append(
                        f"kill-gateway: a kept sandbox with a secret has no network {RETURN_S:.0f}"
                        " s later"
                    )
                    break
                await asyncio.sleep(0.5)
    except Disturbed:
        pass  # recorded
    return killed


async def _reaches(talk: Talk, box: str) -> bool:
    token = talk.token()
    try:
        await talk.ask(
            "kept egress",
            "POST",
            f"/v1/sandboxes/{box}/runs",
            {"code": secret_code(talk, token)},
            token=token,
            judge=reached(token),
        )
    except Disturbed:
        return False
    return True


async def kill_zygotes(on: Injector, chance: Random) -> str:
    return _kill(machine.zygotes(on.place.pid))


async def kill_lender(on: Injector, chance: Random) -> str:
    return _kill(machine.lenders(on.place.pid))


async def full_disk(on: Injector, chance: Random) -> str:
    """Whoever asks must be told: runs are refused, and the server says that it is not ready."""
    if not on.place.fill():
        return "could not be filled"
    try:
        if not await on.noticed():
            return "not noticed"
        await asyncio.sleep(chance.uniform(2.0, 5.0))
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


async def kill_docker(on: Injector, chance: Random) -> str:
    """The soak's own daemon."""
    docker = on.place.docker
    if docker is None:
        return "there was none"
    await asyncio.to_thread(docker.kill)
    await asyncio.sleep(chance.uniform(0.5, 3.0))
    started = await asyncio.to_thread(docker.start)
    return "" if started else "it did not start again"


FAULTS: Mapping[str, Harm] = {
    "kill-server": kill_server,
    "restart-server": restart_server,
    "freeze-server": freeze_server,
    "kill-gateway": kill_gateway,
    "freeze-gateway": freeze_gateway,
    "hang-gateway": hang_gateway,
    "kill-zygotes": kill_zygotes,
    "kill-lender": kill_lender,
    "full-disk": full_disk,
    "stop-on-full-disk": stop_on_full_disk,
    "lose-owners": lose_owners,
    "lose-datasets": lose_datasets,
    "lose-authority": lose_authority,
    "kill-docker": kill_docker,
}
ENDING = {"kill-server", "restart-server", "stop-on-full-disk"}
"""Those that end the server."""
DISK = {"full-disk", "stop-on-full-disk"}
DOCKER = {"kill-docker"}
LONG, LONG_S = {"hang-gateway"}, 1200.0
"""Those that take minutes, and from which length of a soak on they are among all."""


def usual(duration_s: float) -> tuple[str, ...]:
    """Those that a soak of this length has if nobody names others."""
    return tuple(kind for kind in FAULTS if duration_s >= LONG_S or kind not in LONG)


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
    killed = 0
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            killed += 1
        except (ProcessLookupError, PermissionError):
            pass  # ended by itself, or of an id that only root can kill
    return f"{killed} killed"
