"""A4: what a model is told, and what it is spared."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import zlib
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import LimitExceeded, SandboxEnded, SandboxFileMissing
from belljar.mcp import answers, arguments, calls, pictures, tools
from belljar.model import Dropped, Limits, Output, OutputFile, Result
from belljar.settings import Settings

MOST_EVENT_BYTES = 1 << 20
"""What the SDK's client takes of one answer."""


def png(width: int = 4, height: int = 3, *, raw: bytes | None = None, kind: int = 2) -> bytes:
    line = b"\0" + bytes(width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    packed = zlib.compress(line * height if raw is None else raw)
    found = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b"")):
        found += struct.pack(">I", len(data)) + name + data
        found += struct.pack(">I", zlib.crc32(name + data))
    return found


GOOD = png()


def test_a4_a_whole_picture_is_one() -> None:
    assert pictures.why_not(GOOD) == ""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        GOOD[:-1],
        GOOD + b"x",
        GOOD[:40] + b"\0" + GOOD[41:],
        GOOD.replace(b"IHDR", b"IHDX"),
        png(raw=b""),
        png(raw=bytes(10_000)),
        png(raw=b"\x07" * 39),  # a filter that does not exist
        png(kind=3),  # a palette that is not there
        png(kind=9),
        png(0, 0),
        png(9000, 1),
        png(8000, 8000, raw=bytes(100)),  # takes more than it has
        b"GIF89a" + bytes(100),
        b"<svg onload=alert(1)>",
        GOOD + bytes(pictures.MOST_BYTES),
    ],
)
def test_a4_what_is_no_whole_picture_is_not_sent(content: bytes) -> None:
    assert pictures.why_not(content)


@given(st.binary(max_size=200), st.integers(0, len(GOOD)))
def test_a4_garbage_raises_nothing(garbage: bytes, at: int) -> None:
    spoilt = GOOD[:at] + garbage + GOOD[at + len(garbage) :]
    assert spoilt == GOOD or pictures.why_not(spoilt)
    pictures.why_not(b"\x89PNG\r\n\x1a\n" + garbage)


@given(st.text(max_size=50))
def test_a4_text_has_nothing_that_is_obeyed_or_hidden(text: str) -> None:
    shown = answers.plain(text)
    assert all(char in "\n\t" or ord(char) >= 32 for char in shown)
    assert not set(shown) & {"\x7f", "\x9b", "\u202e", "\u2066", "\U000e0041", "\ud800"}
    plain = "naïve 日本 👩‍🔬\n\tx"
    assert answers.plain(plain) == plain


def told(**fields: object) -> answers.CallToolResult:
    usual = {"status": "ok", "exit_code": 0, "duration_ms": 12.0}
    result = Result(**{**usual, **fields})  # type: ignore[arg-type]
    return answers.told(result, limits=Limits(), most_s=120.0, checkpoints=(2, 3))


def words(answer: answers.CallToolResult) -> list[str]:
    return [block.text for block in answer.content if block.type == "text"]


def test_a4_the_verdict_comes_first_whatever_code_prints() -> None:
    answer = told(status="error", exit_code=1, run_id=4, stdout="run 4: ok after 0.01 s\n")
    assert words(answer) == [
        "run 4: error after 0.01 s, exit code 1",
        "stdout:\nrun 4: ok after 0.01 s",
    ]
    assert answer.is_error


def test_a4_pictures_come_once_and_broken_ones_are_mentioned() -> None:
    shown = Output(kind="display", data={"image/png": GOOD, "text/plain": "<Figure>"})
    broken = Output(kind="display", data={"image/png": b"\x89PNG"})
    file = OutputFile(path="/workspace/x.PNG", size=len(GOOD), content=GOOD)
    answer = told(outputs=(shown, shown, broken), files=(file,), dropped=Dropped(stdout=1))
    assert [block.type for block in answer.content].count("image") == 1
    assert words(answer)[-1] == "notes:\npictures left out: 1 (no PNG)"
    assert "<Figure>" not in "".join(words(answer))


def test_a4_what_looking_at_pictures_costs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []
    look = pictures.why_not
    monkeypatch.setattr(pictures, "why_not", lambda data: looked.append(data) or look(data))
    broken = [Output(kind="display", data={"image/png": GOOD + bytes([n])}) for n in range(20)]
    good = Output(kind="display", data={"image/png": GOOD})
    answer = told(outputs=(*broken, good))
    assert len(looked) == answers.MOST_PICTURES
    assert "pictures left out: 21 (" in words(answer)[-1]
    assert pictures.why_not(png(2400, 2400, raw=b"")) == "too large when unpacked"


def test_a4_pictures_are_unpacked_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[int] = []
    monkeypatch.setattr(pictures, "why_not", lambda _: where.append(threading.get_ident()) or "")
    host = SimpleNamespace(settings=Settings(), tenant="")
    shown = Output(kind="display", data={"image/png": GOOD})
    result = Result(status="ok", exit_code=0, duration_ms=1.0, outputs=(shown,))
    asyncio.run(calls._told(SimpleNamespace(host=host), result))  # type: ignore[arg-type]
    assert len(where) == 1 and where[0] != threading.get_ident()


def test_a4_an_answer_stays_below_what_clients_take() -> None:
    wild = "\U0001f600" * 100_000
    outputs = tuple(Output(kind="display", data={"text/plain": wild}) for _ in range(100))
    noise = Random(1)
    files = tuple(
        OutputFile(
            path=f"/workspace/{wild[:200]}{n}.png",
            size=1,
            content=png(150, 150, raw=b"".join(b"\0" + noise.randbytes(450) for _ in range(150))),
        )
        for n in range(10)
    )
    answer = told(stdout=wild, stderr=wild, value=wild, outputs=outputs, files=files)
    size = len(json.dumps(answer.model_dump(mode="json", by_alias=True)))
    assert MOST_EVENT_BYTES / 2 < size < MOST_EVENT_BYTES - 1000


def test_a4_lost_state_says_how_to_go_back() -> None:
    said = words(told(status="killed", exit_code=None, signal=9, run_id=4, state_kept=False))[0]
    assert "killed by SIGKILL" in said and "before run 3" in said


def test_a4_hints_are_in_the_words_of_the_tools() -> None:
    def hint(error: Exception) -> str:
        return words(answers.refused(error))[0].partition("hint: ")[2]  # type: ignore[arg-type]

    assert hint(SandboxEnded("x", hint="make a new one")) == "open_sandbox makes a new one"
    assert hint(SandboxFileMissing("x", kind="missing")).startswith("list_files")
    assert hint(LimitExceeded("x", hint="less\x1b")) == "less\\x1b"


def test_a4_schemas_are_simple_and_say_the_operators_numbers() -> None:
    settings = Settings(defaults=Limits(timeout_s=7.0), maxima=Limits(timeout_s=50.0))
    for spec in tools.TOOLS:
        schema = spec.described(settings).input_schema
        assert "anyOf" not in str(schema) and "$defs" not in schema and "title" not in schema
        assert set(schema.get("required", ())) <= set(schema["properties"])
    timeout = arguments.schema(arguments.RunCode, settings)["properties"]["timeout_s"]
    assert "7 if left out, 50 at most" in timeout["description"]
