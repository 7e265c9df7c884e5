"""N1, N2, P2 from the caller's door to a server beyond the gateway, behind the jail. What all walls
have in common is in the conformance suite; what the gateway withstands, in tests/security."""

from __future__ import annotations

import asyncio
import dataclasses
import http.server
import json
import os
import random
import signal
import ssl
import subprocess
import sysconfig
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar import Allow, Secret, Settings
from belljar.cli import main
from belljar.egress.authority import Authority
from belljar.egress.certificates import Contexts
from belljar.errors import InvalidRequest, NetworkRefused, Unsupported
from belljar.testing.served import served
from belljar.trail.trail import Trail

NAME, OTHER, UNNAMED = "api.example.test", "other.example.test", "unnamed.example.test"
TOKEN = "the-real-token-0123456789"


class Site:
    """Plain and TLS, on an address of loopback that nobody else uses: files of a folder, and /echo,
    which tells what it was sent."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[tuple[str, str]] = []
        """Path and Authorization of every request."""
        self.folder = folder / "site"
        self.folder.mkdir()
        (self.folder / "hello").write_text("hello")
        self.address = ".".join(["127", *(str(random.randint(2, 250)) for _ in range(3))])
        authority = Authority.load(folder)
        self.bundle = folder / "site.pem"
        self.bundle.write_bytes(authority.certificate_pem)
        self._contexts = Contexts(authority)
        secure = self._contexts.for_name(NAME)
        secure.sni_callback = self._named
        self._servers = [self._listen(80), self._listen(443)]
        self.plain_port, self.port = (server.server_address[1] for server in self._servers)
        self._servers[1].socket = secure.wrap_socket(
            self._servers[1].socket, server_side=True, do_handshake_on_connect=False
        )
        for server in self._servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def _named(self, ours: Any, name: str | None, _: ssl.SSLContext) -> None:
        ours.context = self._contexts.for_name(name or NAME)

    def _listen(self, port: int) -> http.server.ThreadingHTTPServer:
        site = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __init__(self, *given: Any) -> None:
                super().__init__(*given, directory=str(site.folder))

            def do_GET(self) -> None:
                site.heard.append((self.path, self.headers.get("Authorization", "")))
                if self.path.startswith("/to/"):
                    self.send_response(302)
                    self.send_header("Location", site.plain_url("/page.html", self.path[4:]))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if not self.path.startswith("/echo"):
                    super().do_GET()
                    return
                body = json.dumps({"path": self.path, "headers": dict(self.headers)}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        try:
            return Server((self.address, port), Handler)
        except OSError:  # an ordinary user
            return Server((self.address, 0), Handler)

    @property
    def usual_ports(self) -> bool:
        return (self.plain_port, self.port) == (80, 443)

    def settings(self, **more: Any) -> Settings:
        return Settings(
            network_names=dict.fromkeys((NAME, OTHER, UNNAMED), self.address),
            network_private=(f"{self.address}/32",),
            network_authorities=self.bundle,
            **more,
        )

    def rule(self, *names: str, **more: Any) -> Allow:
        ports = (self.plain_port, self.port)
        return Allow(*(f"{name}:{port}" for name in names or (NAME,) for port in ports), **more)

    def url(self, path: str, name: str = NAME) -> str:
        return f"https://{name}:{self.port}{path}"

    def plain_url(self, path: str, name: str = NAME) -> str:
        return f"http://{name}:{self.plain_port}{path}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def trail_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('trail')}/trail/trail.db"


@pytest.fixture(scope="module")
def jar(site: Site, trail_url: str) -> Iterator[belljar.Belljar]:
    index = site.url("/simple/")
    with belljar.Belljar(site.settings(trail=trail_url, pool_size=0, package_index=index)) as jar:
        yield jar


def tried(url: str, **wanted: Any) -> list[dict[str, Any]]:
    """Oldest first; and the trail is sound."""
    with Trail(url) as trail:
        assert trail.verify().sound, trail.verify().problem
        return trail.egress(limit=1000, **wanted)[::-1]


def python(code: str) -> list[str]:
    return ["python3", "-c", f"import sys; sys.path.insert(0, '/data/input/site')\n{code}"]


# -- clients ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def box(jar: belljar.Belljar, site: Site) -> Iterator[belljar.Sandbox]:
    """With the packages of this interpreter to import."""
    packages = Path(sysconfig.get_path("purelib"))
    with belljar.Sandbox(
        jar,
        engine="jail",
        network=(site.rule(), ":packages:"),
        inputs={"site": packages},
        timeout_s=100,
    ) as box:
        yield box


@pytest.mark.parametrize(
    "code",
    [
        "import urllib.request; print(urllib.request.urlopen(URL).read().decode())",
        "import requests; print(requests.get(URL).text)",
        "import httpx; print(httpx.get(URL).text)",
        "import asyncio, aiohttp\n"
        "async def main():\n"
        "    async with aiohttp.ClientSession(trust_env=TRUST) as session:\n"
        "        async with session.get(URL) as answer: print(await answer.text())\n"
        "asyncio.run(main())",
    ],
    ids=["urllib", "requests", "httpx", "aiohttp"],
)
def test_n1_usual_clients_of_python_work_as_they_are(
    box: belljar.Sandbox, site: Site, code: str
) -> None:
    """aiohttp does not look for a proxy: names lead to the gateway where ports are the usual."""
    given = f"URL, TRUST = {site.url('/hello')!r}, {not site.usual_ports}\n"
    result = box.exec(python(given + code))
    assert result.stdout == "hello\n", result.stderr


def test_n1_aiohttp_below_a_wildcard_with_the_proxy_alone(jar: belljar.Belljar, site: Site) -> None:
    """No name leads to the gateway there, as docs/network.md says, with what to write."""
    code = (
        "import asyncio, aiohttp\n"
        "async def get(trust):\n"
        "    try:\n"
        "        async with aiohttp.ClientSession(trust_env=trust) as session:\n"
        f"            async with session.get({site.url('/hello')!r}) as answer:\n"
        "                print((await answer.text()).strip())\n"
        "    except aiohttp.ClientConnectorDNSError as error: print('no such name')\n"
        "for trust in (True, False): asyncio.run(get(trust))"
    )
    packages = Path(sysconfig.get_path("purelib"))
    rule = site.rule("*.example.test")
    with belljar.Sandbox(jar, engine="jail", network=rule, inputs={"site": packages}) as box:
        result = box.exec(python(code))
    assert result.stdout == "hello\nno such name\n", result.stderr


def test_n1_http_client_without_a_proxy(box: belljar.Sandbox, site: Site) -> None:
    if not site.usual_ports:
        pytest.skip("ports 80 and 443 are not for ordinary users")
    code = (
        "from http.client import HTTPConnection, HTTPSConnection\n"
        "for kind in (HTTPConnection, HTTPSConnection):\n"
        f"    talk = kind({NAME!r}); talk.request('GET', '/hello')\n"
        "    print(talk.getresponse().read().decode())"
    )
    result = box.run(code)
    assert result.stdout == "hello\nhello\n", result.stderr
    assert [one.scheme for one in result.egress] == ["http", "https"]


def test_n1_curl_and_git(box: belljar.Sandbox, site: Site, tmp_path: Path) -> None:
    work = tmp_path / "work"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t.test", "-C", str(work)]
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    (work / "file.txt").write_text("of a repository")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    bare = site.folder / "repository.git"
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True)
    subprocess.run(["git", "-C", str(bare), "update-server-info"], check=True)
    for program, wanted in (
        (f"curl -sS {site.url('/hello')} {site.plain_url('/hello')}", "hellohello"),
        (
            f"git clone -q {site.url('/repository.git')} cloned && cat cloned/file.txt",
            "of a repository",
        ),
    ):
        if not box.exec(f"command -v {program.split()[0]}", shell=True).stdout:
            pytest.skip(f"{program.split()[0]} is not in the sandbox")
        result = box.exec(program, shell=True)
        assert result.stdout == wanted, result.stderr


def test_n1_pip_installs_from_the_operators_index(box: belljar.Sandbox, site: Site) -> None:
    index = site.folder / "simple" / "tiny"
    index.mkdir(parents=True)
    with zipfile.ZipFile(index / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "size = 'small'\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Name: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    (index / "index.html").write_text('<a href="tiny-1.0-py3-none-any.whl">tiny</a>')
    arguments = ["install", "-q", "--disable-pip-version-check", "--target", "/workspace/found"]
    arguments += ["tiny"]
    code = f"from pip._internal.cli.main import main; sys.exit(main({arguments!r}))"
    result = box.exec(python(code))
    assert result.exit_code == 0, result.stdout + result.stderr
    shown = box.run("import sys; sys.path.append('/workspace/found'); import tiny; tiny.size")
    assert shown.value == "'small'", shown.stderr


def test_n1_fetch_of_node(jar: belljar.Belljar, site: Site) -> None:
    code = f"console.log(await (await fetch({site.url('/hello')!r})).text())"
    result = jar.run(code, language="javascript", engine="jail", network=site.rule())
    assert result.stdout == "hello\n", result.stderr
    assert [one.verdict for one in result.egress] == ["allowed"]


# -- what is told ----------------------------------------------------------------------------------

TRY = """
import urllib.request, urllib.error
for url in URLS:
    try:
        with urllib.request.urlopen(url) as answer:
            answer.read()
            print(answer.status)
    except (urllib.error.HTTPError, OSError) as error:
        print(error)
"""


def test_n1_every_attempt_is_in_the_result_and_in_the_trail(
    jar: belljar.Belljar, site: Site, trail_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = [
        site.plain_url("/hello?token=hush"),
        site.plain_url("/private"),
        site.plain_url("/hello", OTHER),
        site.url("/hello", UNNAMED),
        f"http://{site.address}:{site.plain_port}/hello",
    ]
    rule = site.rule(NAME, methods=("GET",), paths=("/hello",))
    result = jar.run(
        f"URLS = {urls!r}{TRY}", network=rule, caller=belljar.Caller(tenant="acme"), engine="jail"
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "200", result.stdout + result.stderr
    assert "403" in lines[1] and "only methods GET and paths /hello" in lines[1]
    assert f"no rule allows {OTHER}" in lines[2] and f"no rule allows {UNNAMED}" in lines[3]
    told = [(one.host, one.path, one.verdict) for one in result.egress]
    assert told[:3] == [
        (NAME, "/hello", "allowed"),
        (NAME, "/private", "refused"),
        (OTHER, "/hello", "refused"),
    ]
    assert len(told) == 5 and told[3][0] == UNNAMED and told[4][2] in ("refused", "blocked")
    written = tried(trail_url, id_=result.execution_id)
    assert [(one["host"], one["status"]) for one in written] == [(t[0], t[2]) for t in told]
    assert all(one["tenant"] == "acme" for one in written)
    assert "hush" not in json.dumps(written) and "hush" not in repr(result.egress)
    assert main.call(["trail", "list", "--egress", "--tenant", "acme", "--trail", trail_url]) == 0
    assert f"no rule allows {OTHER}" in capsys.readouterr().out
    assert main.call(["trail", "show", result.execution_id, "--trail", trail_url]) == 0
    assert "/private" in capsys.readouterr().out


def test_n1_a_run_that_is_killed_has_told_what_it_tried(
    jar: belljar.Belljar, site: Site, trail_url: str
) -> None:
    code = f"URLS = [{site.plain_url('/hello')!r}]{TRY}\nwhile True: pass"
    result = jar.run(code, network=site.rule(), timeout_s=2.0, engine="jail")
    assert result.status == "timeout"
    assert [one.verdict for one in result.egress] == ["allowed"], result
    assert len(tried(trail_url, id_=result.execution_id)) == 1


def test_n1_without_rules_there_is_nothing_of_it(jar: belljar.Belljar) -> None:
    result = jar.run(
        "import os\n"
        "print([n for n in os.environ if 'PROXY' in n.upper()], os.listdir('/data/input'))"
    )
    assert result.stdout == "[] []\n" and result.egress == ()


# -- kept sandboxes --------------------------------------------------------------------------------


def test_n1_rules_change_while_a_sandbox_lives_and_branches_share_them(
    jar: belljar.Belljar, site: Site, trail_url: str
) -> None:
    get = f"URLS = [{site.plain_url('/hello')!r}, {site.plain_url('/hello', OTHER)!r}]{TRY}"
    with belljar.Sandbox(jar, engine="jail", network=site.rule(NAME)) as box:
        first = box.run(get)
        assert first.stdout.startswith("200\n") and "no rule" in first.stdout
        box.set_network(site.rule(OTHER))
        assert box.network == (site.rule(OTHER),)
        second = box.run(get)
        assert second.stdout.endswith("\n200\n") and f"no rule allows {NAME}" in second.stdout
        assert [one.verdict for one in second.egress] == ["refused", "allowed"]
        (branch,) = box.fork(1)
        sandbox_id = branch.sandbox_id
    # Its parent is gone; it goes on, and so does what is written down.
    assert branch.run(get).stdout.endswith("\n200\n")
    branch.set_network(None)
    assert branch.network == () and branch.run(get).stdout.count("403") == 2
    branch.close()
    lines = tried(trail_url)
    assert [one["status"] for one in lines if one.get("sandbox") == sandbox_id] == [
        *("refused", "allowed"),
        *("refused", "refused"),
    ]
    assert [one for one in lines if one.get("run") == second.execution_id]
    with Trail(trail_url) as trail:
        changes = [one for one in trail.recent() if one.attempt["action"] == "network"]
    assert len(changes) == 2 and changes[1].attempt["network"] == [
        {"hosts": list(site.rule(OTHER).hosts)}
    ]


def test_n1_a_sandbox_that_was_made_without_a_network_gets_none(jar: belljar.Belljar) -> None:
    with belljar.Sandbox(jar, engine="jail") as box:
        with pytest.raises(Unsupported, match="made without one"):
            box.set_network("a.example")
        assert box.network == ()


def test_n1_a_gateway_that_was_killed_is_followed_by_another(site: Site) -> None:
    get = f"URLS = [{site.plain_url('/hello')!r}]{TRY}"
    with belljar.Belljar(site.settings(pool_size=0)) as jar:
        with belljar.Sandbox(jar, engine="jail", network=site.rule()) as box:
            assert box.run(get).stdout == "200\n"
            service = jar.asynchronous._service  # type: ignore[union-attr]
            (gateway,) = service._network._gateway.processes  # type: ignore[union-attr]
            os.kill(gateway.pid, signal.SIGKILL)
            while jar.portal().call(_lost(box)) is False:
                time.sleep(0.01)
            assert box.run(get).stdout == "200\n"
            box.set_network(None)
            assert "403" in box.run(get).stdout
        assert jar.run(get, engine="jail", network=site.rule()).stdout == "200\n"


async def _lost(box: belljar.Sandbox) -> bool:
    held = box._opened()._held
    assert held and held.outlet
    return held.outlet.lease.lost


def test_i6_an_engine_with_a_network_is_chosen_and_one_without_is_refused(
    jar: belljar.Belljar,
) -> None:
    assert jar.run("print(1)", need="network").engine == "jail"
    with pytest.raises(Unsupported, match="cannot give a network"):
        jar.run("print(1)", engine="wasm", network="a.example")


# -- secrets ---------------------------------------------------------------------------------------


def test_n2_code_uses_a_secret_that_it_never_has(
    jar: belljar.Belljar, site: Site, trail_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_TOKEN", TOKEN)
    secret = Secret("env:THE_TOKEN", host=NAME)
    code = f"""
import json, os, urllib.error, urllib.request
key = os.environ["API_KEY"]
print(key)
def ask(url):
    asked = urllib.request.Request(url, headers={{"Authorization": f"Bearer {{key}}"}})
    try:
        return urllib.request.urlopen(asked).read().decode()
    except urllib.error.HTTPError as error:
        return str(error)
print(json.loads(ask({site.url("/echo")!r}))["headers"]["Authorization"])
print(ask({site.url("/echo", OTHER)!r}))
print(ask({site.plain_url("/echo")!r}))
"""
    before = len(site.heard)
    result = jar.run(
        code, engine="jail", network=site.rule(NAME, OTHER), secrets={"API_KEY": secret}
    )
    lines = result.stdout.splitlines()
    placeholder = lines[0]
    assert len(placeholder) == len(TOKEN) and placeholder != TOKEN, result.stderr
    assert lines[1] == f"Bearer {placeholder}"  # what came back has it in the value's place
    assert "403" in lines[2] and "403" in lines[3]
    assert [sent for _, sent in site.heard[before:]] == [f"Bearer {TOKEN}"]
    assert [one.verdict for one in result.egress] == ["allowed", "blocked", "blocked"]
    with Trail(trail_url) as trail:
        text = "".join(line.body for line in trail.lines())
        found = trail.find(result.execution_id)
    assert TOKEN not in text and TOKEN not in result.to_json()
    assert found and found.attempt["secrets"] == {"API_KEY": NAME}


def test_n2_a_secret_that_is_not_there_starts_nothing(jar: belljar.Belljar, site: Site) -> None:
    with pytest.raises(InvalidRequest, match="NOT_THERE_AT_ALL is not set"):
        jar.run(
            "print(1)",
            network=site.rule(),
            secrets={"KEY": Secret("env:NOT_THERE_AT_ALL", host=NAME)},
        )


# -- pages -----------------------------------------------------------------------------------------


def test_n3_a_page_is_got_in_one_sandbox_and_read_in_another(
    jar: belljar.Belljar, site: Site, trail_url: str
) -> None:
    (site.folder / "page.html").write_text(
        "<title>A  page</title><script>steal()</script><h1>One</h1><p>two &amp; <b>three</b>"
        "<ul><li><a href='/next#x'>four</a><li>five</ul><a href='javascript:steal()'>six</a>"
    )
    page = jar.fetch(site.plain_url("/page.html"))
    assert page.success and page.title == "A page", page
    assert page.text == "# One\n\ntwo & three\n\n- four\n- five\nsix"
    assert page.links == (site.plain_url("/next").replace(":80/", "/"),) or page.links == (
        site.plain_url("/next"),
    )
    assert [one.verdict for one in page.egress] == ["allowed"]
    assert "steal" not in page.text
    whole = len(page.text)
    page = jar.fetch(site.plain_url("/page.html"), most_characters=whole - 1)
    assert page.truncated and len(page.text) == whole - 1
    assert tried(trail_url)[-1]["path"] == "/page.html"


def test_n3_redirects_are_followed_under_the_same_rules(jar: belljar.Belljar, site: Site) -> None:
    (site.folder / "page.html").write_text("<p>here")
    page = jar.fetch(site.plain_url(f"/to/{NAME}"))
    assert page.text == "here" and page.redirects == (site.plain_url("/page.html"),)
    page = jar.fetch(site.plain_url(f"/to/{OTHER}"))
    assert not page.success and f"no rule allows {OTHER}" in page.error and not page.text
    page = jar.fetch(site.plain_url(f"/to/{OTHER}"), network=site.rule(NAME, OTHER))
    assert page.text == "here"


def test_n3_what_is_no_text_or_no_page_is_told(jar: belljar.Belljar, site: Site) -> None:
    (site.folder / "data.bin").write_bytes(bytes(100))
    assert "not text" in jar.fetch(site.plain_url("/data.bin")).error
    missing = jar.fetch(site.plain_url("/missing"))
    assert missing.status == 404 and not missing.success and not missing.error
    for wrong in ("file:///etc/passwd", "http://127.0.0.1/", "http://user@a.example/", "x", 5):
        with pytest.raises(InvalidRequest):
            jar.fetch(wrong)  # type: ignore[arg-type]


# -- other doors -----------------------------------------------------------------------------------


def test_a3_a_server_gives_the_hosts_that_its_operator_names(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/execute`, runs, kept sandboxes and changes of theirs, the client, the trail, metrics."""
    settings = site.settings()
    names = [f"{name}:{port}" for name in (NAME, OTHER) for port in (site.plain_port, site.port)]
    sandboxes = {
        "network_allowed": names,
        "network_names": dict(settings.network_names),
        "network_private": list(settings.network_private),
        "network_authorities": str(site.bundle),
        "pool_size": 0,
    }
    get = f"URLS = [{site.url('/hello')!r}]{TRY}"
    monkeypatch.setenv("THE_TOKEN", TOKEN)
    with served(sandboxes=sandboxes, warm=[]) as server:

        def ask(path: str, body: Any, method: str = "POST") -> Any:
            return server.ask(method, path, body)

        told = ask("/execute", {"code": get, "allow_network": True}).json()
        assert told["output"] == "200\n", told
        told = ask("/execute", {"code": get, "allow_network": True, "allowed_domains": names[2:]})
        assert f"no rule allows {NAME}" in told.json()["output"]
        for wrong in (
            {"network": [UNNAMED]},
            {"network": names[:2], "secrets": {"K": {"value": "env:PATH-of-it", "host": NAME}}},
            {"network": [{"hosts": names[:1], "method": ["GET"]}]},
        ):
            assert ask("/v1/runs", {"code": "1", **wrong}).status == 400
        place = {"url": server.url, "key": server.key}
        secret = Secret("env:THE_TOKEN", host=NAME)
        here = f"import os, urllib.request as u\nu.urlopen(u.Request({site.url('/echo')!r}, "
        here += "headers={'Authorization': 'Bearer ' + os.environ['K']}))"
        ran = belljar.run(here, network=site.rule(), secrets={"K": secret}, **place)
        assert ran.success and site.heard[-1] == ("/echo", f"Bearer {TOKEN}"), ran.stderr
        assert ran.egress[0].host == NAME and isinstance(ran.egress[0], belljar.Egress)
        with belljar.Sandbox(network=site.rule(), **place) as box:
            assert box.run(get).stdout == "200\n"
            box.set_network(site.rule(OTHER))
            assert box.network == (site.rule(OTHER),)
            assert "no rule" in box.run(get).stdout
            with pytest.raises(NetworkRefused):
                box.set_network(UNNAMED)
        lines = server.ask("GET", "/v1/trail/egress?verdict=refused").json()["lines"]
        # Beside these perhaps a connection that was cut by the change.
        assert [one["why"].startswith("no rule allows") for one in lines].count(True) == 2, lines
        metrics = server.ask("GET", "/metrics").content.decode()
        told = [line for line in metrics.splitlines() if line.startswith("belljar_egress_total")]
        assert any('verdict="refused"' in line and 'tenant="local"' in line for line in told), told
        assert TOKEN not in server.log.read_text()
        fetched = belljar.Belljar(**place).fetch(site.plain_url("/hello"))
        assert "not text" in fetched.error and fetched.egress[0].host == NAME


def test_n1_the_command_line(
    site: Site, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = dataclasses.asdict(site.settings())
    own = {
        name: given[name] for name in ("network_names", "network_private", "network_authorities")
    }
    real = Settings.__init__

    def with_site(self: Settings, **fields: Any) -> None:
        real(self, **{**own, **fields})

    monkeypatch.setattr(Settings, "__init__", with_site)
    code = f"URLS = [{site.plain_url('/hello')!r}, {site.plain_url('/hello', OTHER)!r}]{TRY}"
    allow = f"--allow-host={NAME}:{site.plain_port}"
    words = ["run", "--engine", "jail", "--stdin", "/dev/null", allow, "--allow-method", "GET"]
    assert main.call([*words, "-c", code]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("200\n"), err
    assert f"network: refused {OTHER}:{site.plain_port}: no rule allows {OTHER}" in err


def test_a4_a_model_asks_for_hosts_of_the_operators_and_uses_his_secrets(site: Site) -> None:
    """The tools by themselves: what a client of the protocol sees of them is in test_mcp.py."""
    from belljar.mcp import arguments, calls
    from belljar.mcp.host import Asked, LocalHost
    from belljar.mcp.shelf import Shelf

    names = site.rule().hosts
    settings = site.settings(pool_size=0, network_allowed=names)
    none = dataclasses.replace(settings, network_allowed=())
    assert "network" not in arguments.schema(arguments.RunCode, none)["properties"]
    offered = arguments.schema(arguments.RunCode, settings)["properties"]["network"]
    assert names[0] in offered["description"]

    async def main() -> list[Any]:
        options = {"engine": "jail", "secrets": {"KEY": Secret(TOKEN, host=NAME)}}
        host = LocalHost(belljar.aio.Belljar(settings), options=options)
        shelf = Shelf(host, most=1)
        call = calls.Call(host=host, shelf=shelf, asked=Asked(request_id="r"), loose=set())
        key = "{'Authorization': 'Bearer ' + os.environ['KEY']}"
        asked = f"u.Request({site.url('/echo')!r}, headers={key})"
        code = f"import os, urllib.request as u\nu.urlopen({asked})"
        try:
            return [
                await calls.run_code(call, arguments.RunCode(code=code, network=list(names))),
                await calls.run_code(
                    call, arguments.RunCode(code="import os\n'KEY' in os.environ")
                ),
                await calls.fetch_page(call, arguments.FetchPage(url=site.plain_url("/page.html"))),
                await calls.fetch_page(call, arguments.FetchPage(url=site.plain_url("/data.bin"))),
                await calls.fetch_page(call, arguments.FetchPage(url=site.url("/page.html"))),
            ]
        finally:
            await host.close()

    (site.folder / "page.html").write_text("<title>T</title><p>of a page")
    (site.folder / "data.bin").write_bytes(bytes(100))
    used, without, page, data, secured = asyncio.run(main())
    assert site.heard[-4:] == [
        ("/echo", f"Bearer {TOKEN}"),
        ("/page.html", ""),
        ("/data.bin", ""),
        ("/page.html", f"Bearer {TOKEN}"),
    ], used
    assert not secured.is_error and TOKEN not in str(secured.content)
    assert "False" in str(without.content)
    assert not page.is_error and "of a page" in page.content[1].text
    assert data.is_error and "not text" in data.content[0].text
