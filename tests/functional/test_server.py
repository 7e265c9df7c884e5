"""A3, R5: Belljar over HTTP, a real server on loopback."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar.testing.served import Served, served

FIELDS = {"success", "exit_code", "output", "error", "duration_ms", "execution_id"}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(sandboxes={"pool_size": 2, "build_environments": False}) as server:
        yield server


def error(answer: Any) -> dict[str, Any]:
    """The one shape of an error, and nothing beside it."""
    shown = answer.json()
    assert list(shown) == ["error"]
    assert set(shown["error"]) == {"code", "message", "hint", "retryable"}
    found: dict[str, Any] = shown["error"]
    return found


# -- /execute --------------------------------------------------------------------------------------


def test_a3_execute_answers_these_fields(server: Served) -> None:
    answer = server.execute("import os; print(os.environ['A'])", env_vars={"A": "ä"}, timeout=5)
    assert answer.status == 200
    found = answer.json()
    assert set(found) == FIELDS
    assert (found["success"], found["exit_code"], found["output"]) == (True, 0, "ä\n")
    assert found["error"] == "" and found["duration_ms"] > 0 and len(found["execution_id"]) == 32


def test_a3_what_code_does_wrong_is_no_error_of_http(server: Served) -> None:
    found = server.execute("import sys; print(1); sys.exit('no')").json()
    assert (found["success"], found["exit_code"]) == (False, 1)
    assert (found["output"], found["error"]) == ("1\n", "no")
    late = server.execute("while True: pass", timeout=0.3).json()
    assert late["success"] is False and "out of time" in late["error"]


def test_a3_other_languages(server: Served) -> None:
    assert server.execute("echo $((6 * 7))", language="bash").json()["output"] == "42\n"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"code": "#" * 100_001}, "code_too_large"),
        ({"code": "x", "language": "cobol"}, "unknown_language"),
        ({"code": "x", "timeout": 121}, "limit_exceeded"),
        ({"code": "x", "timeout": -1}, "limit_exceeded"),
        ({"code": "x", "timeout": True}, "invalid_request"),
        ({"code": "x", "timeout": "5"}, "invalid_request"),
        ({"code": "x", "allow_network": True}, "network_refused"),
        ({"code": "x", "allow_network": True, "allowed_domains": ["a.example"]}, "network_refused"),
        ({"code": "x", "allowed_domains": ["a.example"]}, "invalid_request"),
        ({"code": "x", "env_vars": {"LD_PRELOAD": "/x"}}, "invalid_variable"),
        ({"code": "x", "env_vars": {"A": 1}}, "invalid_request"),
        ({"code": 5}, "invalid_request"),
        ({}, "invalid_request"),
        ([], "invalid_request"),
        (None, "invalid_request"),
    ],
)
def test_r5_what_cannot_be_is_a_400(server: Served, body: Any, code: str) -> None:
    content = b"null" if body is None else body
    answer = server.ask("POST", "/execute", content)
    assert answer.status == 400, answer
    found = error(answer)
    assert found["code"] == code and found["message"] and not found["retryable"]


def test_a_field_that_does_not_exist_is_named_with_the_one_that_was_meant(server: Served) -> None:
    found = error(server.execute("print(1)", timout=3))
    assert "timout" in found["message"] and "timeout" in found["hint"]


def test_every_error_has_one_shape(server: Served) -> None:
    assert error(server.ask("GET", "/nothing"))["code"] == "not_found"
    assert error(server.ask("GET", "/execute"))["code"] == "method_not_allowed"
    assert error(server.ask("POST", "/execute", b"{"))["code"] == "invalid_request"
    wrong = server.ask("POST", "/execute", b"{}", headers={"Content-Type": "text/plain"})
    assert (wrong.status, error(wrong)["code"]) == (415, "unsupported_media_type")


# -- who may ---------------------------------------------------------------------------------------


def test_without_a_key_only_health_is_open(server: Served) -> None:
    assert server.ask("GET", "/health", key=None).status == 200
    assert server.ask("GET", "/ready", key=None).status == 200
    for method, path in (("POST", "/execute"), ("GET", "/metrics"), ("GET", "/openapi.json")):
        answer = server.ask(method, path, key=None)
        assert (answer.status, error(answer)["code"]) == (401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert server.ask("GET", "/nothing", key=None).status == 401
    assert server.ask("POST", "/execute", {"code": "1"}, key="x" * 43).status == 401


def test_health_tells_engines_and_pools(server: Served) -> None:
    found = server.ask("GET", "/health").json()
    assert found["status"] == "ok" and "jail" in found["engines"]
    assert found["pools"]["jail"]["base"] >= 0


def test_metrics_count_runs(server: Served) -> None:
    server.execute("print(1)")
    text = server.ask("GET", "/metrics").content.decode()
    assert 'belljar_runs_total{engine="jail",language="python",status="ok",tenant="local"}' in text
    assert 'route="/execute"' in text


def test_the_printed_link_signs_in_once_and_leaves_no_token(server: Served) -> None:
    first = server.ask("GET", f"/?token={server.key}", key=None)
    assert (first.status, first.headers["Location"]) == (303, "/")
    cookie = first.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert server.key not in cookie
    session = {"Cookie": cookie.partition(";")[0]}
    assert server.ask("GET", "/", key=None, headers=session).status == 200
    ran = server.ask("POST", "/execute", {"code": "print(1)"}, key=None, headers=session)
    assert ran.status == 200
    assert server.ask("GET", f"/?token={server.key}", key=None).status == 401
    assert server.ask("GET", "/?token=nonsense", key=None).status == 401
    assert server.key not in server.log.read_text()


@pytest.mark.parametrize(
    ("path", "limit", "accept"),
    [
        ("/execute", "timeout", "*/*"),
        ("/v1/runs", "timeout_s", "*/*"),
        ("/v1/runs", "timeout_s", "text/event-stream"),
    ],
)
def test_a_client_that_goes_takes_its_run_along(
    server: Served, path: str, limit: str, accept: str
) -> None:
    host = server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host)
    body = json.dumps({"code": "import time; time.sleep(60)", limit: 60})
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    connection.request("POST", path, body, headers | {"Accept": accept})
    wait_for(lambda: server.ask("GET", "/health").json()["running"], 1)
    assert isinstance(connection.sock, socket.socket)
    connection.close()
    wait_for(lambda: server.ask("GET", "/health").json()["running"], 0)
    assert "Traceback" not in server.log.read_text()


def wait_for(look: Any, wanted: object, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while (seen := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert seen == wanted


# -- /v1 -------------------------------------------------------------------------------------------


def test_a3_a_run_with_every_kind_of_content(server: Served) -> None:
    code = (
        "import sys\nb = open('/data/input/b', 'rb').read()\n"
        "print(sys.stdin.read(), b, open('t').read())\n"
        "open('/data/output/x', 'wb').write(b'\\0\\xff')"
    )
    body = {
        "code": code,
        "stdin": "in",
        "inputs": {"b": {"base64": "AAEC"}},
        "files": {"t": "text"},
        "timeout_s": 5,
    }
    found = server.ask("POST", "/v1/runs", body).json()
    assert (found["status"], found["stdout"]) == ("ok", "in b'\\x00\\x01\\x02' text\n")
    files = {file["name"]: file["content_base64"] for file in found["files"]}
    assert files["x"] == "AP8="
    assert found["engine"] == "jail" and found["usage"]["peak_memory_bytes"] > 0


def test_a3_events_while_the_code_runs(server: Served) -> None:
    code = "import time\nprint('one', flush=True)\ntime.sleep(0.5)\nprint('two')"
    events = streamed(server, {"code": code})
    names = [name for name, _ in events]
    assert set(names) == {"output", "usage", "end"} and names[-1] == "end"
    printed = [data["text"] for name, data in events if name == "output"]
    assert printed == ["one\n", "two\n"], "the first line came while it slept"
    assert events[-1][1]["stdout"] == "one\ntwo\n"


def test_a3_a_refusal_is_no_stream(server: Served) -> None:
    headers = {"Accept": "text/event-stream"}
    answer = server.ask("POST", "/v1/runs", {"code": "x", "language": "cobol"}, headers=headers)
    assert (answer.status, error(answer)["code"]) == (400, "unknown_language")


def streamed(server: Served, body: Any) -> list[tuple[str, Any]]:
    answer = server.ask("POST", "/v1/runs", body, headers={"Accept": "text/event-stream"})
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    found = []
    for event in answer.content.decode().split("\n\n")[:-1]:
        if not event.startswith(":"):
            name, data = event.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_p2_the_trail_of_an_execution(server: Served) -> None:
    ran = server.execute("print('trailed')").json()
    found = server.ask("GET", f"/v1/trail/{ran['execution_id']}").json()
    assert found["status"] == "ok"
    assert (found["attempt"]["door"], found["attempt"]["tenant"]) == ("http", "local")
    assert server.execute("x", language="cobol").status == 400
    newest = server.ask("GET", "/v1/trail?limit=2").json()["lines"]
    assert [line["status"] for line in newest] == ["refused", "ok"]
    assert server.ask("GET", f"/v1/trail/{'0' * 32}").status == 404


def test_what_there_is_to_choose_from(server: Served) -> None:
    engines = server.ask("GET", "/v1/engines").json()["engines"]
    assert {"jail", "wasm"} <= {engine["name"] for engine in engines}
    environments = server.ask("GET", "/v1/environments").json()["environments"]
    assert environments[0]["name"] == "base" and environments[0]["ready"]
    used = server.ask("GET", "/v1/usage").json()
    assert used["tenant"] == "local" and used["runs"] > 0 and used["quotas"]["queue"] == 100


# -- starting --------------------------------------------------------------------------------------


def test_f2_other_addresses_need_a_key(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "belljar.cli.main", "serve", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(
        argv,
        env=os.environ | {"BELLJAR_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 125 and done.stdout == ""
    assert "there is no key" in done.stderr and "belljar keys add" in done.stderr


def test_a1_nothing_of_the_server_is_loaded_without_it() -> None:
    """`import belljar` and a run must not pay for it, nor need it."""
    code = (
        "import sys, belljar\nbelljar.run('pass')\n"
        "heavy = {'fastapi', 'uvicorn', 'pydantic', 'sqlalchemy', 'structlog', 'starlette'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
