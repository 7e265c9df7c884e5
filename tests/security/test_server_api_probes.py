"""The probes of the API that need a service (AP-01, AP-02, AP-04 …, RS-16), over HTTP."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import socket
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from belljar.server.app import description
from belljar.testing.served import Answer, Served, served

OPEN = ("/health", "/ready")
BINARY = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        keys=True, sandboxes={"pool_size": 2, "build_environments": False, "engines": ["jail"]}
    ) as server:
        yield server
        assert server.process.poll() is None


@pytest.fixture(scope="module")
def box(server: Served) -> str:
    made = server.ask("POST", "/v1/sandboxes", {"environment": "base", "max_runs": 1000})
    return f"/v1/sandboxes/{made.json()['id']}"


def routes() -> Iterator[tuple[str, str]]:
    for path, operations in description()["paths"].items():
        for method in operations:
            yield method.upper(), re.sub(r"{.*?}", "0" * 32, path)


def asked(server: Served, method: str, target: str, headers: dict[str, str]) -> int:
    """The target as it is: no client's own idea of a path."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    try:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


def test_ap_01_no_route_is_open_to_malformed_credentials(server: Served) -> None:
    wrong = ["Bearer", "Bearer ", "Bearer  x", f"Bearer {server.key}x", f"Basic {server.key}"]
    wrong += [
        server.key,
        f"Bearer {server.key},",
        f'Bearer "{server.key}"',
        f"Bearer\t{server.key}",
    ]
    for method, path in routes():
        if path in OPEN:
            continue
        for header in wrong:
            assert asked(server, method, path, {"Authorization": header}) == 401, (method, header)
        assert asked(server, method, f"{path}?token={server.key}&key={server.key}", {}) == 401


def test_ap_01_no_other_spelling_or_method_leads_to_a_route(server: Served) -> None:
    key = {"Authorization": f"Bearer {server.key}"}
    body = json.dumps({"code": "print(1)"})
    before = server.ask("GET", "/v1/usage").json()["runs"]
    for path in ("//v1/runs", "/v1/./runs", "/v1//runs", "/v1/runs/", "/V1/RUNS", "/v1/runs%2f"):
        for headers in ({}, key):
            sent = {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))}
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
            connection.putrequest("POST", path)
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders(body.encode())
            assert connection.getresponse().status == (404 if headers else 401), path
            connection.close()
    for method in ("HEAD", "OPTIONS", "TRACE", "CONNECT", "PATCH", "PROPFIND"):
        for path in ("/execute", "/v1/runs", "/v1/usage", "/metrics"):
            assert asked(server, method, path, {}) in (400, 401, 404, 405), (method, path)
            assert asked(server, method, path, key) in (400, 404, 405), (method, path)
    assert server.ask("GET", "/v1/usage").json()["runs"] == before


def test_ap_02_ids_cannot_be_guessed(server: Served) -> None:
    """128 random bits: no counter, no common beginning, whatever they name."""
    for _ in range(64):
        assert server.execute("1").status == 200
    lines = server.ask("GET", "/v1/trail?limit=500").json()["lines"]
    ids = [line["attempt"]["id"] for line in lines]
    for _ in range(8):
        given = server.ask("POST", "/v1/datasets?name=x", b"x", headers=BINARY).json()["id"]
        ids.append(given)
        server.ask("DELETE", f"/v1/datasets/{given}")
    assert len(set(ids)) == len(ids) >= 64 and all(re.fullmatch("[0-9a-f]{32}", i) for i in ids)
    for at in range(32):
        assert len({one[at] for one in ids}) >= 8, f"figure {at} hardly changes"


def test_ap_04_every_field_has_its_type(server: Served) -> None:
    """A wrong one is a 400 that names the field; nothing is a 500, and nothing is converted."""
    for path in ("/execute", "/v1/runs", "/v1/sandboxes"):
        body = description()["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = body["schema"]["$ref"].rpartition("/")[2]
        for field in description()["components"]["schemas"][name]["properties"]:
            for value in ([[]], {"\\u0000": [None]}, 1.5e300, -(2**70), "x" * 300, [1, {}]):
                given = {"code": "1", field: value} if path != "/v1/sandboxes" else {field: value}
                answer = server.ask("POST", path, given)
                if field in ("code", "stdin") and isinstance(value, str):
                    continue
                assert 400 <= answer.status < 500, (path, field, value, answer)
                message = answer.json()["error"]["message"]
                assert field in message or answer.json()["error"]["code"] != "invalid_request"
    for code in (None, [], {}, True, 7):
        answer = server.ask("POST", "/execute", {"code": code})
        assert answer.status == 400 and answer.json()["error"]["message"].startswith("code:")


def test_ap_08_no_link_leads_an_upload_or_a_download_out(
    server: Served, box: str, tmp_path: Path
) -> None:
    """The links are the guest's, and lead where they lead inside; on the host nothing changes."""
    code = (
        "import os\n"
        f"for name, to in dict(tmp='/tmp', host={str(tmp_path)!r}, etc='/etc', up='../..',"
        " passwd='/etc/passwd', root='/proc/1/root').items():\n"
        "    os.symlink(to, '/workspace/' + name)"
    )
    assert server.ask("POST", f"{box}/runs", {"code": code}).json()["status"] == "ok"
    secret = Path("/etc/passwd").read_bytes()
    names = ["../x", "/etc/x", "a/../../x", "C:\\\\x", "%2e%2e/x", "..%2fx", "x" * 300, "host/x"]
    for name in (*names, "etc/x", "up/etc/x", "passwd", "root/etc/x", "tmp/x"):
        path = f"{box}/files/content?path={quote(name, safe='')}"
        put = server.ask("PUT", path, b"planted", headers=BINARY)
        assert put.status in (200, 400, 404, 409), (name, put)
        got = server.ask("GET", path)
        assert got.status in (200, 400, 404, 409), (name, got)
        assert got.content not in (secret,), name
        if got.status == 200:
            assert got.content == b"planted" or name == "passwd", (name, got)
    assert not list(tmp_path.iterdir()) and Path("/etc/passwd").read_bytes() == secret
    assert not any(os.path.exists(path) for path in ("/etc/x", "/x", "/tmp/x.belljar"))


def archives() -> Iterator[tuple[str, bytes]]:
    tar, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name, kind, to in (
            ("ok.txt", tarfile.REGTYPE, ""),
            ("../../escaped", tarfile.REGTYPE, ""),
            ("/tmp/belljar-escaped", tarfile.REGTYPE, ""),
            ("link", tarfile.SYMTYPE, "/etc"),
            ("hard", tarfile.LNKTYPE, "/etc/passwd"),
            ("null", tarfile.CHRTYPE, ""),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = kind, to, 0o6777
            archive.addfile(entry)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("../../escaped", "x")
        zipped.writestr("bomb", bytes(1 << 24))
    yield "a.tar", tar.getvalue()
    yield "a.zip", packed.getvalue()


def test_ap_09_an_archive_is_never_unpacked(server: Served) -> None:
    """It is bytes, to the server and to the one who describes it."""
    for name, content in archives():
        made = server.ask("POST", f"/v1/datasets?name={name}", content, headers=BINARY).json()
        told = server.ask("GET", f"/v1/datasets/{made['id']}/description")
        assert told.status == 200 and told.json()["format"] in ("unknown", "text")
        folder = server.home / "server" / "datasets"
        contents = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
        assert content in contents and not list(server.home.rglob("*escaped*"))
        assert not Path("/tmp/belljar-escaped").exists()
        assert server.ask("DELETE", f"/v1/datasets/{made['id']}").status == 200


def test_ap_11_nothing_that_is_asked_for_makes_the_server_fetch_an_address(server: Served) -> None:
    """No field takes one but that of /v1/fetch, whose way is a sandbox's; what others call such
    fields is refused by name."""
    schemas = description()["components"]["schemas"]
    names = {"url", "uri", "callback", "callback_url", "webhook", "href", "import_url"}
    asked = [name for name in schemas if name.endswith(("Request", "Input"))]
    found = {name for name in asked if names & {field.lower() for field in fields(schemas[name])}}
    assert found == {"FetchRequest"} and len(asked) > 15
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "[::1]", "2130706433", "0x7f.1", "localhost.", "u@127.0.0.1"):
            page = server.ask("POST", "/v1/fetch", {"url": f"http://{host}:{port}/"})
            assert page.status == 400 or not page.json()["success"], (host, page)
        for url in ("file:///etc/passwd", "gopher://127.0.0.1:1/", "http://169.254.169.254/"):
            page = server.ask("POST", "/v1/fetch", {"url": url})
            assert page.status == 400 or not page.json()["success"], (url, page)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    for name in ("url", "callback_url", "webhook", "import"):
        for path in ("/execute", "/v1/runs", "/v1/sandboxes"):
            body = {"code": "1", name: "http://127.0.0.1:1/"}
            answer = server.ask("POST", path, body)
            assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_request")
    for source in ("http://127.0.0.1:1/x", "file:///etc/passwd", "unix:/run/docker.sock"):
        made = server.ask("POST", "/v1/runs", {"code": "1", "inputs": {"x": source}})
        assert made.json()["status"] == "ok", "a text is content"
        refused = server.ask("POST", f"/v1/datasets?url={quote(source, safe='')}", b"x")
        assert refused.status == 400


def fields(schema: dict[str, Any]) -> list[str]:
    return list(schema["properties"])


def test_ap_15_errors_and_metrics_tell_nothing(server: Served, box: str) -> None:
    canary = "canary-7f3a"
    answers = [
        server.execute(f"print('{canary}'); 1 / 0"),
        server.execute("while True: pass", timeout=0.3),
        server.ask("POST", "/v1/runs", {"code": "1", "engine": "microvm"}),
        server.ask("POST", "/v1/runs", {"code": "1", "language": "go"}),
        server.ask("POST", "/v1/runs", {"code": "1", "language_level": "restricted"}),
        server.ask("POST", f"{box}/runs", {"code": "import os; os.kill(1, 9)"}),
        server.ask("POST", f"{box}/install", {"packages": ["no-such-package-at-all"]}),
        server.ask("GET", "/v1/trail"),
    ]
    answers += [server.ask("GET", path) for path in ("/metrics", "/health", "/v1/engines", "/nope")]
    for answer in answers:
        for told in (str(server.home), "site-packages", "/server/routes/", os.getcwd()):
            assert told not in answer.content.decode(), (told, answer)
    metrics = server.ask("GET", "/metrics").content.decode()
    assert canary not in metrics and "print" not in metrics
    for path in ("/metrics", "/debug", "/docs", "/redoc", "/openapi.json", "/v1/engines"):
        assert server.ask("GET", path, key=None).status == 401, path
    for path in ("/debug", "/docs", "/redoc", "/debug/pprof", "/.env", "/server-status"):
        assert server.ask("GET", path).status == 404, path


@pytest.mark.parametrize(
    "code",
    [
        "(" * 90_000,
        "-" * 90_000 + "1",
        "a=" + "[" * 90_000,
        "\0print(1)",
        "# coding: utf-7\n+AG8-",
        "# coding: nonexistent\nprint(1)",
        "x=1;" * 24_000,
        "x = 1" + " + 1" * 20_000,
        "\ufeff" * 30_000,
    ],
    ids=range(9),
)
def test_rs_16_hostile_source_is_parsed_inside_only(server: Served, code: str) -> None:
    pid = server.process.pid
    for path, more in (("/execute", {}), ("/v1/runs", {"filter": "warn"})):
        answer: Answer = server.ask("POST", path, {"code": code, **more})
        assert answer.status in (200, 400), answer
    assert server.process.pid == pid and server.process.poll() is None
    assert server.execute("print(6 * 7)").json()["output"] == "42\n"


def test_rs_16_ten_megabytes_of_source_are_refused(server: Served) -> None:
    answer = server.ask("POST", "/execute", {"code": "x=1;" * 2_500_000})
    assert (answer.status, answer.json()["error"]["code"]) == (400, "code_too_large")
