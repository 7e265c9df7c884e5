"""Sandboxes that are kept (S1, S3, S6, L6, L7): state, verdicts, streaming, programs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import belljar
from belljar import Settings, aio
from belljar.errors import (
    BelljarError,
    Busy,
    Closed,
    InvalidRequest,
    LimitExceeded,
    SandboxEnded,
    SandboxLost,
)
from belljar.kept import events


@pytest.fixture
def box(jar: belljar.Belljar) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(jar, environment="base", max_runs=100) as box:
        yield box


def test_s1_variables_imports_folder_and_files_stay(box: belljar.Sandbox) -> None:
    box.run("import os, math\nx = 41\nos.makedirs('deep')\nos.chdir('deep')")
    box.run("open('note', 'w').write('kept')\nos.environ['MINE'] = 'yes'")
    result = box.run("x + 1, math.floor(2.5), os.getcwd(), open('note').read(), os.environ['MINE']")
    assert result.value == "(42, 2, '/workspace/deep', 'kept', 'yes')"
    assert (result.status, result.state_kept, result.run_id) == ("ok", True, 3)


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "error"),
    [
        ("1 / 0", "error", 1, "ZeroDivisionError"),
        ("import sys; sys.exit(3)", "error", 3, None),
        ("import sys; sys.exit(0)", "ok", 0, None),
        ("def broken(:", "error", 1, "SyntaxError"),
    ],
)
def test_s1_a_failing_run_ends_that_run_only(
    box: belljar.Sandbox, code: str, status: str, exit_code: int, error: str | None
) -> None:
    box.run("x = 1")
    result = box.run(code)
    assert (result.status, result.exit_code, result.state_kept) == (status, exit_code, True)
    assert (result.error.name if result.error else None) == error
    assert box.run("x").value == "1"


@pytest.mark.parametrize("how", ["run", "stream"])
def test_s1_a_run_whose_sandbox_is_closed_raises_why_and_is_not_cancelled(how: str) -> None:
    """CancelledError would say that whoever waits was cancelled."""

    async def main() -> None:
        async with aio.Belljar() as jar:
            box = aio.Sandbox(jar, environment="base")
            await box.open()

            async def use() -> None:
                if how == "run":
                    await box.run("while True: pass")
                async for _ in box.stream("while True: pass"):
                    pass

            using = asyncio.create_task(use())
            while not box.running:
                await asyncio.sleep(0.01)
            await box.close("enough of it")
            with pytest.raises(SandboxEnded, match="during the run: enough of it") as ended:
                await using
            assert ended.value.ran and not using.cancelled()

    asyncio.run(main())


def test_s1_whoever_is_cancelled_during_a_run_is_cancelled() -> None:
    async def main() -> None:
        async with aio.Belljar() as jar, aio.Sandbox(jar, environment="base") as box:
            running = asyncio.create_task(box.run("while True: pass"))
            while not box.running:
                await asyncio.sleep(0.01)
            running.cancel()
            closing = asyncio.create_task(box.close())
            await asyncio.wait((running, closing))
            assert running.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("action", ["always", "error"])
def test_s6_checkpoints_beside_threads_are_not_warned_of(box: belljar.Sandbox, action: str) -> None:
    """Since Python 3.12 a fork beside threads warns, but it is not the code that forks here."""
    box.run(
        "import threading, time, warnings\n"
        f"warnings.simplefilter({action!r}); before = list(warnings.filters)\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    for _ in range(2):
        result = box.run("warnings.filters == before")
        assert (result.status, result.value, result.stderr) == ("ok", "True", "")
    box.rollback(2)
    assert box.run("warnings.filters == before").value == "True"


def test_l1_a_time_out_interrupts_and_keeps_the_state(box: belljar.Sandbox) -> None:
    box.run("x = 7")
    result = box.run("while True: pass", timeout_s=0.5)
    assert (result.status, result.state_kept) == ("timeout", True)
    assert box.run("x").value == "7"


def test_l1_code_that_resists_is_killed_and_says_that_state_is_lost(box: belljar.Sandbox) -> None:
    stubborn = (
        "import time\n"
        "while True:\n    try:\n        time.sleep(60)\n    except KeyboardInterrupt: pass"
    )
    result = box.run(stubborn, timeout_s=0.5)
    assert (result.status, result.state_kept) == ("timeout", False)
    with pytest.raises(SandboxLost, match="time-out"):
        box.run("1")


def test_l2_a_sandbox_lost_to_memory_says_so_on_the_next_call(jar: belljar.Belljar) -> None:
    with belljar.Sandbox(jar, environment="base", memory_bytes=128 << 20) as box:
        box.run("x = 1")
        result = box.run("b = bytearray(1 << 30)\nfor i in range(0, len(b), 4096): b[i] = 1")
        assert result.status == "out_of_memory"
        if not result.state_kept:
            with pytest.raises(SandboxLost, match="memory"):
                box.run("x")


def test_r1_code_that_ends_its_process_ends_the_state(box: belljar.Sandbox) -> None:
    result = box.run("import os; os._exit(5)")
    assert (result.status, result.exit_code, result.state_kept) == ("error", 5, False)
    with pytest.raises(SandboxLost):
        box.run("1")
    box.rollback(1)
    assert box.run("1 + 1").value == "2"


def test_s1_a_number_of_runs_an_idle_time_and_a_life_time(jar: belljar.Belljar) -> None:
    with belljar.Sandbox(jar, environment="base", max_runs=2) as box:
        box.run("1")
        box.run("2")
        with pytest.raises(SandboxEnded, match="2 runs"):
            box.run("3")
    with belljar.Sandbox(jar, environment="base", idle_s=0.3) as box:
        box.run("1")
        time.sleep(1.0)
        with pytest.raises(SandboxEnded, match=r"0\.3 s"):
            box.run("2")
    with belljar.Sandbox(jar, environment="base", lifetime_s=0.5) as box:
        time.sleep(1.2)
        with pytest.raises(SandboxEnded, match=r"lived for its 0\.5 s"):
            box.run("2")


def test_s1_runs_are_serial_and_a_second_caller_waits_or_is_told(jar: belljar.Belljar) -> None:
    slow = "import time; time.sleep(0.8); order = globals().get('order', []) + ['slow']"
    with belljar.Sandbox(jar, environment="base") as box:
        first = threading.Thread(target=box.run, args=(slow,))
        first.start()
        time.sleep(0.3)
        assert box.run("order").value == "['slow']"
        first.join()
    with belljar.Sandbox(jar, environment="base", when_busy="refuse") as box:
        box.run("1")
        first = threading.Thread(target=box.run, args=(slow,))
        first.start()
        time.sleep(0.3)
        with pytest.raises(Busy):
            box.run("1")
        first.join()


def test_l6_events_come_while_the_code_runs(box: belljar.Sandbox) -> None:
    code = (
        "import time, sys, belljar_guest\n"
        "print('one', flush=True); belljar_guest.progress(0.5, 'half')\n"
        "time.sleep(0.6)\nprint('two', file=sys.stderr)\n'last'"
    )
    seen = [(event, time.monotonic()) for event in box.stream(code)]
    kinds = [type(event).__name__ for event, _ in seen]
    assert kinds[-1] == "Ended"
    printed = [event.data for event, _ in seen if isinstance(event, events.Printed)]
    assert printed == [b"one\n", b"two\n"]
    progress = next(event for event, _ in seen if isinstance(event, events.Progress))
    assert (progress.fraction, progress.message) == (0.5, "half")
    first = next(when for event, when in seen if isinstance(event, events.Printed))
    assert seen[-1][1] - first > 0.4
    ended = seen[-1][0]
    assert isinstance(ended, events.Ended) and ended.result.value == "'last'"
    assert any(isinstance(event, events.Shown) for event, _ in seen)


def test_l1_a_run_can_be_interrupted_killed_and_extended_from_outside(
    box: belljar.Sandbox,
) -> None:
    box.run("x = 3")
    threading.Timer(0.4, box.interrupt).start()
    result = box.run("import time; time.sleep(30)")
    assert (result.error.name if result.error else "", result.state_kept) == (
        "KeyboardInterrupt",
        True,
    )
    threading.Timer(0.2, box.extend, args=(20,)).start()
    assert box.run("import time; time.sleep(1.2); x", timeout_s=0.8).value == "3"
    assert (
        box.run(
            "import belljar_guest, time; belljar_guest.extend(20); time.sleep(1.2); x",
            timeout_s=0.8,
        ).value
        == "3"
    )
    threading.Timer(0.4, box.kill).start()
    assert box.run("import time; time.sleep(30)").state_kept is False


def test_l5_a_flood_is_cut_in_the_middle_and_counted(box: belljar.Sandbox) -> None:
    result = box.run("print('start'); print('x' * 3_000_000); print('end')")
    assert result.stdout.startswith("start\n") and result.stdout.endswith("end\n")
    assert result.dropped.stdout > 1_000_000 and len(result.stdout) < 1_200_000


def test_s3_programs_run_beside_the_interpreter(box: belljar.Sandbox) -> None:
    box.run("open('here.txt', 'w').write('b\\na\\n')")
    assert box.exec(["sort", "here.txt"]).stdout == "a\nb\n"
    assert box.exec("sort here.txt | head -1; exit 4", shell=True).exit_code == 4
    assert box.exec(["cat"], stdin="given").stdout == "given"
    assert box.exec(["sleep", "30"], timeout_s=0.5).status == "timeout"
    assert box.exec(["no-such-program"]).exit_code == 127
    with pytest.raises(InvalidRequest, match="list of texts"):
        box.exec("ls -l")


def test_s3_a_background_process_is_fed_watched_found_again_and_killed(
    box: belljar.Sandbox,
) -> None:
    code = "while read line; do echo got $line; done; sleep 100 & wait"
    process = box.start(code, shell=True)
    process.write("one\n")
    output = process.output()
    assert next(output).data == b"got one\n"
    assert [one.process_id for one in box.processes()] == [process.process_id]
    assert box.process(process.process_id).pid == process.pid
    process.close_stdin()
    time.sleep(0.3)
    process.kill()
    assert process.wait(5).signal == 9
    left = box.run("import os; [p for p in os.listdir('/proc') if p.isdigit()]")
    assert left.value is not None and left.value.count("'") <= 2 * 2 + 2 * 8


def test_s3_an_interactive_program_gets_a_terminal(box: belljar.Sandbox) -> None:
    process = box.start(
        ["python3", "-c", "import sys; print(sys.stdin.isatty(), input())"], terminal=True
    )
    process.resize(24, 80)
    process.write("typed\n")
    assert "True typed" in process.wait(10).stdout.replace("\r", "")


def test_r5_wrong_use_is_refused(jar: belljar.Belljar, box: belljar.Sandbox) -> None:
    with pytest.raises(InvalidRequest):
        belljar.Sandbox(jar, max_runs=0)
    with pytest.raises(InvalidRequest):
        belljar.Sandbox(jar, when_busy="perhaps")
    with pytest.raises(InvalidRequest):
        belljar.Sandbox(jar, no_such_option=1).open()
    with pytest.raises(LimitExceeded):
        box.run("1", timeout_s=-1)
    with pytest.raises(InvalidRequest):
        box.run("x" * 200_000)
    with pytest.raises(InvalidRequest):
        box.rollback(99)
    with pytest.raises(belljar.Unsupported):
        belljar.Sandbox(jar, engine="wasm").open()


def test_s3_a_large_output_arrives_and_a_giant_one_costs_only_itself(box: belljar.Sandbox) -> None:
    show = (
        "class Picture:\n"
        "    def __init__(self, size): self.size = size\n"
        "    def _repr_png_(self): return b'\\x89PNG' + bytes(self.size)\n"
    )
    box.run(show)
    large = box.run("Picture(3_000_000)")
    assert len(large.outputs[0].data["image/png"]) == 3_000_004
    giant = box.run("Picture(11_000_000)")
    assert "image/png" not in (giant.outputs[0].data if giant.outputs else {})
    assert box.run("1 + 1").value == "2"


def test_l1_code_that_speaks_for_the_interpreter_cannot_hold_the_host_up(
    jar: belljar.Belljar,
) -> None:
    """R1: it says that it is done and never listens again, until the agent cannot talk to it."""
    liar = (
        "import socket, threading, time, json\n"
        "talk = socket.socket(fileno=3)\n"
        "def lie():\n"
        "    while True:\n"
        "        time.sleep(0.05)\n"
        "        talk.sendall(json.dumps({'done': {'status': 'ok', 'exit_code': 0}}).encode()"
        " + b'\\n')\n"
        "threading.Thread(target=lie, daemon=True).start()\n"
        "while True: time.sleep(1)\n"
    )
    started = time.monotonic()
    with belljar.Sandbox(jar, environment="base", max_runs=100) as box:
        box.run(liar, timeout_s=5)
        with pytest.raises(SandboxLost):
            for _ in range(30):
                if box.run("#" * 90_000, timeout_s=1).state_kept is False:
                    box.run("1", timeout_s=1)
    assert time.monotonic() - started < 120
    assert jar.run("print(1)").stdout == "1\n"


def test_r3_closed_while_it_is_made_it_is_gone(traces: Any) -> None:
    async def closes() -> tuple[set[int], set[int]]:
        async with aio.Belljar(Settings(pool_size=0)) as jar:
            async with aio.Sandbox(jar, engine="jail", environment="base"):
                pass
            before = traces.processes()
            box = aio.Sandbox(jar, engine="jail", environment="base")
            opening = asyncio.ensure_future(box.open())
            await asyncio.sleep(0)
            await box.close()
            with pytest.raises(Closed, match="while it was made"):
                await opening
            with pytest.raises(BelljarError):
                await box.run("1")
            return before, traces.processes()

    before, after = asyncio.run(closes())
    assert after == before
