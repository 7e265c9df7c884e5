"""F2: large JSON is read in other processes, strictly, and whatever happens to those."""

from __future__ import annotations

import asyncio
import contextlib
import json
import marshal
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from belljar.server import parsers
from belljar.server.parsers import Parsers
from belljar.server.strict_json import NotRead

TEXTS = [
    {"code": "print('é\u2028\U0001f600')" * 1000, "n": [1, 2.5, None, True, 10**40]},
    ["[,{:\\" * 50_000],
    {str(n): n for n in range(5_000)},
]


def children() -> set[int]:
    texts = [file.read_text() for file in Path("/proc/self/task").glob("*/children")]
    found = {int(word) for text in texts for word in text.split()}
    return {pid for pid in found if b"parser_process" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def test_what_is_read_is_what_was_sent() -> None:
    async def play() -> None:
        found = Parsers()
        try:
            for given in TEXTS:
                marshalled = await found.parse([json.dumps(given).encode()])
                assert marshal.loads(marshalled) == given
        finally:
            await found.close()

    asyncio.run(play())


@pytest.mark.parametrize("text", [b"{", b'{"a":1,"a":2}', b"[NaN]", b"\xff", b"[" * 100, b""])
def test_what_is_no_json_is_refused_and_the_next_is_read(text: bytes) -> None:
    async def play() -> Any:
        found = Parsers()
        try:
            with pytest.raises(NotRead):
                await found.parse([text])
            return marshal.loads(await found.parse([b"[1]"]))
        finally:
            await found.close()

    assert asyncio.run(play()) == [1]


def test_many_at_once_share_a_few_that_end_with_them() -> None:
    async def play() -> None:
        found = Parsers()
        texts = [json.dumps([n] * 1000).encode() for n in range(20)]
        try:
            read = await asyncio.gather(*(found.parse([text]) for text in texts))
            assert [marshal.loads(one)[0] for one in read] == list(range(20))
            assert len(children()) == parsers.PROCESSES
        finally:
            await found.close()
        assert not children()

    asyncio.run(play())


def test_one_that_was_lost_while_idle_costs_nobody_a_request() -> None:
    async def play() -> None:
        found = Parsers()
        try:
            await asyncio.gather(*(found.parse([b"[1]"]) for _ in range(parsers.PROCESSES)))
            for pid in children():
                os.kill(pid, signal.SIGKILL)
            assert marshal.loads(await found.parse([b"[2]"])) == [2]
            assert marshal.loads(await found.parse([b"[3]"])) == [3]
        finally:
            await found.close()
        assert not children()

    asyncio.run(play())


def test_a_text_that_nobody_could_read_is_not_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends without an answer, a new one as well."""
    monkeypatch.setattr(parsers, "_START", "raise SystemExit  # {path} {descriptor}")

    async def play() -> None:
        found = Parsers()
        try:
            with pytest.raises(parsers.Unread):
                await found.parse([b"[1]"])
            monkeypatch.undo()
            assert marshal.loads(await found.parse([b"[2]"])) == [2]
        finally:
            await found.close()
        assert not children()

    asyncio.run(play())


def test_who_leaves_leaves_no_answer_for_the_next() -> None:
    async def play() -> None:
        found = Parsers()
        large = b"[" + b"1," * 20_000 + b"1]"
        try:
            await found.parse([b"[1]"])
            leaving = asyncio.ensure_future(found.parse([large]))
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
            assert marshal.loads(await found.parse([b"[2]"])) == [2]
        finally:
            await found.close()

    asyncio.run(play())


def test_f2_one_whose_asker_leaves_while_it_starts_takes_no_other_descriptor() -> None:
    """The number of its socket may be another's by the time it is passed on."""

    async def play() -> None:
        found = Parsers()
        try:
            for n in range(30):
                leaving = asyncio.ensure_future(found.parse([b"[1]"]))
                await asyncio.sleep(0.0002 * (n % 10))
                leaving.cancel()
                await asyncio.wait([leaving])
                others = [socket.socketpair() for _ in range(4)]
                assert marshal.loads(await found.parse([b"[2]"])) == [2]
                for ours, theirs in others:
                    inode = os.fstat(theirs.fileno()).st_ino
                    for pid in children():
                        assert inode not in opened(pid)
                    ours.close()
                    theirs.close()
                assert len(children()) <= parsers.PROCESSES
                for idle in found._idle:
                    idle.kill()
                found._idle.clear()
        finally:
            await found.close()
        assert not children()

    asyncio.run(play())


def opened(pid: int) -> set[int]:
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it reads its modules
            found.add(file.stat().st_ino)
    return found
