"""Kept sandboxes over HTTP: a real server on loopback (S1-S6, L6, F2)."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from belljar.client.results import printed as printed_bytes
from belljar.errors import LimitExceeded
from belljar.kept.processes import Process
from belljar.server import programs, running
from belljar.server.errors import ApiError
from belljar.server.gate import Visit, visit_of
from belljar.server.routes.files import disposition
from belljar.server.routes.processes import start_program
from belljar.server.schemas_kept import StartRequest
from belljar.server.server import Server
from belljar.server.settings import ServerSettings
from belljar.server.steps import Step
from belljar.server.tenants import Quotas, Tenant
from belljar.testing.served import Answer, Served, served

BINARY = {"Content-Type": "application/octet-stream"}
EVENTS = {"Accept": "text/event-stream"}
FOR_EVER = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.05)"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        keys=True,
        sandboxes={"pool_size": 2, "build_environments": False},
        quotas={"sandboxes": 4, "memory_bytes": 3 << 30},
        sandbox_idle_s=100,
        sandbox_lifetime_s=1000,
    ) as server:
        yield server


class Box:
    """A sandbox by its routes."""

    def __init__(self, server: Served, **options: Any) -> None:
        self.server = server
        made = server.ask("POST", "/v1/sandboxes", {"environment": "base", **options})
        assert made.status == 200, made
        self.id: str = made.json()["id"]

    def ask(self, method: str, below: str = "", body: Any = None, **more: Any) -> Answer:
        return self.server.ask(method, f"/v1/sandboxes/{self.id}{below}", body, **more)

    def run(self, code: str, **more: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/runs", {"code": code, **more})
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture(scope="module")
def shared(server: Served) -> Box:
    return Box(server, max_runs=1000)


@contextmanager
def made(server: Served, **options: Any) -> Iterator[Box]:
    box = Box(server, **options)
    try:
        yield box
    finally:
        box.ask("DELETE")


def code_of(answer: Answer) -> str:
    shown = answer.json()
    assert list(shown) == ["error"]
    assert set(shown["error"]) == {"code", "message", "hint", "retryable"}
    return str(shown["error"]["code"])


def events(answer: Answer) -> list[tuple[str, dict[str, Any]]]:
    assert answer.headers["content-type"].startswith("text/event-stream"), answer
    found = []
    for block in answer.content.decode().split("\n\n"):
        if block and not block.startswith(":"):
            name, data = block.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@contextmanager
def sent(
    server: Served, path: str, body: Any, **headers: str
) -> Iterator[http.client.HTTPConnection]:
    """A request whose answer nobody has to wait for."""
    place = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
    sending = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body), {**sending, **headers})
    try:
        yield connection
    finally:
        connection.close()


def until(look: Callable[[], Any], within_s: float = 15.0) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found
    return found


# -- life ------------------------------------------------------------------------------------------


def test_s1_made_listed_used_and_ended(server: Served) -> None:
    with made(server, env={"A": "1"}, files={"f/x": "file"}, max_runs=5) as box:
        shown = box.ask("GET").json()
        assert (shown["runs"], shown["max_runs"], shown["engine"]) == (0, 5, "jail")
        assert len(box.id) == 32 and int(box.id, 16)
        box.run("import os; x = [os.environ['A'], open('f/x').read()]")
        assert box.run("x")["value"] == "['1', 'file']"
        listed = server.ask("GET", "/v1/sandboxes").json()["sandboxes"]
        assert box.id in [one["id"] for one in listed]
        assert box.ask("GET").json()["checkpoints"] == [1, 2]
    assert (box.ask("GET").status, code_of(box.ask("POST", "/runs", {"code": "1"}))) == (
        410,
        "sandbox_ended",
    )
    assert server.ask("GET", "/v1/sandboxes/" + "0" * 32).status == 404


def test_i2_a_text_among_the_inputs_is_content_and_never_a_path(server: Served) -> None:
    with made(server, inputs={"x": "/etc/passwd", "y": {"base64": "/w=="}}) as box:
        seen = box.run("open('/data/input/x').read(), open('/data/input/y', 'rb').read()")
        assert seen["value"] == "('/etc/passwd', b'\\xff')"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"idle_s": 101}, "limit_exceeded"),
        ({"lifetime_s": 1001}, "limit_exceeded"),
        ({"processes": 1 << 40}, "limit_exceeded"),
        ({"max_runs": 0}, "invalid_request"),
        ({"idle_s": -1}, "invalid_request"),
        ({"checkpoints": 1000}, "invalid_request"),
        ({"engine": "none"}, "unknown_engine"),
        ({"packages": ["-e ."]}, "package_refused"),
        ({"inputs": {"../x": ""}}, "invalid_file_name"),
        ({"inputs": {"x": {"dataset": "../../state.db"}}}, "not_found"),
        ({"inputs": {"x": {"path": "/etc"}}}, "invalid_request"),
        ({"files": {"x": {"base64": "?"}}}, "invalid_request"),
        ({"caller": {}}, "invalid_request"),
        ({"when_busy": "perhaps"}, "invalid_request"),
    ],
)
def test_r5_what_cannot_be_is_refused(server: Served, options: Any, code: str) -> None:
    answer = server.ask("POST", "/v1/sandboxes", {"environment": "base", **options})
    assert (answer.status, code_of(answer)) == (404 if code == "not_found" else 400, code)


def test_s1_an_idle_time_and_a_life_time_hold(server: Served) -> None:
    with made(server, idle_s=0.5) as idle, made(server, lifetime_s=0.5) as old:
        time.sleep(1.2)
        for box, why in ((idle, "nothing was asked"), (old, "lived")):
            answer = box.ask("GET")
            assert answer.status == 410 and why in answer.json()["error"]["message"]


def test_s4_quotas_of_sandboxes_and_of_their_memory(server: Served, shared: Box) -> None:
    box = Box(server, memory_bytes=1 << 30)
    large = server.ask("POST", "/v1/sandboxes", {"environment": "base", "memory_bytes": 2 << 30})
    assert (large.status, code_of(large)) == (429, "quota_exceeded")
    assert int(large.headers["Retry-After"]) > 0
    forked = box.ask("POST", "/fork", {"count": 3})
    assert (forked.status, code_of(forked)) == (429, "quota_exceeded")
    (branch,) = box.ask("POST", "/fork", {}).json()["sandboxes"]
    assert branch["id"] != box.id
    server.ask("DELETE", f"/v1/sandboxes/{branch['id']}")
    box.ask("DELETE")
    with made(server, memory_bytes=2 << 30):
        pass  # what was given back can be had again


def test_s4_a_sandbox_counts_until_its_branches_have_ended(server: Served, shared: Box) -> None:
    """Its walls stand until then, with all that was written inside them."""
    box = Box(server, memory_bytes=256 << 20)
    for _ in range(2):  # an heir after the other
        (branch,) = box.ask("POST", "/fork", {}).json()["sandboxes"]
        assert box.ask("DELETE").status == 200
        box.id = branch["id"]
    refused = box.ask("POST", "/fork", {})
    assert (refused.status, code_of(refused)) == (429, "quota_exceeded")
    assert "branches" in refused.json()["error"]["hint"]
    assert box.ask("DELETE").status == 200
    with made(server, memory_bytes=2 << 30):
        pass  # all of it was given back


def test_s4_what_ends_while_it_is_made_takes_nothing_along(server: Served, shared: Box) -> None:
    """Sandboxes and branches whose time is over before anybody is told of them."""
    statuses = set()
    for round_ in range(60):
        options = {"environment": "base", "memory_bytes": 512 << 20, "checkpoints": 0}
        answer = server.ask(
            "POST", "/v1/sandboxes", {**options, "idle_s": (0.015, 0.02, 0.025)[round_ % 3]}
        )
        if answer.status == 200:
            path = f"/v1/sandboxes/{answer.json()['id']}/fork"
            answer = server.ask("POST", path, {"count": 2})
        assert answer.status in (200, 410, 429), answer.content
        statuses.add(answer.status)
    assert 410 in statuses
    deadline = time.monotonic() + 30
    while (answer := server.ask("POST", "/v1/sandboxes", {"memory_bytes": 2 << 30})).status != 200:
        assert time.monotonic() < deadline, answer.content  # all of it is given back
        time.sleep(0.1)
    assert server.ask("DELETE", f"/v1/sandboxes/{answer.json()['id']}").status == 200


LONG_NAMES = """
import os
at = b"/workspace/long"
os.mkdir(at)
for _ in range(14):
    at += b"/" + b"\\xff" * 200
    os.mkdir(at)
for n in range(500):
    open(at + b"/" + b"\\xff" * 200 + b"%d" % n, "wb").close()
"""


def test_f2_a_list_of_long_names_is_bounded_and_told_in_pages(server: Served, shared: Box) -> None:
    """Each takes forty kilobytes of JSON."""
    assert shared.run(LONG_NAMES)["status"] == "ok"
    listed = shared.ask("GET", "/files?path=long&depth=64")
    assert (listed.status, code_of(listed)) == (400, "sandbox_file_too_many")
    assert "text/event-stream" in listed.json()["error"]["hint"]
    told = shared.ask("GET", "/files?path=long&depth=64", headers=EVENTS).content.decode()
    pages = [line for line in told.splitlines() if line.startswith("data: ")]
    assert max(map(len, pages)) < 1 << 20
    assert sum(len(json.loads(page[6:])["entries"]) for page in pages) == 14 + 500


# -- runs ------------------------------------------------------------------------------------------


def test_l6_events_of_a_run(shared: Box) -> None:
    code = (
        "import sys, belljar_guest\nprint('é', flush=True)\nbelljar_guest.progress(0.5, 'half')\n"
        "sys.stdout.buffer.write(b'\\xff'); sys.stdout.flush()\n"
        "class Page:\n    def _repr_html_(self): return '<script>'\nPage()"
    )
    told = events(shared.ask("POST", "/runs", {"code": code}, headers=EVENTS))
    names = [name for name, _ in told]
    assert names[-2:] == ["sandbox", "end"]
    printed = [printed_bytes(said) for name, said in told if name == "output"]
    assert b"".join(printed) == "é\n".encode() + b"\xff"
    assert ("progress", {"fraction": 0.5, "message": "half"}) in told
    (shown,) = (said for name, said in told if name == "shown")
    assert shown["data"]["text/html"] == "<script>", "a text in JSON, and nothing else"
    assert told[-1][1]["run_id"] in told[-2][1]["checkpoints"]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_f2_a_run_whose_client_has_gone_is_stopped_and_the_state_stays(
    shared: Box, accept: str
) -> None:
    shared.run("x = 7")
    path = f"/v1/sandboxes/{shared.id}/runs"
    with sent(shared.server, path, {"code": FOR_EVER}, Accept=accept) as connection:
        if accept == "text/event-stream":
            connection.getresponse().readline()
        until(lambda: shared.ask("GET").json()["running"])
    until(lambda: not shared.ask("GET").json()["running"])
    assert shared.run("x")["value"] == "7"


def test_l1_interrupted_and_extended_from_outside(shared: Box) -> None:
    shared.run("x = 8")
    path = f"/v1/sandboxes/{shared.id}/runs"
    with sent(shared.server, path, {"code": FOR_EVER, "timeout_s": 20}) as connection:
        until(lambda: shared.ask("GET").json()["running"])
        assert shared.ask("POST", "/extend", {"seconds": 25}).json() == {"done": True}
        time.sleep(0.3)
        shared.ask("POST", "/interrupt")
        ended = json.loads(connection.getresponse().read())
    assert (ended["error"]["name"], ended["state_kept"]) == ("KeyboardInterrupt", True)
    assert shared.ask("POST", "/interrupt").json() == {"done": False}
    assert shared.run("x")["value"] == "8"


@contextmanager
def in_process(tmp_path: Path) -> Iterator[tuple[asyncio.Runner, Server]]:
    """A server without its front door."""
    sandboxes = {"home": str(tmp_path), "pool_size": 0, "engines": ["jail"]}
    with asyncio.Runner() as runner:

        async def make() -> Server:
            return Server(ServerSettings(sandboxes=sandboxes))

        found = runner.run(make())
        try:
            yield runner, found
        finally:
            runner.run(found.stop())


def test_l1_a_tenants_maximum_holds_for_everything_in_a_kept_sandbox(tmp_path: Path) -> None:
    """Runs, commands, and what the code itself asks for."""

    async def play(server: Server) -> None:
        tenant = Tenant("bound", Quotas(maxima={"timeout_s": 0.3}))
        box = (await server.book.make(tenant, {"environment": "base"}, datasets={})).box
        with pytest.raises(LimitExceeded, match=r"maximum of 0\.3"):
            await box.run("1", timeout_s=5)
        with pytest.raises(LimitExceeded, match=r"maximum of 0\.3"):
            await box.exec(["true"], timeout_s=5)
        code = "import belljar_guest, time\nbelljar_guest.extend(50)\ntime.sleep(20)"
        assert (await box.run(code)).status == "timeout"

    with in_process(tmp_path) as (runner, server):
        runner.run(play(server))


def test_f2_who_hangs_up_pays(tmp_path: Path) -> None:
    """Once: what was seen and could have been since; kept: before the wall is gone."""

    async def play(server: Server) -> None:
        burn = "while True: pass"
        tenant = Tenant("x", Quotas(cpu_s_per_day=1000))
        request = Request({"type": "http", "belljar": Visit(request_id="1", tenant=tenant)})
        options = {"environment": "base", "cpus": 1.0}
        once = asyncio.ensure_future(running.run(server, request, burn, options))
        while not (seen_s := tenant.cpu_s()):  # waiting for a sandbox costs nothing
            await asyncio.sleep(0.05)
        once.cancel()
        await asyncio.wait((once,))
        assert tenant.cpu_s() > seen_s
        owned = await server.book.make(tenant, options, datasets={})
        await owned.box.start(["sh", "-c", "while :; do :; done"])
        await asyncio.sleep(0.2)
        paid = tenant.cpu_s()
        seen = owned.box.cpu_ms()
        await owned.box.close()  # as its timers do
        assert tenant.cpu_s() > paid or seen is None  # only the agent could have told
        owned = await server.book.make(tenant, options, datasets={})
        step = Step(server, visit_of(request), owned, burn, tell=False)
        while not owned.box.running:
            await asyncio.sleep(0.01)
        paid = tenant.cpu_s()
        await asyncio.sleep(0.2)
        step._work.cancel()
        await asyncio.wait((step._work,))
        assert tenant.cpu_s() > paid

    with in_process(tmp_path) as (runner, server):
        runner.run(play(server))


def test_s1_a_second_caller_waits_or_is_told(server: Served) -> None:
    with made(server, when_busy="refuse") as box:
        path = f"/v1/sandboxes/{box.id}/runs"
        with sent(server, path, {"code": FOR_EVER}):
            until(lambda: box.ask("GET").json()["running"])
            answer = box.ask("POST", "/runs", {"code": "1"})
            assert (answer.status, code_of(answer)) == (409, "busy")
            assert code_of(box.ask("POST", "/rollback", {"run_id": 1})) == "busy"
    lines = server.ask("GET", "/v1/trail?status=refused&limit=1").json()["lines"]
    assert lines[0]["end"]["error"] == "busy", "P2: what was turned away is written, too"


def test_s6_going_back_and_branching(server: Served, shared: Box) -> None:
    shared.run("y = 1")
    spoilt = shared.run("y = 2")
    (branch,) = shared.ask("POST", "/fork", {"at": spoilt["run_id"]}).json()["sandboxes"]
    shared.ask("POST", "/rollback", {"run_id": spoilt["run_id"]})
    assert shared.run("y")["value"] == "1"
    run = f"/v1/sandboxes/{branch['id']}/runs"
    assert server.ask("POST", run, {"code": "y"}).json()["value"] == "1"
    server.ask("DELETE", f"/v1/sandboxes/{branch['id']}")
    answer = shared.ask("POST", "/rollback", {"run_id": 10_000})
    assert (answer.status, code_of(answer)) == (400, "invalid_request")
    shared.ask("POST", "/restart")
    assert shared.run("'y' in globals()")["value"] == "False"


# -- files -----------------------------------------------------------------------------------------


def test_s2_files_go_in_and_out_and_are_never_a_page(shared: Box) -> None:
    page = b"<script>alert(1)</script>"
    wrote = shared.ask("PUT", "/files/content?path=d/page.html", page, headers=BINARY)
    assert wrote.json() == {"size": len(page)}
    read = shared.ask("GET", "/files/content?path=d/page.html", headers={"Accept": "text/html"})
    assert read.content == page
    assert read.headers["content-type"] == "application/octet-stream"
    assert read.headers["x-content-type-options"] == "nosniff"
    assert read.headers["content-disposition"].startswith('attachment; filename="page.html";')
    (listed,) = shared.ask("GET", "/files?path=d").json()["entries"]
    assert (listed["path"], listed["kind"], listed["size"]) == (
        "/workspace/d/page.html",
        "file",
        len(page),
    )
    shared.ask("POST", "/files/move?path=d/page.html&to=/tmp/moved")
    assert shared.ask("GET", "/files/stat?path=/tmp/moved").json()["size"] == len(page)
    again = shared.ask("PUT", "/files/content?path=/tmp/moved&exclusive=1", b"", headers=BINARY)
    assert (again.status, code_of(again)) == (409, "sandbox_file_exists")
    shared.ask("POST", "/files/mkdir?path=d/e/f")
    full = shared.ask("DELETE", "/files?path=d")
    assert (full.status, code_of(full)) == (400, "sandbox_file_not_empty")
    assert shared.ask("DELETE", "/files?path=d&recursive=true").status == 200
    missing = shared.ask("GET", "/files/content?path=d")
    assert (missing.status, code_of(missing)) == (404, "sandbox_file_missing")
    told = events(shared.ask("GET", "/files?path=/tmp", headers=EVENTS))
    assert "/tmp/moved" in [entry["path"] for _, said in told for entry in said["entries"]]


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../../etc/passwd", "/proc/self/environ", "/workspace/l/passwd", "l", "x%00y"],
)
def test_i2_a_path_leads_nowhere_but_into_the_sandbox(shared: Box, path: str) -> None:
    shared.run(
        "import os\nif not os.path.islink('/workspace/l'): os.symlink('/etc', '/workspace/l')"
    )
    for method, below in (("GET", "/content"), ("PUT", "/content"), ("DELETE", "")):
        body = b"x" if method == "PUT" else None
        answer = shared.ask(method, f"/files{below}?path={path}", body, headers=BINARY)
        if (method, path) == ("DELETE", "l"):
            continue  # the link itself is the code's, and goes
        assert 400 <= answer.status < 500 and code_of(answer).startswith("sandbox_file_"), answer


def test_names_that_the_guest_chose_are_harmless_as_names_of_downloads() -> None:
    assert (
        disposition('/tmp/a"b\r\nX: y/../..')
        == "attachment; filename=\"file\"; filename*=UTF-8''file"
    )
    assert disposition('a";\r\nSet-Cookie: x') == (
        "attachment; filename=\"a____Set-Cookie_ x\"; filename*=UTF-8''a%22%3B__Set-Cookie%3A%20x"
    )
    turned = disposition("safe\u202egnp.exe")  # shown from right to left it would end in .png
    assert "\u202e" not in turned and "%E2%80%AE" not in turned
    assert "\udcff" not in disposition("\udcff") and len(disposition("x" * 5000)) < 400


def test_s2_an_upload_that_breaks_off_leaves_no_file(shared: Box) -> None:
    place = urlsplit(shared.server.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
    connection.putrequest("PUT", f"/v1/sandboxes/{shared.id}/files/content?path=half")
    for name, value in (
        ("Authorization", f"Bearer {shared.server.key}"),
        ("Content-Type", "application/octet-stream"),
        ("Content-Length", str(10 << 20)),
    ):
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(bytes(3 << 20))
    time.sleep(0.3)
    connection.close()
    until(lambda: shared.ask("GET", "/files/stat?path=half").status == 404)


# -- programs --------------------------------------------------------------------------------------


def test_s3_a_program_is_waited_for(shared: Box) -> None:
    done = shared.ask("POST", "/exec", {"program": "cat; exit 4", "shell": True, "stdin": "in"})
    assert (done.json()["stdout"], done.json()["exit_code"]) == ("in", 4)
    wrong = shared.ask("POST", "/exec", {"program": "ls -l"})
    assert (wrong.status, code_of(wrong)) == (400, "invalid_request")


def test_f2_programs_end_with_their_client_unless_they_are_detached(shared: Box) -> None:
    asked = {"program": "echo up; while read line; do echo got $line; done", "shell": True}
    path = f"/v1/sandboxes/{shared.id}/processes"

    def started(**more: Any) -> int:
        with sent(shared.server, path, {**asked, **more}, **EVENTS) as connection:
            response = connection.getresponse()
            assert response.readline() == b"event: started\n"
            return int(json.loads(response.readline().removeprefix(b"data: "))["process_id"])

    bound, detached = started(), started(detached=True)
    until(lambda: shared.ask("GET", f"/processes/{bound}").json()["running"] is False)
    listed = shared.ask("GET", "/processes").json()["processes"]
    assert [one["process_id"] for one in listed] == [detached]
    shared.ask("POST", f"/processes/{detached}/stdin", {"data": "more\n", "close": True})
    told = events(shared.ask("GET", f"/processes/{detached}/output"))
    text = "".join(said["text"] for name, said in told if name == "output")
    assert (text, told[-1][0], told[-1][1]["exit_code"]) == ("up\ngot more\n", "exit", 0)
    assert shared.ask("GET", "/processes/99999").status == 404


def test_f2_programs_of_a_sandbox_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MOST", 2)

    async def play(server: Server) -> None:
        tenant = Tenant("x", Quotas())
        owned = await server.book.make(tenant, {"environment": "base"}, datasets={})
        visit, asked = Visit(request_id="1", tenant=tenant), StartRequest(program=["sleep", "60"])

        async def start() -> Process | ApiError:
            try:
                return await start_program(server, visit, owned, asked)
            except ApiError as error:
                return error

        *begun, refused = sorted(
            await asyncio.gather(*(start() for _ in range(3))),
            key=lambda one: isinstance(one, ApiError),
        )
        assert isinstance(refused, ApiError) and refused.code == "quota_exceeded"
        first = begun[0]
        assert isinstance(first, Process) and isinstance(begun[1], Process)
        await first.kill()
        await first.wait()
        assert isinstance(await start(), Process)

    with in_process(tmp_path) as (runner, server):
        runner.run(play(server))


def test_f2_an_exec_whose_client_has_gone_is_killed(shared: Box) -> None:
    path = f"/v1/sandboxes/{shared.id}/exec"
    find = (
        "import glob\n"
        "sum(b'20.25' in open(name, 'rb').read() for name in glob.glob('/proc/[0-9]*/cmdline'))"
    )
    with sent(shared.server, path, {"program": ["sleep", "20.25"]}):
        until(lambda: shared.run(find)["value"] != "0")
    until(lambda: shared.run(find)["value"] == "0")


def test_s4_what_runs_in_the_background_is_counted(server: Served) -> None:
    with made(server) as box:
        if not box.run("1")["isolation"]["cpu"].startswith("cgroup"):
            pytest.skip("without cgroups only runs are counted")
        before = server.ask("GET", "/v1/usage").json()["cpu_s_today"]
        box.ask("POST", "/processes", {"program": "while :; do :; done", "shell": True})
        until(lambda: server.ask("GET", "/v1/usage").json()["cpu_s_today"] > before + 1, 30)


# -- the socket ------------------------------------------------------------------------------------


def dial(server: Served, sandbox_id: str, **headers: str) -> ClientConnection:
    sending = {"Authorization": f"Bearer {server.key}", **headers}
    url = server.url.replace("http", "ws") + f"/v1/sandboxes/{sandbox_id}/socket"
    return connect(url, additional_headers=sending, proxy=None, max_size=None, compression=None)


def hear(socket: ClientConnection, until_type: str) -> list[dict[str, Any]]:
    found = [json.loads(socket.recv(20))]
    while found[-1]["type"] != until_type:
        found.append(json.loads(socket.recv(20)))
    return found


def test_l6_a_socket_runs_interrupts_and_has_a_terminal(shared: Box) -> None:
    with dial(shared.server, shared.id) as socket:
        socket.send(json.dumps({"type": "run", "id": "a", "code": "print('hi'); z = 9; z"}))
        told = hear(socket, "end")
        assert {one["id"] for one in told} == {"a"} and told[-1]["value"] == "9"
        assert "hi\n" in [one.get("text") for one in told]
        socket.send(json.dumps({"type": "run", "id": "b", "code": FOR_EVER}))
        hear(socket, "output")
        socket.send(json.dumps({"type": "interrupt"}))
        assert hear(socket, "end")[-1]["error"]["name"] == "KeyboardInterrupt"
        program = "stty size; read line; echo got $line"
        socket.send(
            json.dumps(
                {"type": "start", "id": "t", "program": program, "shell": True, "terminal": True}
            )
        )
        process_id = hear(socket, "started")[-1]["process_id"]
        socket.send(
            json.dumps({"type": "resize", "process_id": process_id, "rows": 9, "columns": 9})
        )
        socket.send(json.dumps({"type": "stdin", "process_id": process_id, "data": "typed\n"}))
        ended = hear(socket, "exit")[-1]
        assert ended["id"] == "t" and "got typed" in ended["stdout"]
        for wrong in (
            "{",
            "[]",
            '{"type": "other"}',
            '{"type": "run", "cod": ""}',
            "\0",
            "1" * 5000,
        ):
            socket.send(wrong)
            assert hear(socket, "error")[-1]["error"]["code"] == "invalid_request"
        socket.send(json.dumps({"type": "ping", "id": "p"}))
        assert hear(socket, "pong")[-1]["id"] == "p"
        socket.send(json.dumps({"type": "run", "code": FOR_EVER}))
        hear(socket, "output")
    until(lambda: not shared.ask("GET").json()["running"])
    assert shared.run("z")["value"] == "9", "the run ended with its socket, the state stayed"


def test_s4_a_socket_is_for_its_owner_and_not_for_other_pages(shared: Box) -> None:
    for status, sandbox_id, headers in (
        (404, "0" * 32, {}),
        (403, shared.id, {"Origin": "https://elsewhere.example"}),
        (403, shared.id, {"Authorization": "Bearer wrong"}),
    ):
        with pytest.raises(InvalidStatus) as refused:
            dial(shared.server, sandbox_id, **headers)
        assert refused.value.response.status_code == status


def test_l6_who_sends_too_much_is_cut_off(shared: Box) -> None:
    with dial(shared.server, shared.id) as socket, pytest.raises(ConnectionClosed):
        socket.send("x" * (2 << 20))
        socket.recv(20)
        socket.recv(20)


# -- the end ---------------------------------------------------------------------------------------


def test_r3_sandboxes_end_with_the_server(server: Served, shared: Box) -> None:
    """The last test here: nothing is left of the server, not even for who still listens."""
    asked = {"program": ["sleep", "41.75"]}
    with sent(server, f"/v1/sandboxes/{shared.id}/processes", asked, **EVENTS) as connection:
        connection.getresponse().readline()
        until(lambda: _running(b"41.75"))
        assert server.stop() == 0
    assert not _running(b"41.75")


def _running(words: bytes) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if words in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found
