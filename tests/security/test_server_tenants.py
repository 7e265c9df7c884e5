"""S4: no tenant can see, guess or touch what is another's, by any route."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from belljar.server.app import description
from belljar.testing.served import Answer, Served, served

BINARY = {"Content-Type": "application/octet-stream"}
SECRET = "what-only-ann-knows"
BODIES: dict[str, Any] = {
    "set_network": {"network": []},
    "make_sandbox": {},
    "run_in_sandbox": {"code": "1"},
    "extend": {"seconds": 1},
    "rollback": {"run_id": 1},
    "fork": {},
    "install": {"packages": ["humanize"]},
    "exec": {"program": ["id"]},
    "start_process": {"program": ["id"]},
    "write_stdin": {"data": "x"},
    "signal_process": {"number": 9},
    "resize_process": {"rows": 9, "columns": 9},
}


class Ann:
    """What one tenant has."""

    def __init__(self, server: Served) -> None:
        self.server = server
        made = self.ask("POST", "/v1/sandboxes", {"environment": "base", "max_runs": 1000})
        assert made.status == 200, made
        self.sandbox = made.json()["id"]
        self.box = f"/v1/sandboxes/{self.sandbox}"
        self.ask("POST", f"{self.box}/runs", {"code": f"x = {SECRET!r}"})
        self.ask("PUT", f"{self.box}/files/content?path=f", SECRET.encode(), headers=BINARY)
        started = self.ask("POST", f"{self.box}/processes", {"program": ["sleep", "1000"]})
        self.process = started.json()["process_id"]
        path = f"/v1/datasets?name={SECRET}.csv"
        self.dataset = self.ask("POST", path, SECRET.encode(), headers=BINARY).json()["id"]
        ran = self.ask("POST", "/execute", {"code": "print(1)"}).json()
        self.execution = ran["execution_id"]

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        return self.server.ask(method, path, body, **more)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    settings = {"pool_size": 1, "build_environments": False, "trail_text": True}
    with served(keys=True, sandboxes=settings) as server:
        yield server


@pytest.fixture(scope="module")
def ann(server: Served) -> Ann:
    return Ann(server)


@pytest.fixture(scope="module")
def eve(server: Served, ann: Ann) -> str:
    """The key of another tenant, who is no operator."""
    key = server.belljar("keys", "add", "eve").strip()
    until(ann, key, "/v1/usage", 200)
    return key


def until(ann: Ann, key: str, path: str, status: int) -> None:
    """A server reads its keys anew every second."""
    deadline = time.monotonic() + 20
    while ann.ask("GET", path, key=key).status != status and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ann.ask("GET", path, key=key).status == status


def routes() -> list[tuple[str, str, str]]:
    """(method, path, operation) of every route that names a thing."""
    return [
        (method.upper(), path, operation["operationId"])
        for path, operations in description()["paths"].items()
        for method, operation in operations.items()
        if "{" in path
    ]


def filled(path: str, **names: Any) -> str:
    path = re.sub(r"{(\w+)}", lambda match: str(names[match[1]]), path)
    if "/files" not in path:
        return path
    return f"{path}?path=f&to=g" if path.endswith("/move") else f"{path}?path=f"


@pytest.mark.parametrize(("method", "path", "operation"), routes())
def test_s4_anothers_thing_is_answered_as_one_that_never_was(
    ann: Ann, eve: str, method: str, path: str, operation: str
) -> None:
    """Word for word, so that nobody learns which ids there are."""
    own = {
        "sandbox_id": ann.sandbox,
        "dataset_id": ann.dataset,
        "process_id": ann.process,
        "execution_id": ann.execution,
    }
    unknown = dict.fromkeys(own, "0" * 32) | {"process_id": ann.process}
    body: Any = BODIES.get(operation)
    headers = {}
    if method == "PUT" and body is None:
        body, headers = b"eve was here", BINARY
    answers = []
    for names in (own, unknown):
        names = {name: names.get(name, "0" * 32) for name in re.findall(r"{(\w+)}", path)}
        found = ann.ask(method, filled(path, **names), body, key=eve, headers=headers)
        answers.append((found.status, found.content))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404, answers
    assert SECRET.encode() not in answers[0][1]


def test_s4_nothing_was_touched(ann: Ann, eve: str) -> None:
    """After all of the above: what is Ann's is as it was."""
    assert ann.ask("POST", f"{ann.box}/runs", {"code": "x"}).json()["value"] == repr(SECRET)
    assert ann.ask("GET", f"{ann.box}/files/content?path=f").content == SECRET.encode()
    assert ann.ask("GET", f"{ann.box}/processes/{ann.process}").json()["running"] is True
    assert ann.ask("GET", f"/v1/datasets/{ann.dataset}").status == 200


def test_s4_lists_hold_what_is_ones_own(ann: Ann, eve: str) -> None:
    assert ann.ask("GET", "/v1/sandboxes", key=eve).json() == {"sandboxes": []}
    assert ann.ask("GET", "/v1/datasets", key=eve).json() == {"datasets": []}
    trail = ann.ask("GET", "/v1/trail", key=eve)
    assert trail.status == 200 and trail.json()["lines"] == []
    usage = ann.ask("GET", "/v1/usage", key=eve).json()
    assert (usage["tenant"], usage["runs"]) == ("eve", 0)
    assert ann.ask("GET", "/metrics", key=eve).status == 403


def test_s4_anothers_dataset_cannot_be_mounted(ann: Ann, eve: str) -> None:
    for inputs in (
        {"x": {"dataset": ann.dataset}},
        {"x": {"dataset": f"../datasets/{ann.dataset}"}},
        {"x": {"dataset": f"{ann.dataset}/"}},
    ):
        asked = {"environment": "base", "inputs": inputs}
        found = ann.ask("POST", "/v1/sandboxes", asked, key=eve)
        assert (found.status, found.json()["error"]["code"]) == (404, "not_found")


def test_s4_a_path_cannot_be_smuggled_into_an_id(ann: Ann, eve: str) -> None:
    for path in (
        f"/v1/sandboxes/%2e%2e%2f{ann.sandbox}",
        f"/v1/sandboxes/{ann.sandbox}%00",
        f"/v1/sandboxes/{ann.sandbox.upper()}",
        f"/v1/datasets/..%2f{ann.dataset}",
        f"/v1/datasets/{ann.dataset}%2fcontent",
        f"/v1//sandboxes/{ann.sandbox}",
    ):
        assert ann.ask("GET", path, key=eve).status == 404
        assert SECRET.encode() not in ann.ask("GET", path, key=eve).content


def test_s4_a_sandbox_of_ones_own_does_not_lead_to_anothers_processes(ann: Ann, eve: str) -> None:
    made = ann.ask("POST", "/v1/sandboxes", {"environment": "base"}, key=eve).json()["id"]
    box = f"/v1/sandboxes/{made}"
    assert ann.ask("GET", f"{box}/processes/{ann.process}", key=eve).status == 404
    ran = ann.ask("POST", f"{box}/runs", {"code": "'x' in globals()"}, key=eve)
    assert ran.json()["value"] == "False"
    assert ann.ask("GET", f"{box}/files/content?path=f", key=eve).status == 404
    seen = ann.ask("GET", "/v1/trail", key=eve).content
    assert SECRET.encode() not in seen and made.encode() in seen
    ann.ask("DELETE", box, key=eve)
    ended, other = ann.ask("GET", box, key=eve), ann.ask("GET", box)
    assert (ended.status, other.status) == (410, 404), "nor when it has ended"


def test_s4_a_tenants_trail_says_nothing_about_how_much_others_do(ann: Ann, eve: str) -> None:
    """The number of a line is that of the whole trail: two of them told what came between."""
    for number in range(3):
        assert ann.ask("POST", "/execute", {"code": f"print({number})"}, key=eve).status == 200
        assert ann.ask("POST", "/execute", {"code": "1"}).status == 200
    seen = ann.ask("GET", "/v1/trail?limit=500", key=eve).json()["lines"]
    ids = [line["attempt"]["id"] for line in seen]
    one = ann.ask("GET", f"/v1/trail/{ids[0]}", key=eve).json()
    whole = ann.ask("GET", f"/v1/trail/{ids[0]}").json()  # an operator's key
    numbers = {whole[part]["seq"] for part in ("attempt", "end")}
    assert len(numbers) == 2
    for line in (one, *seen):
        for part in (line["attempt"], line["end"]):
            assert not {"seq", "owner", "attempt"} & set(part)
            assert not numbers & {value for value in part.values() if isinstance(value, int)}
    found, before, cursors = [], "", set()
    while page := ann.ask("GET", f"/v1/trail?limit=2&before={before}", key=eve).json():
        if not page["lines"]:
            break
        found += [line["attempt"]["id"] for line in page["lines"]]
        before = page["next"]
        cursors.add(before)
    assert found == ids and page["next"] == ""
    again = ann.ask("GET", "/v1/trail?limit=2", key=eve).json()["next"]
    assert again not in cursors, "nothing can be compared"
    for wrong in ("before=abc", f"before={again[:-2]}AA", "before_seq=100"):
        refused = ann.ask("GET", f"/v1/trail?{wrong}", key=eve)
        assert refused.status == (403 if "seq" in wrong else 400)
        assert ann.ask("GET", f"/v1/trail/egress?{wrong}", key=eve).status == refused.status
    for older in (f"before_seq={whole['attempt']['seq']}", f"before={again}"):
        lines = ann.ask("GET", f"/v1/trail?{older}").json()["lines"]
        assert lines and all(one["attempt"]["seq"] < whole["attempt"]["seq"] for one in lines)


def test_s4_a_key_that_was_removed_opens_nothing_and_its_socket_closes(
    ann: Ann, server: Served
) -> None:
    key = server.belljar("keys", "add", "tester").strip()  # a second key of Ann's own tenant
    until(ann, key, ann.box, 200)
    url = f"{server.url.replace('http', 'ws')}{ann.box}/socket"

    def dial(key: str) -> Any:
        return connect(url, additional_headers={"Authorization": f"Bearer {key}"}, proxy=None)

    with dial(key) as socket:
        socket.send(json.dumps({"type": "ping"}))
        assert json.loads(socket.recv(10))["type"] == "pong"
        server.belljar("keys", "remove", key.split("_")[1])
        until(ann, key, ann.box, 401)
        with pytest.raises(Exception, match="1008"):  # by itself, or with the next word
            socket.send(json.dumps({"type": "ping"}))
            socket.recv(10)
    with pytest.raises(InvalidStatus):
        dial(key)
