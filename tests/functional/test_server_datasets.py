"""Datasets over HTTP: streamed to disk, looked into by a sandbox, mounted read-only (S4)."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from belljar.model import GIB, MIB
from belljar.testing.served import Answer, Served, served

BINARY = {"Content-Type": "application/octet-stream"}
PIECE = bytes(range(256)) * 4096
"""1 MB."""
MOST_RSS = 400 * MIB


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        sandboxes={"pool_size": 1, "build_environments": False},
        quotas={"dataset_bytes": 3 * GIB},
        body_timeout_s=3,
    ) as server:
        yield server


def upload(server: Served, name: str, content: bytes) -> dict[str, Any]:
    answer = server.ask("POST", f"/v1/datasets?name={name}", content, headers=BINARY)
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json()
    return found


def begin(server: Served, size: int | None, name: str = "x") -> http.client.HTTPConnection:
    place = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=120)
    connection.putrequest("POST", f"/v1/datasets?name={name}")
    connection.putheader("Authorization", f"Bearer {server.key}")
    connection.putheader("Content-Type", "application/octet-stream")
    if size is None:
        connection.putheader("Transfer-Encoding", "chunked")
    else:
        connection.putheader("Content-Length", str(size))
    connection.endheaders()
    return connection


def stream(server: Served, megabytes: int) -> dict[str, Any]:
    connection = begin(server, megabytes * len(PIECE))
    for _ in range(megabytes):
        connection.send(PIECE)
    response = connection.getresponse()
    found: dict[str, Any] = json.loads(response.read())
    connection.close()
    assert response.status == 200, found
    return found


def peak_bytes(server: Served) -> int:
    """The most memory that the server's process has ever had, by the kernel's word."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def stored(server: Served) -> list[str]:
    return sorted(os.listdir(server.home / "server/datasets"))


def two_at_once(server: Served, megabytes: int) -> None:
    found: list[dict[str, Any]] = []
    uploads = [
        threading.Thread(target=lambda: found.append(stream(server, megabytes))) for _ in range(2)
    ]
    for one in uploads:
        one.start()
    for one in uploads:
        one.join()
    digest = hashlib.sha256()
    for _ in range(megabytes):
        digest.update(PIECE)
    assert [one["sha256"] for one in found] == [digest.hexdigest()] * 2
    assert peak_bytes(server) < MOST_RSS
    for one in found:
        assert server.ask("DELETE", f"/v1/datasets/{one['id']}").status == 200


def test_s4_uploads_do_not_take_memory(server: Served) -> None:
    before = peak_bytes(server)
    two_at_once(server, 64)
    assert peak_bytes(server) - before < 64 * MIB, "less than one of them"


@pytest.mark.slow
def test_s4_two_uploads_of_1_gb_at_once_keep_the_server_under_400_mb(server: Served) -> None:
    two_at_once(server, 1024)


def test_s4_what_breaks_off_leaves_nothing(server: Served) -> None:
    before = stored(server)
    for size in (50 * MIB, None):
        connection = begin(server, size)
        piece = PIECE if size else b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
        for _ in range(5):
            connection.send(piece)
        deadline = time.monotonic() + 10
        while stored(server) == before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(stored(server)) == len(before) + 1
        connection.close()
        while stored(server) != before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert stored(server) == before
    assert len(server.ask("GET", "/v1/datasets").json()["datasets"]) == len(before)


def test_f2_who_stops_sending_is_sent_away(server: Served) -> None:
    connection = begin(server, 50 * MIB)
    connection.send(PIECE)
    response = connection.getresponse()
    assert response.status == 408
    assert json.loads(response.read())["error"]["code"] == "too_slow"
    connection.close()


@pytest.mark.parametrize(
    ("path", "size", "headers", "status", "code"),
    [
        ("?name=x", 1025 * MIB, BINARY, 413, "body_too_large"),
        ("", 1, BINARY, 400, "invalid_request"),
        ("?name=", 1, BINARY, 400, "invalid_request"),
        ("?name=" + "x" * 201, 1, BINARY, 400, "invalid_request"),
        ("?name=x", 1, {"Content-Type": "multipart/form-data"}, 415, "unsupported_media_type"),
        ("?name=x", 1, {**BINARY, "Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
    ],
)
def test_r5_what_cannot_be_is_refused_before_it_is_sent(
    server: Served, path: str, size: int, headers: dict[str, str], status: int, code: str
) -> None:
    place = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
    sending = {"Authorization": f"Bearer {server.key}", "Content-Length": str(size), **headers}
    connection.putrequest("POST", f"/v1/datasets{path}")
    for name, value in sending.items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (status, code)
    connection.close()


CSV = b'\xef\xbb\xbfname;n;x;ok\nann;1;2.5;true\n"b;b";2;3;false\n;;;\n'


@pytest.mark.parametrize(
    ("name", "content", "form", "columns", "rows", "first"),
    [
        (
            "t.csv",
            CSV,
            "csv",
            [("name", "text"), ("n", "integer"), ("x", "number"), ("ok", "boolean")],
            3,
            ["ann", "1", "2.5", "true"],
        ),
        (
            "t.jsonl",
            b'{"a": 1, "b": null}\n{"a": 2.5, "c": [1]}\n',
            "jsonl",
            [("a", "number"), ("b", "empty"), ("c", "other")],
            2,
            ["1", "null", "null"],
        ),
        ("t.json", b'[{"a": "x"}]', "json", [("a", "text")], 1, ["x"]),
        ("notes", b"just words\nand more\n", "text", [("line", "text")], 2, ["just words"]),
        ("noise", bytes(range(256)), "unknown", [], None, None),
        ("empty.csv", b"", "csv", [], 0, None),
        ("deep.json", b"[" * 200_000, "unknown", [], None, None),
    ],
)
def test_s4_a_sandbox_says_what_is_in_it(
    server: Served,
    name: str,
    content: bytes,
    form: str,
    columns: list[tuple[str, str]],
    rows: int | None,
    first: list[str] | None,
) -> None:
    dataset = upload(server, name, content)
    path = f"/v1/datasets/{dataset['id']}"
    found = server.ask("GET", f"{path}/description").json()
    assert (found["format"], found["rows"]) == (form, rows), found
    assert [(one["name"], one["type"]) for one in found["columns"]] == columns
    assert (found["sample"][0] if found["sample"] else None) == first
    assert server.ask("GET", f"{path}/description").json() == found
    server.ask("DELETE", path)


def test_s4_mounted_read_only_and_not_taken_away_from_under_a_sandbox(server: Served) -> None:
    dataset = upload(server, "t.csv", b"a,b\n1,2\n")
    assert (dataset["size"], dataset["name"]) == (8, "t.csv")
    asked = {"environment": "base", "inputs": {"data/t.csv": {"dataset": dataset["id"]}}}
    box = "/v1/sandboxes/" + server.ask("POST", "/v1/sandboxes", asked).json()["id"]
    code = (
        "text = open('/data/input/data/t.csv').read()\n"
        "try: open('/data/input/data/t.csv', 'a')\n"
        "except OSError: text += 'read-only'\ntext"
    )
    assert server.ask("POST", f"{box}/runs", {"code": code}).json()["value"] == (
        "'a,b\\n1,2\\nread-only'"
    )
    path = f"/v1/datasets/{dataset['id']}"
    busy: Answer = server.ask("DELETE", path)
    assert (busy.status, busy.json()["error"]["code"]) == (409, "busy")
    server.ask("DELETE", box)
    assert server.ask("DELETE", path).status == 200
    assert server.ask("GET", path).status == 404 and dataset["id"] not in stored(server)


def test_s4_a_quota_holds_for_uploads_under_way_too(server: Served) -> None:
    """Three of 1 GB are promised; the fourth is refused though nothing has arrived."""
    under_way = [begin(server, 1023 * MIB) for _ in range(3)]
    try:
        for one in under_way:
            one.send(PIECE)
        time.sleep(0.3)
        answer = server.ask("GET", "/v1/datasets").json()
        assert answer["datasets"] == []
        refused = begin(server, 1023 * MIB).getresponse()
        assert refused.status == 429
        assert json.loads(refused.read())["error"]["code"] == "quota_exceeded"
    finally:
        for one in under_way:
            one.close()


def test_r3_datasets_outlive_the_server_and_halves_do_not(server: Served) -> None:
    """The last test here: the server is killed amid an upload."""
    dataset = upload(server, "kept", b"1")
    connection = begin(server, 50 * MIB)
    connection.send(PIECE)
    deadline = time.monotonic() + 10
    while len(stored(server)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    server.process.kill()
    server.process.wait()
    connection.close()
    assert len(stored(server)) == 2
    server.restart()
    server.wait_ready()
    assert stored(server) == [dataset["id"]]
    (found,) = server.ask("GET", "/v1/datasets").json()["datasets"]
    assert found == dataset
