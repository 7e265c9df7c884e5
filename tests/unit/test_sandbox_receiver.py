"""The host's end of the stream, fed by a guest that lies: at worst a bad frame, never a surprise.

The agent behind these streams is the test itself. What real walls do is in tests/functional.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.engines.base import Inside
from belljar.errors import BelljarError, EngineError
from belljar.model import Limits, Usage
from belljar.receiver import Outcome, Receiver
from belljar.runtimes.guest import protocol
from belljar.runtimes.guest.protocol import BadFrame
from belljar.sandbox import Order, Sandbox

LIMITS = Limits(timeout_s=5, output_bytes=1000, result_files=3, result_bytes=2000)
END = {"exit_code": 0, "signal": None, "stage": "run", "dropped": {"stdout": 0, "stderr": 0}}
Frame = tuple[int, bytes]


def js(content: object) -> bytes:
    return json.dumps(content).encode()


def file(path: object = "/workspace/x", size: object = 1, skipped: object = "") -> Frame:
    return protocol.FILE, js({"path": path, "size": size, "skipped": skipped})


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def received(loop: asyncio.AbstractEventLoop, *frames: Frame) -> Outcome:
    receiver = Receiver(LIMITS, loop.create_future())
    for kind, payload in frames:
        receiver.take(kind, payload)
    receiver.lost("no more frames")
    receiver.close()
    return receiver.outcome


def test_an_honest_run(loop: asyncio.AbstractEventLoop) -> None:
    outcome = received(
        loop,
        (protocol.STDOUT, b"out"),
        (protocol.STDERR, b"err"),
        file("/workspace/a", 4),
        (protocol.DATA, b"ab"),
        (protocol.DATA, b"cd"),
        file("/data/output/empty", 0),
        file("/workspace/fifo", 0, "a FIFO"),
        (protocol.END, js(END)),
    )
    assert (outcome.stdout, outcome.stderr, outcome.exit_code) == (b"out", b"err", 0)
    assert outcome.ended
    assert [(f.path, f.size, f.content, f.skipped) for f in outcome.files] == [
        ("/workspace/a", 4, b"abcd", ""),
        ("/data/output/empty", 0, b"", ""),
        ("/workspace/fifo", 0, None, "a FIFO"),
    ]


BAD: dict[str, list[Frame]] = {
    "more output than agreed": [(protocol.STDOUT, b"x" * 600)] * 2,
    "more output on stderr": [(protocol.STDERR, b"x" * 1001)],
    "more tail than agreed": [(protocol.STDOUT_TAIL, b"x" * 1001)],
    "content without a file": [(protocol.DATA, b"x")],
    "content after its file": [file(size=1), (protocol.DATA, b"a"), (protocol.DATA, b"b")],
    "content after an empty file": [file(size=0), (protocol.DATA, b"b")],
    "content after a skipped file": [file(skipped="a FIFO"), (protocol.DATA, b"b")],
    "more content than announced": [file(size=3), (protocol.DATA, b"1234")],
    "a file inside a file": [file(size=3), (protocol.DATA, b"1"), file(size=1)],
    "a negative size": [file(size=-1)],
    "a huge size": [file(size=2**62)],
    "a size above what was agreed": [file(size=2001)],
    "sizes that add up": [file(size=1500), (protocol.DATA, bytes(1500)), file(size=501)],
    "a size that is text": [file(size="1")],
    "a size that is true": [file(size=True)],
    "a size that is a fraction": [file(size=1.5)],
    "a size that is infinite": [(protocol.FILE, b'{"path":"/x","size":1e999,"skipped":""}')],
    "a size that is no number": [(protocol.FILE, b'{"path":"/x","size":NaN,"skipped":""}')],
    "no size": [(protocol.FILE, js({"path": "/x", "skipped": ""}))],
    "no path": [(protocol.FILE, js({"size": 1, "skipped": ""}))],
    "a path that is a list": [file(path=["/x"])],
    "a reason that is a number": [file(skipped=7)],
    "an endless path": [file(path="/" + "x" * 9000)],
    "endless files": [file(size=0)] * 200,
    "endless skipped files": [file(size=1, skipped="s")] * 200,
    "a file that is no object": [(protocol.FILE, b"[]")],
    "a file that is nested": [(protocol.FILE, b'{"path":' * 100_000)],
    "an end that is no object": [(protocol.END, b"7")],
    "an end that is nested": [(protocol.END, b"[" * 500_000)],
    "an end that is no JSON": [(protocol.END, b"\xff\xff")],
}


@pytest.mark.parametrize("frames", BAD.values(), ids=BAD.keys())
def test_a_lie_is_a_bad_frame(loop: asyncio.AbstractEventLoop, frames: list[Frame]) -> None:
    with pytest.raises(BadFrame):
        received(loop, *frames)


WRONG: list[object] = [None, True, -1, 2**70, 1.5, "text", [], {}, [[[]]], {"a": 1}]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize(
    "field", ["exit_code", "signal", "stage", "dropped", "report", "watched", "cpu_ms"]
)
def test_an_end_with_a_wrong_type_is_taken_for_unknown(
    loop: asyncio.AbstractEventLoop, field: str, wrong: object
) -> None:
    outcome = received(loop, (protocol.END, js({**END, field: wrong})))
    assert outcome.ended
    for value, most in ((outcome.exit_code, 255), (outcome.signal, 64)):
        assert value is None or (type(value) is int and 0 <= value <= most)
    assert outcome.dropped.stdout == outcome.dropped.stderr == 0
    assert outcome.out_of_memory is False


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_figures_of_a_wrong_type_are_zero(loop: asyncio.AbstractEventLoop, wrong: object) -> None:
    names = ("peak_memory_bytes", "peak_processes", "out_of_memory")
    end = {**END, "watched": dict.fromkeys(names, wrong), "dropped": {"stdout": wrong}}
    outcome = received(loop, (protocol.END, js(end)))
    assert outcome.usage.peak_memory_bytes == outcome.usage.peak_processes == 0
    assert outcome.dropped.stdout == 0
    assert outcome.out_of_memory is (wrong is True)


def test_the_second_end_counts_for_nothing(loop: asyncio.AbstractEventLoop) -> None:
    second = {**END, "exit_code": 9}
    late: list[Frame] = [(protocol.STDOUT, b"late"), file(size=5), (protocol.DATA, b"x" * 99)]
    outcome = received(loop, (protocol.END, js(END)), (protocol.END, js(second)), *late)
    assert (outcome.exit_code, outcome.stdout, outcome.files) == (0, b"", ())


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../../etc/passwd", "/workspace/../../x", "/workspace/a/./b", "", "~", "/"],
)
def test_a_file_from_elsewhere_is_a_lie(loop: asyncio.AbstractEventLoop, path: str) -> None:
    """S2: only what lies in /workspace and /data/output can come back."""
    with pytest.raises(protocol.BadFrame):
        received(loop, file(path, 1), (protocol.DATA, b"x"), (protocol.END, js(END)))


@pytest.mark.parametrize("name", ["\0", "a\nb", "C:\\x", "..x", "~"])
def test_an_odd_name_is_only_a_text_to_the_host(loop: asyncio.AbstractEventLoop, name: str) -> None:
    """The host opens nothing by it; whoever writes it to disk has to look at it (S2)."""
    path = f"/workspace/{name}"
    outcome = received(loop, file(path, 1), (protocol.DATA, b"x"), (protocol.END, js(END)))
    assert [f.path for f in outcome.files] == [path]


SURROGATES = ["\udcff", "\ud800", "\udfff\ud800", "a\ud83d"]


@pytest.mark.parametrize("text", SURROGATES, ids=ascii)
def test_lone_surrogates_never_reach_the_result(loop: asyncio.AbstractEventLoop, text: str) -> None:
    """What cannot be encoded would break whoever prints or stores the result."""
    report = js({"name": text, "message": text, "traceback": text}).decode()
    frames = [file(text, 0), file("/x", 0, text), (protocol.END, js({**END, "report": report}))]
    try:
        outcome = received(loop, *frames)
    except BadFrame:
        return
    for found in outcome.files:
        (found.path + found.skipped).encode()
    assert outcome.error
    (outcome.error.name + outcome.error.message + outcome.error.traceback).encode()


@pytest.mark.parametrize(
    "report",
    [
        "x",
        "[]",
        "{}",
        '{"name": {"a": [1]}, "message": 7, "traceback": null}',
        '{"name": ' + "[" * 400 + "]" * 400 + "}",
        '{"name":' * 50_000,
        json.dumps({"name": "N" * 300_000, "message": "M" * 300_000, "traceback": "T" * 300_000}),
    ],
    ids=lambda report: report[:24],
)
def test_a_report_is_text_of_a_bounded_length(loop: asyncio.AbstractEventLoop, report: str) -> None:
    error = received(loop, (protocol.END, js({**END, "report": report}))).error
    if error is not None:
        for text in (error.name, error.message, error.traceback):
            assert isinstance(text, str)
            assert len(text) <= 65_536


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from([*SURROGATES, "/workspace/x", "compile", "x" * 9000, 2**63, -1, 0, 1]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["path", "x"]), inner)
    ),
    max_leaves=4,
)
fields = st.dictionaries(
    st.sampled_from(
        ["path", "size", "skipped", "exit_code", "signal", "stage", "dropped", "report", "watched"]
    ),
    values,
)
hostile_frames = st.lists(
    st.builds(
        file,
        path=st.text(st.characters(), max_size=10) | st.sampled_from(SURROGATES),
        size=st.integers(-1, 1200),
        skipped=st.sampled_from(["", "", "a FIFO", *SURROGATES]),
    )
    | st.tuples(st.just(protocol.DATA), st.binary(max_size=5))
    | st.tuples(st.sampled_from([protocol.FILE, protocol.END]), fields.map(js))
    | st.tuples(st.sampled_from(sorted(protocol.FROM_AGENT)), st.binary(max_size=700)),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(frames=hostile_frames)
def test_any_sequence_gives_a_bounded_outcome_or_a_bad_frame(frames: list[Frame]) -> None:
    loop = asyncio.new_event_loop()
    try:
        outcome = received(loop, *frames)
    except BadFrame:
        return
    finally:
        loop.close()
    assert len(outcome.stdout) <= 2 * LIMITS.output_bytes + 100
    assert len(outcome.stderr) <= 2 * LIMITS.output_bytes + 100
    assert sum(len(f.content or b"") for f in outcome.files) <= LIMITS.result_bytes
    for found in outcome.files:
        (found.path + found.skipped).encode()


# -- the whole sandbox, with a hostile agent on the other end of its stream ------------------------


class Beyond:
    """A wall with nobody behind it but the test."""

    isolation: Mapping[str, str] = {}
    inputs = None

    def __init__(self) -> None:
        self.stream, self.agent = socket.socketpair()
        self.stream.setblocking(False)
        self.agent.setblocking(False)
        self.killed = False
        self.settled = 0

    def settle(self) -> None:
        self.settled += 1

    def apply(self, limits: Limits) -> Inside:
        return Inside(rlimits={})

    def look(self) -> None:
        return None

    def kill(self) -> None:
        self.killed = True

    async def destroy(self) -> None:
        self.stream.close()
        self.agent.close()


ORDER = Order(
    path="/workspace/main.py",
    argv=None,
    compile=None,
    env={},
    stdin=b"",
    workspace={"main.py": b"pass"},
    inputs={},
    limits=LIMITS,
)


def talk(say: Callable[[Beyond], Awaitable[None]], order: Order = ORDER) -> tuple[Outcome, bool]:
    """Runs `order` while `say` plays the agent. Returns the outcome and whether the wall fell."""

    async def main() -> tuple[Outcome, bool]:
        trouble: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: trouble.append(what))
        wall = Beyond()
        sandbox = Sandbox(wall)
        wall.agent.send(protocol.message(protocol.READY, {}))
        await sandbox.ready()
        speaking = asyncio.ensure_future(say(wall))
        try:
            async with asyncio.timeout(4):
                outcome = await sandbox.run(order)
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
            await sandbox.destroy()
        assert not trouble
        return outcome, wall.killed

    return asyncio.run(main())


@pytest.mark.parametrize("waits", [True, False])
def test_usage_counts_from_ready_only_if_no_run_can_have_begun(waits: bool) -> None:
    """R1: a run that was over before READY was read would have used nothing."""

    async def main() -> int:
        wall = Beyond()
        sandbox = Sandbox(wall)
        if waits:
            wall.agent.send(protocol.message(protocol.READY, {}))
            await sandbox.ready()
        running = asyncio.ensure_future(sandbox.run(ORDER))
        await asyncio.sleep(0)
        if not waits:
            wall.agent.send(protocol.message(protocol.READY, {}))
            await sandbox.ready()
        wall.agent.close()
        await running
        await sandbox.destroy()
        return wall.settled

    assert asyncio.run(main()) == (1 if waits else 0)


@pytest.mark.parametrize("frames", BAD.values(), ids=BAD.keys())
def test_a_liar_loses_its_sandbox_at_once(frames: list[Frame]) -> None:
    async def say(wall: Beyond) -> None:
        data = b"".join(protocol.frame(kind, payload) for kind, payload in frames)
        await asyncio.get_running_loop().sock_sendall(wall.agent, data)

    outcome, killed = talk(say)
    assert killed
    assert not outcome.ended
    assert outcome.problem


@pytest.mark.parametrize("text", SURROGATES, ids=ascii)
def test_lone_surrogates_do_not_stall_the_host(text: str) -> None:
    async def say(wall: Beyond) -> None:
        wall.agent.send(protocol.frame(*file(text, 0)))
        wall.agent.send(protocol.message(protocol.FAULT, {"message": text, "hint": text}))

    outcome, _ = talk(say)
    outcome.problem.encode()
    for found in outcome.files:
        found.path.encode()


def test_a_flood_of_gigabytes_is_cut_off() -> None:
    """L5: the host reads what was agreed and not a megabyte more."""
    sent = 0

    async def say(wall: Beyond) -> None:
        nonlocal sent
        piece = protocol.frame(protocol.STDOUT, b"x" * 500) * 100
        while True:
            await asyncio.get_running_loop().sock_sendall(wall.agent, piece)
            sent += len(piece)

    outcome, killed = talk(say)
    assert killed
    assert len(outcome.stdout) <= LIMITS.output_bytes + 500
    assert sent < 2_000_000


def test_an_agent_that_wants_input_it_does_not_take_gets_one_piece() -> None:
    """L5: endless input and endless wants must not pile up in the host."""
    tasks = 0

    async def say(wall: Beyond) -> None:
        nonlocal tasks
        loop = asyncio.get_running_loop()
        for _ in range(100):
            await loop.sock_sendall(wall.agent, protocol.frame(protocol.WANT) * 100)
            await asyncio.sleep(0)
            tasks = max(tasks, len(asyncio.all_tasks()))
        wall.agent.shutdown(socket.SHUT_RDWR)

    endless = os.open("/dev/zero", os.O_RDONLY)
    try:
        talk(say, dataclasses.replace(ORDER, stdin_descriptor=endless))
    finally:
        os.close(endless)
    assert tasks < 10


def test_what_the_agent_says_it_used_is_only_a_figure() -> None:
    """L7: nonsense is a bad frame or zero, never an error of the host's."""
    seen: list[object] = []
    loop = asyncio.new_event_loop()
    receiver = Receiver(LIMITS, loop.create_future())
    receiver.on_usage = seen.append
    receiver.take(protocol.USED, js({"cpu_ms": "x", "watched": [1]}))
    receiver.take(protocol.USED, js({"cpu_ms": -5, "watched": {"peak_processes": 2**80}}))
    loop.close()
    assert seen == [Usage(), Usage()]
    with pytest.raises(BadFrame):
        receiver.take(protocol.USED, b"[]")


def test_an_agent_that_goes_away_ends_the_run() -> None:
    async def say(wall: Beyond) -> None:
        wall.agent.send(protocol.frame(protocol.STDOUT, b"last words"))
        wall.agent.shutdown(socket.SHUT_RDWR)

    outcome, _ = talk(say)
    assert (outcome.ended, outcome.stdout) == (False, b"last words")
    assert outcome.problem


def test_an_agent_that_never_becomes_ready_is_an_engine_error() -> None:
    async def main() -> None:
        for data in (
            protocol.message(protocol.FAULT, {"message": "step x: EPERM", "hint": "try y"}),
            protocol.message(protocol.FAULT, {"message": ["not", "text"], "hint": None}),
            b"\0garbage",
            b"",
        ):
            wall = Beyond()
            sandbox = Sandbox(wall)
            if data:
                wall.agent.send(data)
            else:
                wall.agent.shutdown(socket.SHUT_RDWR)
            with pytest.raises(EngineError) as caught:
                await sandbox.ready()
            assert isinstance(caught.value, BelljarError)
            await sandbox.destroy()

    asyncio.run(main())


def test_a_stream_that_has_ended_is_seen_before_the_loop_reads_it() -> None:
    """F1: or a waiting sandbox that has just died would be handed out."""

    async def main() -> tuple[bool, bool, str]:
        wall = Beyond()
        sandbox = Sandbox(wall)
        wall.agent.send(protocol.message(protocol.READY, {}))
        await sandbox.ready()
        before = sandbox.gone()
        wall.agent.close()
        after = sandbox.gone()
        await sandbox.destroy()
        return before, after, sandbox.lost

    before, after, why = asyncio.run(main())
    assert (before, after) == (False, True)
    assert why
