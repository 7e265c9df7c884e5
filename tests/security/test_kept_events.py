"""What a hostile kept sandbox can make the host parse and hold (L5, S3): byte by byte bounded.

Memory is counted, not time: a parser that takes seconds makes millions of objects on its way.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

import belljar
from belljar.conversation import Conversation
from belljar.kept import outputs
from belljar.kept.run import Run
from belljar.runtimes.guest import protocol

MIB = 1 << 20
KEEPER = """
import os, socket
keeper = socket.socket(fileno=os.dup(3))
"""
NESTED = {
    "an output": 'b\'{"output": \' + nested + b"}\\n"',
    "the data of an output": 'b\'{"output": {"kind": "display", "data": \' + nested + b"}}\\n"',
    "metadata": 'b\'{"output": {"kind": "display", "data": {"text/plain": "x"}, "metadata": \''
    ' + nested + b"}}\\n"',
    "progress": 'b\'{"progress": \' + nested + b"}\\n"',
    "an extension": 'b\'{"extend": \' + nested + b"}\\n"',
    "the end": 'b\'{"done": {"status": "ok", "exit_code": 0, "more": \' + nested + b"}}\\n"',
}


@pytest.fixture(scope="module")
def jar() -> Iterator[belljar.Belljar]:
    with belljar.Belljar() as jar:
        yield jar


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that Python's objects on the host took meanwhile, beyond what they have."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("line", NESTED.values(), ids=NESTED.keys())
def test_l5_nested_json_of_eight_megabytes_costs_the_host_nothing(
    jar: belljar.Belljar, line: str
) -> None:
    with belljar.Sandbox(jar, environment="base", memory_bytes=1 << 30, timeout_s=60) as box:
        box.run("1")
        code = KEEPER + (
            'nested = b"[" + b",".join([b"[[]]"] * 1_600_000) + b"]"\n'
            f"keeper.sendall({line})\nimport time; time.sleep(0.5)"
        )
        assert peak_bytes(lambda: box.run(code)) < 8 * MIB


def test_s3_a_picture_of_some_megabytes_arrives_whole(jar: belljar.Belljar) -> None:
    with belljar.Sandbox(jar, environment="base", memory_bytes=1 << 30) as box:
        code = (
            "class Picture:\n"
            "    def _repr_png_(self): return bytes(range(256)) * (5 << 12)\n"
            "    def _repr_html_(self): return '<p>\\u00fc\\ud800</p>' * 1000\n"
            "    def __repr__(self): return 'r' * 20_000\n"
            "display(Picture())\nPicture()"
        )
        result = box.run(code)
        assert result.status == "ok", result.stderr
        for output in result.outputs:
            assert output.data["image/png"] == bytes(range(256)) * (5 << 12)
            assert str(output.data["text/html"]).startswith("<p>\u00fc")
        assert len(result.outputs) == 2
        assert result.value == "r" * 20_000


def test_l5_outputs_beyond_what_is_held_do_not_reach_the_host(
    jar: belljar.Belljar, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = 0
    honest = Run._received

    def count(self: Run, stream: int, data: bytes) -> None:
        nonlocal came
        came += len(data)
        honest(self, stream, data)

    monkeypatch.setattr(Run, "_received", count)
    with belljar.Sandbox(jar, environment="base", memory_bytes=1 << 30, timeout_s=60) as box:
        line = '{"output": {"kind": "display", "data": {"text/plain": "%s"}}}\\n'
        result = box.run(
            KEEPER + f"line = ('{line}' % ('x' * (4 << 20))).encode()\n"
            "for _ in range(20): keeper.sendall(line)"
        )
    assert result.status == "ok" and len(result.outputs) == outputs.ALL_BYTES // (4 * MIB)
    assert came <= outputs.ALL_BYTES


# -- a keeper that was taken over ----------------------------------------------------------------


class Wall:
    """The host's end of a stream whose other end is in the test."""

    inputs = None

    def __init__(self) -> None:
        self.isolation: dict[str, str] = {}
        self.stream, self.agent = socket.socketpair()
        self.stream.setblocking(False)
        self.killed = False

    def settle(self) -> None: ...

    def look(self) -> None:
        return None

    def kill(self) -> None:
        self.killed = True

    async def destroy(self) -> None:
        self.stream.close()
        self.agent.close()


def told(*frames: bytes) -> tuple[str, bool]:
    """Why the host gives up a sandbox that sends this, and whether it kills it."""

    async def hear() -> tuple[str, bool]:
        wall = Wall()
        talk = Conversation(wall)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        wall.agent.setblocking(False)
        try:
            for frame in frames:
                if talk.lost:
                    break
                sending = asyncio.ensure_future(loop.sock_sendall(wall.agent, frame))
                while not sending.done() and not talk.lost:
                    await asyncio.sleep(0)
                sending.cancel()
            for _ in range(10):
                await asyncio.sleep(0.01)
            return talk.lost, wall.killed
        finally:
            await talk.destroy()

    return asyncio.run(hear())


LISTS = b"[" + b",".join([b"[[]]"] * 1_600_000) + b"]"


@pytest.mark.parametrize("kind", [protocol.EVENT, protocol.ANSWER, protocol.READY, protocol.FAULT])
def test_l5_no_large_control_frame_is_parsed(kind: int) -> None:
    frame = protocol.frame(kind, b'{"channel": 0, "x": ' + LISTS + b"}")
    why, killed = "", False

    def hear() -> None:
        nonlocal why, killed
        why, killed = told(frame)

    assert peak_bytes(hear) < 4 * MIB
    assert killed and "at most" in why


def test_l5_many_events_are_too_many() -> None:
    payload = b'{"channel": 0, "x": ' + LISTS[: 60 * 1024].rpartition(b",")[0] + b"]}"
    why, killed = told(*[protocol.frame(protocol.EVENT, payload)] * 1000)
    assert killed and "events" in why


def test_l5_answers_to_no_question_are_too_many() -> None:
    why, killed = told(*[protocol.message(protocol.ANSWER, {"id": 7, "ok": {}})] * 3)
    assert killed and "answer" in why


# -- outputs that were announced -----------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        None,
        [],
        {},
        {"kind": "stream", "data": [], "metadata": 0},
        {"kind": "display", "data": {}, "metadata": 0},
        {"kind": "display", "data": [["text/plain", "text"]], "metadata": 0},
        {"kind": "display", "data": [["../x", "text", 1]], "metadata": 0},
        {"kind": "display", "data": [["text/plain", "text", -1]], "metadata": 0},
        {"kind": "display", "data": [["text/plain", "text", 1e3]], "metadata": 0},
        {"kind": "display", "data": [["text/plain", "code", 1]], "metadata": 0},
        {"kind": "display", "data": [["text/plain", "text", 9 << 20]], "metadata": 0},
        {"kind": "display", "data": [["text/plain", "text", 1]] * 30, "metadata": 0},
        {"kind": "display", "data": [["text/plain", "text", 1]], "metadata": 1 << 40},
        {"kind": "display", "data": [["text/plain", "text", 1]], "metadata": None},
    ],
)
def test_s3_an_announcement_that_is_none_is_no_output(head: object) -> None:
    assert outputs.announced(head) is None


def test_s3_content_comes_in_pieces_and_no_more_than_was_announced() -> None:
    head = {
        "kind": "result",
        "data": [["text/plain", "text", 3], ["image/png", "bytes", 4]],
        "metadata": len(b'{"a": [1]}'),
    }
    coming = outputs.announced(json.loads(json.dumps(head)))
    assert coming is not None
    for piece in (b"a", b"\xffbP", b"NG!", b'{"a": [', b"1]}"):
        assert coming.complete() is None
        coming.take(piece)
    output = coming.complete()
    assert output is not None and output.data == {"text/plain": "a\ufffdb", "image/png": b"PNG!"}
    assert output.metadata == {"a": [1]}
    coming.take(bytes(struct.calcsize("q")))
    assert coming.complete() == output
