"""A server whose disk and files misbehave says so, goes on when it can, and ends as it should."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from belljar.client.connection import Connection, UnencryptedKey
from belljar.server import keys, surveys
from belljar.server.datasets import _full
from belljar.server.errors import OF_HTTP, ApiError, answer
from belljar.server.state import State
from belljar.server.surveys import Surveys
from belljar.settings import Settings
from belljar.testing.served import Served, served

SMALL = {"pool_size": 1, "build_environments": False, "engines": ["jail"]}
BINARY = {"Content-Type": "application/octet-stream"}
PLENTY_S = 60.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(sandboxes=SMALL) as server:
        yield server


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PLENTY_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def upload(server: Served) -> Any:
    return server.ask("POST", "/v1/datasets?name=x.csv", b"a,b\n1,2\n", headers=BINARY)


def test_s4_datasets_can_be_added_after_their_folder_was_deleted(server: Served) -> None:
    lost = upload(server).json()["id"]
    shutil.rmtree(server.home / "server" / "datasets")
    assert upload(server).status == 200
    asked = {"environment": "base", "inputs": {"x.csv": {"dataset": lost}}}
    for found in (
        server.ask("POST", "/v1/sandboxes", asked),
        server.ask("GET", f"/v1/datasets/{lost}/description"),
    ):
        assert (found.status, found.json()["error"]["code"]) == (404, "not_found")
        assert "upload it again" in found.json()["error"]["hint"]
    assert server.ask("DELETE", f"/v1/datasets/{lost}").status == 200
    assert server.ask("GET", f"/v1/datasets/{lost}").status == 404
    assert "Traceback" not in server.log.read_text()


def test_a_parser_that_was_killed_costs_nobody_a_request(server: Served) -> None:
    """Its death was told as the caller's mistake, and counted as one of its runs."""

    def parsers() -> list[int]:
        found = Path(f"/proc/{server.process.pid}/task").glob("*/children")
        pids = [int(pid) for file in found for pid in file.read_text().split()]
        return [p for p in pids if b"parser_process" in Path(f"/proc/{p}/cmdline").read_bytes()]

    large = {"code": "print(5)", "stdin": "x" * MIB}
    assert server.ask("POST", "/v1/runs", large).status == 200
    for _ in range(2):
        assert parsers()
        for pid in parsers():
            os.kill(pid, signal.SIGKILL)
        runs = server.ask("GET", "/v1/usage").json()["runs"]
        found = server.ask("POST", "/v1/runs", large)
        assert (found.status, found.json()["stdout"]) == (200, "5\n")
        assert server.ask("GET", "/v1/usage").json()["runs"] == runs + 1


def test_s4_an_upload_whose_folder_is_lost_meanwhile_can_be_tried_again(server: Served) -> None:
    """It was a 500, as if nobody knew what happened."""
    folder = server.home / "server" / "datasets"
    host, _, port = server.url.removeprefix("http://").partition(":")
    with contextlib.closing(HTTPConnection(host, int(port), timeout=PLENTY_S)) as connection:
        connection.putrequest("POST", "/v1/datasets?name=x.csv")
        for name, value in {**BINARY, "Authorization": f"Bearer {server.key}"}.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(3 << 20))
        connection.endheaders()
        connection.send(bytes(2 << 20))
        until(lambda: any(path.name.startswith(".") for path in folder.iterdir()))
        shutil.rmtree(folder)
        connection.send(bytes(1 << 20))
        answer = connection.getresponse()
        error = json.loads(answer.read())["error"]
    assert (answer.status, error["code"], error["retryable"]) == (503, "storage_unavailable", True)
    assert answer.headers["Retry-After"] and str(server.home) not in error["message"]
    assert upload(server).status == 200
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_s4_a_second_server_in_one_home_is_refused_and_harms_no_upload(server: Served) -> None:
    """It removed what the first one was about to have uploaded."""
    folder = server.home / "server" / "datasets"
    host, _, port = server.url.removeprefix("http://").partition(":")
    with contextlib.closing(HTTPConnection(host, int(port), timeout=PLENTY_S)) as connection:
        connection.putrequest("POST", "/v1/datasets?name=x.csv")
        for name, value in {**BINARY, "Authorization": f"Bearer {server.key}"}.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(3 << 20))
        connection.endheaders()
        connection.send(bytes(2 << 20))
        until(lambda: any(path.name.startswith(".") for path in folder.iterdir()))
        second = subprocess.run(
            [sys.executable, "-m", "belljar.cli.main", "serve", "--port", "0"],
            env={**os.environ, "BELLJAR_HOME": str(server.home)},
            capture_output=True,
            text=True,
            timeout=PLENTY_S,
        )
        connection.send(bytes(1 << 20))
        assert connection.getresponse().status == 200
    assert second.returncode != 0 and "http://" not in second.stdout
    assert "another server uses this BELLJAR_HOME" in second.stderr
    assert "a home of its own" in second.stderr and "Traceback" not in second.stderr


def test_r3_a_server_that_was_killed_leaves_its_home_to_the_next(tmp_path: Path) -> None:
    with served(sandboxes=SMALL) as first:
        assert first.execute("print(1)").status == 200
        assert first.ask("POST", "/v1/sandboxes", {"environment": "base"}).status == 200
        first.process.kill()
        first.process.wait(PLENTY_S)
        first.restart()
        first.wait_ready()
        assert first.execute("print(1)").status == 200


def test_what_may_succeed_later_says_when() -> None:
    with pytest.raises(ApiError) as full:
        _full()
    assert answer(full.value, ran=False).headers["Retry-After"] == "60"
    for code, kind in OF_HTTP.items():
        if kind.status in (503, 507):
            assert answer(ApiError(code, ""), ran=False).headers["Retry-After"], code


def test_f2_who_ends_a_server_with_a_full_disk_is_told(tmp_path: Path) -> None:
    """By its exit status and a line of the log, not by a traceback."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with served(keys=True, state=f"sqlite:///{disk}/state.db", sandboxes=SMALL) as server:
            with (disk / "filler").open("wb") as file, pytest.raises(OSError, match="space"):
                while True:
                    os.write(file.fileno(), bytes(4096))
            # What it costs cannot be written down.
            assert server.execute("print(sum(range(10**7)))").status == 200
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PLENTY_S) == 1
            log = server.log.read_text()
            assert "not ended well" in log and "Traceback" not in log
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_file_of_keys_that_others_could_read_is_tightened(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    url = f"sqlite:///{path}"
    State(url).close()
    path.chmod(0o644)
    kept = tmp_path / "state.db-wal"
    kept.touch(mode=0o644)
    kept.chmod(0o644)
    state = State(url)
    state.add(keys.make("a", now=0.0)[0])
    modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in tmp_path.iterdir()}
    state.close()
    assert set(modes.values()) == {0o600}, modes


def test_health_looks_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def look(_: Settings) -> list[dict[str, Any]]:
        looked.append(1)
        time.sleep(0.05)
        if len(looked) == 1:
            raise OSError("once")
        return [{"name": "x"}]

    monkeypatch.setattr(surveys, "_engines", look)

    async def play() -> None:
        found = Surveys(Settings())
        first = await asyncio.gather(*(found.engines() for _ in range(50)), return_exceptions=True)
        assert all(isinstance(one, OSError) for one in first)
        asking = [asyncio.create_task(found.engines()) for _ in range(50)]
        await asyncio.sleep(0)
        asking[0].cancel()  # whoever was first has gone
        assert await asyncio.gather(*asking[1:]) == [[{"name": "x"}]] * 49

    asyncio.run(play())
    assert len(looked) == 2


@pytest.mark.parametrize(
    ("url", "key", "warned"),
    [
        ("http://192.0.2.1:8321", "blj_x", True),
        ("http://belljar.example", "blj_x", True),
        ("https://belljar.example", "blj_x", False),
        ("http://belljar.example", "", False),
        ("http://127.0.0.1:8321", "blj_x", False),
        ("http://localhost:8321", "blj_x", False),
        ("http://[::1]:8321", "blj_x", False),
    ],
)
def test_a_key_over_plain_http_to_another_machine_is_warned_of(
    url: str, key: str, warned: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Connection(url, key)
    assert [one.category for one in caught] == ([UnencryptedKey] if warned else [])
    assert key not in "".join(str(one.message) for one in caught) or not key


def test_the_command_line_warns_of_it_in_one_line() -> None:
    argv = [sys.executable, "-m", "belljar.cli.main", "run", "--code", "1"]
    away = ["--url", "http://192.0.2.1:1", "--key", "blj_x"]
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"}
    done = subprocess.run(argv + away, env=os.environ | nowhere, capture_output=True, text=True)
    line = done.stderr.splitlines()[0]
    assert line.startswith("belljar: the key is sent to 192.0.2.1 over plain http")


# -- standard input --------------------------------------------------------------------------------


def make(server: Served) -> str:
    made = server.ask("POST", "/v1/sandboxes", {"environment": "base"}).json()
    return f"/v1/sandboxes/{made['id']}"


def test_r4_standard_input_that_nobody_reads_is_refused_and_not_dropped(server: Served) -> None:
    box = make(server)
    program = {"program": ["sleep", "100"]}
    begun = server.ask("POST", f"{box}/processes", program).json()
    process = f"{box}/processes/{begun['process_id']}"
    taken = 0
    piece = "x" * MIB
    while (told := server.ask("POST", f"{process}/stdin", {"data": piece})).status == 200:
        taken += len(piece)
        assert taken <= 16 * MIB, "somewhere it is dropped"
    error = told.json()["error"]
    assert (told.status, error["code"], error["retryable"]) == (409, "busy", True)
    assert server.ask("DELETE", box).status == 200


@pytest.mark.parametrize("size", [1, 3 * MIB, 14 * MIB])
def test_r4_all_of_a_long_standard_input_arrives(server: Served, size: int) -> None:
    """Also at a program that takes its time: what was beyond 8 MiB was cut off."""
    script = "import sys, time; time.sleep(1); print(len(sys.stdin.read()))"
    box = make(server)
    body = {"program": ["python3", "-c", script], "stdin": "x" * size}
    assert server.ask("POST", f"{box}/exec", body).json()["stdout"] == f"{size}\n"
    body = {"code": script, "stdin": "x" * size}
    assert server.ask("POST", f"{box}/runs", body).json()["stdout"] == f"{size}\n"
    # Who reads nothing of it ends all the same, and is timed out if it does not.
    body = {"code": "print(1)", "stdin": "x" * size}
    assert server.ask("POST", f"{box}/runs", body).json()["stdout"] == "1\n"
    body = {"program": ["sleep", "100"], "stdin": "x" * size, "timeout_s": 1}
    assert server.ask("POST", f"{box}/exec", body).json()["timed_out"]
    assert server.ask("DELETE", box).status == 200


def test_r4_a_client_waits_until_its_input_is_read(server: Served) -> None:
    from belljar.kept.sync import Sandbox

    with Sandbox(url=server.url, key=server.key, environment="base") as box:
        script = "import sys, time; time.sleep(1); print(len(sys.stdin.read()))"
        process = box.start(["python3", "-c", script])
        process.write(b"x" * (20 * MIB))
        process.close_stdin()
        assert process.wait().stdout == f"{20 * MIB}\n"
