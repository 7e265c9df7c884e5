"""P2: what a line says is data, whatever it was given, and has one way to be written."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.model import Caller, Finding, Limits, OutputFile, Request, Result, Usage
from belljar.network import Allow, Egress, Secret
from belljar.trail import records
from belljar.trail.chain import line

HOSTILE = st.text(st.characters(), max_size=50) | st.sampled_from(
    ["\0", "\ud800", "\udfff\ud800", "'; DROP TABLE trail_lines; --", "x" * 100_000, "\u202e", "é"]
)
ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | HOSTILE | st.binary(max_size=20)
)


@given(names=st.dictionaries(HOSTILE, ANYTHING, max_size=5), tenant=ANYTHING, number=ANYTHING)
def test_p2_anything_can_be_asked_for_and_is_written_down(
    names: dict[str, object], tenant: object, number: object
) -> None:
    """Before policy has looked: wrong types, NUL, surrogates, 100 KB, numbers that are none."""
    request = Request(
        code="\ud800",
        language=tenant,  # type: ignore[arg-type]
        limits=Limits(timeout_s=number),  # type: ignore[arg-type]
        files=names,  # type: ignore[arg-type]
        inputs=number,  # type: ignore[arg-type]
        need=tenant,  # type: ignore[arg-type]
        packages=number,  # type: ignore[arg-type]
        network=(number, tenant, Allow("a.example")),  # type: ignore[arg-type]
        secrets=names,  # type: ignore[arg-type]
    )
    caller = Caller(tenant=tenant)  # type: ignore[arg-type]
    more = {"install": (tenant, [number]), "argv": (tenant, number), "paths": number}
    for argv in (number, list(names), None):
        records.canonical(records.asked("command", request, caller, most_text=9, argv=argv))
    records.canonical(records.ended("closed", reason=tenant, error=number))
    asked = records.asked("run", request, caller, most_text=1000, **more)
    written = line(7, records.GENESIS, {**asked, "kind": "attempt"})
    assert written.body.isascii() and "\0" not in written.body
    assert written.tenant.isascii() and "\0" not in written.tenant
    assert len(written.tenant) < 2600  # what PostgreSQL can have in an index
    assert records.canonical(json.loads(written.body)) == written.body


@given(st.recursive(ANYTHING, lambda part: st.lists(part) | st.dictionaries(HOSTILE, part)))
def test_p2_the_same_content_is_the_same_text(content: object) -> None:
    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in reversed(value.items())}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return records.text(value) if isinstance(value, str) else records.number(value)

    text = records.canonical({"a": plain(content)})
    assert records.canonical(json.loads(text)) == text
    forth, back = {"a": 1, "\ud800": plain(content)}, {"\ud800": plain(content), "a": 1}
    assert records.canonical(forth) == records.canonical(back)


def test_p2_an_attempt_has_hashes_and_neither_code_nor_secrets() -> None:
    request = Request(
        code="print('hush')",
        env={"API_KEY": "hunter2"},
        stdin=b"hunter3",
        files={"a.txt": b"hunter4"},
        inputs={"b.txt": b"hunter5"},
    )
    asked = records.asked("run", request, Caller(tenant="acme", door="http", request_id="r1"))
    told = records.canonical(asked)
    assert "hush" not in told and "hunter" not in told and "API_KEY" not in told
    assert asked["code_sha256"] == records.sha256("print('hush')")
    assert (asked["tenant"], asked["door"], asked["request_id"]) == ("acme", "http", "r1")
    (file,) = asked["files"]["listed"]
    assert file == {"name": "a.txt", "size": 7, "sha256": records.sha256(b"hunter4")}
    assert asked["stdin_bytes"] == 7 and asked["limits"]["timeout_s"] == 30.0
    assert records.asked("run", request, Caller(), most_text=100)["code"] == "print('hush')"
    assert "code" not in records.asked("run", request, Caller(), most_text=5)


def test_n2_an_attempt_has_the_rules_and_of_secrets_their_hosts() -> None:
    request = Request(
        code="",
        network=[Allow("*.example.com:443", methods=("GET",)), "b.example"],
        secrets={"KEY": Secret("hunter2-hunter2", host="api.example.com")},
    )
    asked = records.asked("run", request, Caller())
    assert asked["network"] == [{"hosts": ["*.example.com:443"], "methods": ["GET"]}, "b.example"]
    assert asked["secrets"] == {"KEY": "api.example.com"}
    assert "hunter2" not in records.canonical(asked)
    many = tuple(Allow(*(f"{n}-{i}.{'x' * 60}.example" for i in range(9))) for n in range(100))
    told = records.asked("run", Request(code="", network=many), Caller())
    assert told["network"][-1] == {"more": 100 - (len(told["network"]) - 1)}
    assert len(records.canonical(told)) < 40_000


@given(host=HOSTILE, number=st.integers() | st.floats())
def test_n1_an_attempt_to_reach_something_is_written_whatever_it_says(
    host: str, number: float
) -> None:
    tried = Egress(
        at=number,
        host=host,
        port=443,
        verdict="refused",
        path=host,
        status=200,
        bytes_sent=number,  # type: ignore[arg-type]
    )
    content = {**records.tried(tried, tenant=host, sandbox=""), "kind": "egress"}
    written = line(7, records.GENESIS, content)
    assert written.body.isascii() and written.status == "refused" and len(written.body) < 20_000
    assert "sandbox" not in content and content["count"] == 1


def test_p2_an_end_is_what_the_caller_was_told() -> None:
    result = Result(
        status="denied",
        exit_code=None,
        stdout="out",
        stderr="err",
        engine="jail",
        isolation={"memory": "cgroup-v2"},
        usage=Usage(cpu_ms=1.23456, peak_memory_bytes=7, peak_processes=2),
        files=(
            OutputFile(path="/workspace/\udcff", size=3, content=b"abc"),
            OutputFile(path="/workspace/large", size=10**12, content=None, skipped="too large"),
        ),
        findings=(Finding(line=3, rule="import", message="import os"),),
    )
    told = records.answered(result)
    assert told["status"] == "denied" and told["usage"]["cpu_ms"] == 1.235
    assert told["stdout_sha256"] == records.sha256("out")
    assert [file["sha256"] for file in told["files"]["listed"]] == [records.sha256(b"abc"), None]
    assert told["findings"] == [{"line": 3, "rule": "import"}] and told["egress"] == 0
    assert records.canonical(told).isascii()


def test_p2_a_long_list_of_files_is_bounded_and_still_proven() -> None:
    def of(count: int) -> dict[str, object]:
        return records.listed((f"n{i}", i, None) for i in range(count))

    assert "more" not in of(records.MOST_FILES)
    long = records.listed((f"{i:04}" + "\U0001f600" * 4000, i, None) for i in range(1000))
    assert len(records.canonical(long)) < 2 * records.NAMES_BYTES
    assert len(long["listed"]) + long["more"]["count"] == 1000
    many, other = of(records.MOST_FILES + 5), of(records.MOST_FILES + 6)
    assert many["more"]["count"] == 5  # type: ignore[index]
    assert many["more"] != other["more"] and len(records.canonical(other)) < 100_000


@pytest.mark.parametrize("text", ["a" * 129, "é" * 5000])
def test_p2_what_is_cut_can_still_be_told_apart(text: str) -> None:
    one, two = records.text(text), records.text(text + "b")
    assert one and two and one != two and one.startswith(text[:128]) and len(one) < 220


def test_p2_nothing_of_the_trail_is_loaded_without_one() -> None:
    """Neither the database's library nor what hashes and writes lines."""
    code = (
        "import sys, belljar.kept.sync, belljar.aio, belljar.cli.main, belljar.cli.session;"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "belljar.trail.entry" in loaded
    assert not loaded & {"sqlalchemy", "alembic", "psycopg", "belljar.trail.records"}
