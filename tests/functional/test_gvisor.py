"""What is particular to the gvisor engine (I5); what it shares with others is in conformance."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import belljar
from belljar.engines.base import Ground
from belljar.engines.gvisor import available
from belljar.engines.gvisor.engine import GvisorEngine
from belljar.errors import EngineError, EngineUnavailable
from belljar.model import MIB, Limits
from belljar.receiver import Outcome
from belljar.sandbox import Order, Sandbox

GROUND = Ground(name="bare", mount="/opt/belljar/none", preload=("random", "uuid"))


@pytest.fixture(scope="module", autouse=True)
def needs_gvisor() -> None:
    missing = available.why_not(belljar.Settings())
    if missing and os.environ.get("BELLJAR_REQUIRE_ENGINES"):
        pytest.fail(missing.why)
    if missing:
        pytest.skip(missing.why)


@pytest.fixture(scope="module")
def jar() -> Iterator[belljar.Belljar]:
    with belljar.Belljar(belljar.Settings(engine="gvisor", pool_size=1)) as jar:
        yield jar


async def run(engine: GvisorEngine, code: str, *, waiting: bool, limits: Limits) -> Outcome:
    sandbox = Sandbox(await engine.create(GROUND, limits, waiting=waiting))
    try:
        if waiting:
            await sandbox.ready()
        return await sandbox.run(
            Order(
                path="/workspace/main.py",
                argv=None,
                compile=None,
                env={"HOME": "/workspace"},
                stdin=b"",
                workspace={"main.py": code.encode()},
                inputs={"given.txt": b"given"},
                limits=limits,
            )
        )
    finally:
        await sandbox.destroy()


def each(tmp_path: Path, *codes: str, waiting: bool = True, **limits: int) -> list[Outcome]:
    """One after the other, each in a sandbox of its own of the same engine."""
    wanted = replace(Limits(timeout_s=60), **limits)  # type: ignore[arg-type]

    async def drive() -> list[Outcome]:
        engine = GvisorEngine(belljar.Settings(home=tmp_path))
        try:
            return [await run(engine, code, waiting=waiting, limits=wanted) for code in codes]
        finally:
            await engine.close()

    return asyncio.run(drive())


def test_the_result_says_what_stood_between(jar: belljar.Belljar) -> None:
    result = jar.run("import os; print(os.uname().release)")
    assert result.engine == "gvisor" and result.isolation["kernel"].startswith("gVisor ")
    assert result.stdout.strip() != os.uname().release


def test_the_agent_cannot_be_killed_or_looked_at(jar: belljar.Belljar) -> None:
    """I1: gVisor would let the code kill pid 1 if it were the same user."""
    code = """
import os
for what in ("os.kill(1, 9)", "os.listdir('/proc/1/fd')", "open('/proc/1/mem')",
             "os.listdir('/opt/belljar/lib')", "os.seteuid(0)", "os.setuid(0)"):
    try:
        print(what, eval(what))
    except OSError as error:
        print("refused")
print(os.getresuid(), os.getresgid())
"""
    result = jar.run(code)
    assert result.stdout.splitlines() == ["refused"] * 6 + ["(1000, 1000, 1000) (1000, 1000, 1000)"]


@pytest.mark.parametrize("waiting", [True, False])
def test_copies_of_a_snapshot_draw_different_numbers(tmp_path: Path, waiting: bool) -> None:
    code = "import os, random, uuid; print(random.random(), uuid.uuid4(), os.urandom(8).hex())"
    outcomes = each(tmp_path, code, code, code, waiting=waiting)
    assert len({word for outcome in outcomes for word in outcome.stdout.split()}) == 9


def test_copies_share_no_files(tmp_path: Path) -> None:
    """R3: what one sandbox leaves, the next one from the same snapshot does not see."""
    code = """
import os
print([os.listdir(p) for p in ('/tmp', '/dev/shm', '/data/output', '/data/input')])
for p in ('/tmp', '/dev/shm', '/data/output'): open(p + '/left', 'w').close()
"""
    for outcome in each(tmp_path, code, code):
        assert outcome.stdout == b"[[], [], [], ['given.txt']]\n", outcome


def test_a_copy_gets_the_disk_it_asks_for(tmp_path: Path) -> None:
    """L4: also when it is not the snapshot's, and one quota for all places together."""
    code = """
for place in ('/workspace', '/tmp', '/data/output'):
    try:
        with open(place + '/f', 'wb', buffering=0) as file:
            for _ in range(3): file.write(bytes(1 << 20))
        print('whole')
    except OSError as error: print(error.errno)
"""
    (first, second) = each(tmp_path, code, code, disk_bytes=5 * MIB)
    assert first.stdout == second.stdout == b"whole\n28\n28\n"


def test_memory_is_stopped_inside_and_the_output_kept(jar: belljar.Belljar) -> None:
    """L2: the verdict is the run's, and the sandbox lives long enough to tell the rest."""
    code = "print('before', flush=True)\nx = []\nwhile True: x.append(bytearray(4 << 20))"
    result = jar.run(code, memory_bytes=128 * MIB)
    assert (result.status, result.stdout) == ("out_of_memory", "before\n")


def test_files_without_content_are_paid_in_memory(jar: belljar.Belljar) -> None:
    """L4: gVisor's tmpfs has no limit of files; its kernel's memory for them is the run's."""
    code = "n = 0\nwhile True:\n    open('/tmp/%d' % n, 'w').close()\n    n += 1"
    result = jar.run(code, memory_bytes=64 * MIB, timeout_s=100)
    assert result.status == "out_of_memory", result


def test_inputs_can_only_be_read(tmp_path: Path) -> None:
    """S2."""
    code = """
print(open('/data/input/given.txt').read())
for mode in ('a', 'w'):
    try: open('/data/input/given.txt', mode)
    except OSError: print('refused')
"""
    (outcome,) = each(tmp_path, code)
    assert outcome.stdout == b"given\nrefused\nrefused\n"


def test_nothing_is_left(tmp_path: Path) -> None:
    """R3: no folder of the engine's, no process that was started from it."""
    each(tmp_path, "print(1)", "import time; time.sleep(0.1)")
    assert list(tmp_path.iterdir()) == [] or not any((tmp_path / "gvisor").glob("*"))
    deadline = time.monotonic() + 5
    while (users := _users(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert users == []


def test_what_the_operator_requires_must_be_there(tmp_path: Path) -> None:
    async def drive() -> None:
        engine = GvisorEngine(belljar.Settings(home=tmp_path, required=("nonsense",)))
        try:
            await engine.create(GROUND, Limits(), waiting=False)
        finally:
            await engine.close()

    with pytest.raises(EngineUnavailable, match="nonsense"):
        asyncio.run(drive())


def _users(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return [pid for pid in found if pid != str(os.getpid())]


STAND_IN = """#!/bin/sh
# Fails as gVisor's kernel does when it ends while it starts, so often as `left` has lines.
case " $* " in *" --detach "*)
    if [ -s "$0.left" ]; then
        sed -i 1d "$0.left"
        echo "running container: creating container: cannot create sandbox: {why}" >&2
        exit 128
    fi ;;
esac
exec {real} "$@"
"""
ENDED = "cannot read client sync file: waiting for sandbox to start: EOF"


@pytest.mark.parametrize(
    ("why", "failures", "works"), [(ENDED, 2, True), (ENDED, 3, False), ("no room", 1, False)]
)
def test_a_start_that_ended_early_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, why: str, failures: int, works: bool
) -> None:
    """Twice, if nothing inside can have begun; any other failure is told at once."""
    stand_in = tmp_path / "runsc"
    stand_in.write_text(STAND_IN.format(why=why, real=shutil.which("runsc")))
    stand_in.chmod(0o755)
    (tmp_path / "runsc.left").write_text("again\n" * failures)
    settings = belljar.Settings(home=tmp_path / "home", gvisor_runsc=str(stand_in))

    async def drive() -> Outcome:
        engine = GvisorEngine(settings)
        try:
            return await run(engine, "print('well')", waiting=False, limits=Limits(timeout_s=60))
        finally:
            await engine.close()

    if works:
        assert asyncio.run(drive()).stdout == b"well\n"
    else:
        with pytest.raises(EngineError, match=why):
            asyncio.run(drive())
    again = [record for record in caplog.records if "started again" in record.message]
    assert len(again) == (min(failures, 2) if why == ENDED else 0)
    assert not list((tmp_path / "home").rglob("config.json"))


def test_l7_one_run_has_one_figure_from_start_to_end(tmp_path: Path) -> None:
    """Inside, time is counted by gVisor's own clock, also while the host lets others run: what is
    told meanwhile is the host's figure, as the result is, with or without a warm sandbox."""
    busy = "import time\nwhile time.process_time() < 0.6: pass"
    with belljar.Belljar(belljar.Settings(engine="gvisor", pool_size=0, home=tmp_path)) as jar:
        for _ in range(3):
            seen: list[belljar.Usage] = []
            result = jar.run(busy, on_usage=seen.append)
            told = [usage.cpu_ms for usage in seen]
            assert result.status == "ok"
            assert told == sorted(told) and told[-1] <= result.usage.cpu_ms
