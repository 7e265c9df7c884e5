"""F2: who runs next, without a server: the queue and the quotas alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from belljar.errors import InvalidRequest, LimitExceeded
from belljar.model import Limits
from belljar.server import describing
from belljar.server.admission import Admission
from belljar.server.errors import ApiError
from belljar.server.tenants import DAY_S, Quotas, Tenant
from belljar.settings import Settings


def played(play: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await play()

    asyncio.run(main())


class Crowd:
    """Runs that stay until they are told to go, and the order in which they began."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.began: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, tenant: Tenant, **size: int) -> None:
        self.leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._stay(name, tenant, size))
        await asyncio.sleep(0)

    async def _stay(self, name: str, tenant: Tenant, size: dict[str, int]) -> None:
        async with self.admission.place(tenant, **size):
            self.began.append(name)
            await self.leave[name].wait()

    async def go(self, name: str) -> None:
        self.leave[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def test_s4_a_description_is_made_within_its_tenants_bounds() -> None:
    bounds = {"timeout_s": 2.5, "memory_bytes": 2e8, "cpus": 0.5}
    tenant = Tenant("x", Quotas(engines=("gvisor",), maxima=bounds))
    found = describing.options(tenant, Settings())
    assert (found["engine"], found["timeout_s"], found["cpus"]) == ("gvisor", 2.5, 0.5)
    assert type(found["memory_bytes"]) is int and found["memory_bytes"] == 200_000_000
    free = describing.options(Tenant("y", Quotas()), Settings(maxima=Limits(timeout_s=9.0)))
    assert free["timeout_s"] == 9.0 and "engine" not in free


def test_f2_tenants_take_turns() -> None:
    async def play() -> None:
        admission = Admission(slots=1, wait_s=5)
        crowd = Crowd(admission)
        many, few = Tenant("many", Quotas()), Tenant("few", Quotas())
        for name in ("m1", "m2", "m3", "m4"):
            await crowd.come(name, many)
        await crowd.come("f1", few)
        await crowd.come("f2", few)
        assert (admission.running, admission.waiting) == (1, 5)
        for name in ("m1", "m2", "f1", "m3", "f2", "m4"):
            await crowd.go(name)
        assert crowd.began == ["m1", "m2", "f1", "m3", "f2", "m4"]
        assert (admission.running, admission.waiting) == (0, 0)

    played(play)


def test_f2_one_tenant_leaves_room_for_others() -> None:
    async def play() -> None:
        admission = Admission(slots=4, wait_s=5)
        admission.share(True)
        crowd = Crowd(admission)
        many, few = Tenant("many", Quotas()), Tenant("few", Quotas())
        for name in ("m1", "m2", "m3", "m4"):
            await crowd.come(name, many)
        await crowd.come("f1", few)
        assert crowd.began == ["m1", "m2", "m3", "f1"]
        for name in ("f1", "m1", "m2", "m3", "m4"):
            await crowd.go(name)
        assert (admission.running, admission.waiting) == (0, 0)

    played(play)


def test_f2_a_full_queue_refuses_politely() -> None:
    async def play() -> None:
        crowd = Crowd(Admission(slots=1, wait_s=5))
        tenant, other = Tenant("a", Quotas(queue=1)), Tenant("b", Quotas(queue=1))
        await crowd.come("1", tenant)
        await crowd.come("2", tenant)
        await crowd.come("3", tenant)
        with pytest.raises(ApiError) as refusal:
            await crowd.tasks["3"]
        assert (refusal.value.status_code, refusal.value.code) == (429, "queue_full")
        assert int((refusal.value.headers or {})["Retry-After"]) >= 1
        await crowd.come("4", other)  # its own queue has room
        for name in ("1", "2", "4"):
            await crowd.go(name)

    played(play)


def test_f2_one_tenants_bounds_do_not_hold_up_another() -> None:
    async def play() -> None:
        crowd = Crowd(Admission(slots=3, wait_s=5))
        bound = Tenant("bound", Quotas(runs_at_once=1, memory_bytes=100))
        free = Tenant("free", Quotas())
        await crowd.come("b1", bound, memory_bytes=60)
        await crowd.come("b2", bound, memory_bytes=60)
        await crowd.come("f1", free, memory_bytes=1000)
        assert crowd.began == ["b1", "f1"]
        await crowd.come("b3", bound, memory_bytes=101)
        with pytest.raises(ApiError, match="memory"):
            await crowd.tasks["b3"]
        for name in ("b1", "b2", "f1"):
            await crowd.go(name)

    played(play)


def test_who_goes_while_waiting_leaves_no_gap() -> None:
    async def play() -> None:
        admission = Admission(slots=1, wait_s=5)
        crowd = Crowd(admission)
        tenant = Tenant("a", Quotas())
        for name in ("1", "2", "3"):
            await crowd.come(name, tenant)
        crowd.tasks["2"].cancel()
        await asyncio.wait([crowd.tasks["2"]])
        assert admission.counts("a") == (1, 1)
        await crowd.go("1")
        await crowd.go("3")
        # Called and cancelled in the same moment: its place must come back.
        await crowd.come("4", tenant)
        await crowd.come("5", tenant)
        crowd.leave["4"].set()
        await asyncio.sleep(0)
        crowd.tasks["5"].cancel()
        await asyncio.wait([crowd.tasks["4"], crowd.tasks["5"]])
        assert (admission.running, admission.waiting) == (0, 0)

    played(play)


def test_several_who_go_in_the_same_moment_leave_no_gap() -> None:
    async def play() -> None:
        admission = Admission(slots=2, wait_s=5)
        crowd = Crowd(admission)
        tenant, other = Tenant("a", Quotas(memory_bytes=100)), Tenant("b", Quotas())
        await crowd.come("1", tenant, memory_bytes=60, disk_bytes=1)
        await crowd.come("large", tenant, memory_bytes=60, disk_bytes=1)
        await crowd.come("small", tenant, memory_bytes=40, disk_bytes=1)
        assert admission.counts("a") == (1, 2)
        for name in ("large", "small"):
            crowd.tasks[name].cancel()
        await asyncio.wait([crowd.tasks["large"], crowd.tasks["small"]])
        assert all(crowd.tasks[name].cancelled() for name in ("large", "small"))
        assert (admission.running, admission.waiting) == (1, 0)
        # The same while somebody else's run ends: that one must not fail of it.
        await crowd.come("b1", other)
        await crowd.come("b2", other)
        await crowd.come("b3", other)
        crowd.tasks["b2"].cancel()
        crowd.leave["b1"].set()
        await asyncio.wait([crowd.tasks["b1"], crowd.tasks["b2"]])
        await asyncio.sleep(0)
        assert crowd.tasks["b1"].exception() is None
        assert crowd.began == ["1", "b1", "b3"]
        await crowd.go("1")
        await crowd.go("b3")
        assert (admission.running, admission.waiting) == (0, 0)
        assert not admission._lines and not admission._turn
        all_of_it = admission.hold(tenant, memory_bytes=100, disk_bytes=1)
        all_of_it()

    played(play)


def test_waiting_ends_with_its_time_and_with_the_server() -> None:
    async def play() -> None:
        admission = Admission(slots=1, wait_s=0.05)
        crowd = Crowd(admission)
        tenant = Tenant("a", Quotas())
        await crowd.come("1", tenant)
        await crowd.come("2", tenant)
        with pytest.raises(ApiError) as late:
            await crowd.tasks["2"]
        assert late.value.code == "queue_timeout"
        await crowd.come("3", tenant)
        admission.close()
        with pytest.raises(ApiError) as closing:
            await crowd.tasks["3"]
        assert closing.value.code == "shutting_down"
        await crowd.go("1")
        assert admission.running == 0
        with pytest.raises(ApiError):
            await admission.place(tenant).__aenter__()

    played(play)


def test_quotas_of_a_minute_and_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0 * DAY_S + 100
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    tenant = Tenant("a", Quotas(runs_per_minute=2, cpu_s_per_day=1))
    tenant.start()
    tenant.start()
    with pytest.raises(ApiError) as minute:
        tenant.start()
    assert (minute.value.headers or {})["Retry-After"] == "60"
    now += 61
    tenant.start()
    tenant.used(1500.0)
    with pytest.raises(ApiError) as day:
        tenant.start()
    assert (day.value.headers or {})["Retry-After"] == str(DAY_S - 161)
    now += DAY_S
    tenant.start()
    assert tenant.cpu_s() == 0


def test_f2_a_clock_that_is_set_back_costs_nobody_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    tenant = Tenant("a", Quotas(runs_per_minute=2))
    tenant.start(2)
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    with pytest.raises(ApiError) as minute:
        tenant.start()
    assert int((minute.value.headers or {})["Retry-After"]) <= 60


@pytest.mark.parametrize("most", [1, 150_000])
def test_f2_runs_per_minute_hold_however_many_they_are(most: int) -> None:
    tenant = Tenant("a", Quotas(runs_per_minute=most))
    tenant.start(most)
    with pytest.raises(ApiError):
        tenant.start()
    assert tenant.runs_last_minute() == most


def test_f2_what_is_unsaved_when_the_day_changes_belongs_to_its_own_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 11.0 * DAY_S - 0.2
    monkeypatch.setattr(time, "time", lambda: now)
    tenant = Tenant("a", Quotas(cpu_s_per_day=5))
    tenant.used(4900)
    now += 0.3
    tenant.used(100)
    assert tenant.cpu_s() == 0.1
    assert tenant.unsaved_s() == {10: 4.9, 11: 0.1}
    tenant.saved(10, 4.9)
    assert tenant.unsaved_s() == {11: 0.1} and tenant.cpu_s() == 0.1
    tenant.saved(11, 0.1)
    assert not tenant.unsaved_s() and tenant.cpu_s() == 0.1
    tenant.saved(11, -0.1)  # it was not, after all
    assert tenant.unsaved_s() == {11: 0.1} and tenant.cpu_s() == 0.1


def test_a_tenants_maxima_and_engines() -> None:
    defaults = Limits()
    tenant = Tenant("a", Quotas(maxima={"timeout_s": 5}, engines=("gvisor", "jail")))
    chosen = tenant.options({"language": "bash"}, defaults)
    assert chosen == {"language": "bash", "timeout_s": 5, "engine": "gvisor"}
    assert tenant.options({"timeout_s": 1, "engine": "jail"}, defaults)["timeout_s"] == 1
    with pytest.raises(LimitExceeded, match="this key's maximum of 5"):
        tenant.options({"timeout_s": 6}, defaults)
    for wrong in ({"engine": "docker"}, {"need": ["fastest"]}):
        with pytest.raises(InvalidRequest, match="this key"):
            tenant.options(wrong, defaults)
    with pytest.raises(ValueError, match="is no limit"):
        Quotas(maxima={"speed": 1})


def test_f2_what_runs_and_programs_may_print_is_bounded_for_each_and_for_all() -> None:
    async def play() -> None:
        admission = Admission(slots=9, wait_s=5, held_bytes=100)
        admission.share(True)  # 75 for one tenant
        crowd = Crowd(admission)
        ann, eve = Tenant("ann", Quotas()), Tenant("eve", Quotas())
        program = admission.hold_output(ann, 50)
        with pytest.raises(ApiError, match="this key") as refused:
            admission.hold_output(ann, 26)
        assert (refused.value.status_code, refused.value.retryable) == (429, True)
        with pytest.raises(ApiError, match="this server") as overloaded:
            admission.hold_output(eve, 51)
        assert overloaded.value.status_code == 503
        with pytest.raises(ApiError, match="this one run") as never:
            await admission.place(eve, held_bytes=76).__aenter__()
        assert "output_bytes" in never.value.hint
        await crowd.come("a", ann, held_bytes=26)
        await crowd.come("e", eve, held_bytes=40)
        assert crowd.began == ["e"], "ann has no room, eve has"
        program.shrink(10)  # it has ended, and printed little
        await asyncio.sleep(0)
        assert crowd.began == ["e", "a"]
        assert admission.held_bytes == 76
        for name in ("a", "e"):
            await crowd.go(name)
        async with admission.place(ann, held_bytes=60) as place:
            result = place.keep(20)
        assert admission.held_bytes == 30, "a result counts until its caller has it"
        for held in (result, program, program):
            held()
        assert admission.held_bytes == 0 and not admission._lines

    played(play)
