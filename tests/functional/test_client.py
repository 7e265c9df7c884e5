"""A Belljar at a server behaves as one that is here: the same suite judges both (S1-S6, L6, A4)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import belljar
from belljar.errors import (
    CodeTooLarge,
    InvalidVariable,
    LimitExceeded,
    SandboxEnded,
    SandboxLost,
    ServerRefused,
    ServerUnreachable,
    UnknownLanguage,
)
from belljar.kept.sync import Sandbox
from belljar.testing.served import Served, served
from belljar.testing.suite.kept import Kept
from belljar.testing.suite.kept_copies import KeptCopies
from belljar.testing.suite.kept_files import KeptFiles
from belljar.testing.suite.kept_live import KeptLive


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        environments=True, sandboxes={"pool_size": 2, "build_environments": False}
    ) as server:
        yield server


@pytest.fixture(scope="module")
def there(server: Served) -> Iterator[belljar.Belljar]:
    with belljar.Belljar(url=server.url, key=server.key) as jar:
        yield jar


class TestKeptThere(Kept, KeptLive, KeptFiles, KeptCopies):
    """What every wall's kept sandboxes are judged by, through HTTP."""

    engine: ClassVar[str] = "jail"

    @pytest.fixture(scope="class")
    @classmethod
    def jar(cls, there: belljar.Belljar) -> belljar.Belljar:  # type: ignore[override]
        return there

    def test_s1_a_number_of_runs_and_an_idle_time(self, jar: belljar.Belljar, box: Sandbox) -> None:
        """As the one it replaces; here it is the next question that tells of the end."""
        with self.keep(jar, max_runs=2, idle_s=0.5) as other:
            other.run("1")
            other.run("2")
            with pytest.raises(SandboxEnded, match="2 runs"):
                other.run("3")
            time.sleep(1.5)
            with pytest.raises(SandboxEnded, match="nothing was asked"):
                other.run("4")


# -- one-shot runs ---------------------------------------------------------------------------------


def test_a4_run_at_a_server(server: Served) -> None:
    place = {"url": server.url, "key": server.key}
    result = belljar.run(
        "import sys; print(input(), open('/workspace/f').read(), open('/data/input/i').read());"
        "open('/data/output/made', 'wb').write(b'\\xff\\0'); sys.exit(3)",
        stdin="in",
        files={"f": b"file"},
        inputs={"i": "input"},
        env={"A": "1"},
        timeout_s=10,
        **place,
    )
    assert (result.status, result.exit_code, result.stdout) == ("error", 3, "in file input\n")
    assert [(file.path, file.content) for file in result.files] == [
        ("/data/output/made", b"\xff\0")
    ]
    assert result.engine == "jail" and result.isolation and result.usage.cpu_ms > 0
    failed = asyncio.run(belljar.aio.run("1 / 0", **place))
    assert failed.error is not None and failed.error.name == "ZeroDivisionError"


def test_l6_what_is_printed_comes_while_it_runs(there: belljar.Belljar) -> None:
    heard: list[tuple[str, bytes]] = []
    used: list[belljar.Usage] = []
    result = there.run(
        "import time; print('one', flush=True); time.sleep(0.6); print('two')",
        on_output=lambda stream, data: heard.append((stream, data)),
        on_usage=used.append,
    )
    assert heard == [("stdout", b"one\n"), ("stdout", b"two\n")] and used
    assert result.stdout == "one\ntwo\n"


def test_r5_the_same_mistakes_are_the_same_exceptions(there: belljar.Belljar) -> None:
    for error, options in (
        (CodeTooLarge, {"code": "#" * 100_001}),
        (UnknownLanguage, {"code": "1", "language": "cobol"}),
        (LimitExceeded, {"code": "1", "timeout_s": 100_000}),
        (InvalidVariable, {"code": "1", "env": {"LD_PRELOAD": "x"}}),
        (belljar.InvalidRequest, {"code": "1", "no_such_option": 1}),
        (belljar.InvalidRequest, {"code": "1", "files": {"a": 5}}),
        (belljar.InvalidRequest, {"code": "1", "stdin_descriptor": 0}),
    ):
        with pytest.raises(belljar.BelljarError) as raised:
            there.run(**options)
        assert type(raised.value) is error and raised.value.message
    with pytest.raises(belljar.Unsupported):
        there.warm("base", 1)


def test_s4_what_only_a_server_says(server: Served) -> None:
    with pytest.raises(ServerRefused) as refused:
        belljar.run("1", url=server.url, key="wrong")
    assert refused.value.code == "unauthenticated" and not refused.value.retryable
    with pytest.raises(ServerUnreachable):
        belljar.run("1", url="http://127.0.0.1:9", key="x")
    for url in ("127.0.0.1:8321", "ftp://somewhere", "http://", ""):
        with pytest.raises(belljar.InvalidRequest):
            belljar.Sandbox(url=url or "x", key="x").open()


# -- kept sandboxes --------------------------------------------------------------------------------


def test_s2_files_of_this_machine_are_its_inputs(server: Served, tmp_path: Path) -> None:
    (tmp_path / "folder/deep").mkdir(parents=True)
    (tmp_path / "folder/deep/b").write_text("below")
    (tmp_path / "a.csv").write_text("x\n1\n")
    inputs = {
        "a.csv": tmp_path / "a.csv",
        "f": str(tmp_path / "folder"),
        "c": b"content",
        "large": bytes(3 << 20),
    }
    with belljar.Sandbox(url=server.url, key=server.key, environment="base", inputs=inputs) as box:
        seen = box.run(
            "[open(f'/data/input/{name}').read() for name in ('a.csv', 'f/deep/b', 'c')],"
            " len(open('/data/input/large', 'rb').read())"
        )
        assert seen.value == f"(['x\\n1\\n', 'below', 'content'], {3 << 20})", seen.stderr
        assert len(server.ask("GET", "/v1/datasets").json()["datasets"]) == 3
    assert server.ask("GET", "/v1/datasets").json() == {"datasets": []}


def test_s1_a_sandbox_is_found_again_by_its_id(server: Served) -> None:
    async def first() -> tuple[str, int]:
        place = {"url": server.url, "key": server.key}
        box = belljar.aio.Sandbox(**place, environment="base")
        await box.open()
        await box.run("x = 41")
        process = await box.start(  # type: ignore[call-arg]
            "echo up; read line; echo got $line", shell=True, detached=True
        )
        async for printed in process.output():
            assert printed.data == b"up\n"
            break
        await box._client.close()  # type: ignore[attr-defined]
        return box.sandbox_id, process.process_id

    sandbox_id, process_id = asyncio.run(first())
    assert len(sandbox_id) == 32
    with belljar.Sandbox(url=server.url, key=server.key, sandbox_id=sandbox_id) as box:
        assert box.sandbox_id == sandbox_id
        assert box.run("x + 1").value == "42"
        process = box.process(process_id)
        process.write("more\n")
        assert process.wait(10).stdout == "up\ngot more\n"
    with pytest.raises(SandboxEnded):
        belljar.Sandbox(url=server.url, key=server.key, sandbox_id=sandbox_id).open()
    with pytest.raises(SandboxLost):
        belljar.Sandbox(url=server.url, key=server.key, sandbox_id="0" * 32).open()
    with pytest.raises(belljar.InvalidRequest):
        belljar.Sandbox(sandbox_id=sandbox_id)


def test_l6_what_a_callback_raises_ends_the_run_and_not_the_sandbox(there: belljar.Belljar) -> None:
    def refuse(event: object) -> None:
        raise RuntimeError("enough")

    with belljar.Sandbox(there, environment="base") as box:
        box.run("x = 5")
        started = time.monotonic()
        with pytest.raises(RuntimeError, match="enough"):
            box.run("import time; print(1, flush=True); time.sleep(25)", on_event=refuse)
        for _ in box.stream("import time; print(1, flush=True); time.sleep(25)"):
            break  # left half-way: the server stops it
        assert box.run("x").value == "5"
        assert time.monotonic() - started < 20


def test_s2_changes_are_told_and_a_broken_write_leaves_nothing(there: belljar.Belljar) -> None:
    with belljar.Sandbox(there, environment="base") as box:
        changes = box.files.watch(interval_s=0.05)
        box.run(
            "import threading, time\n"
            "threading.Timer(0.3, lambda: open('/workspace/new', 'w').close()).start()"
        )
        change = next(changes)
        assert (change.what, change.path) == ("created", "/workspace/new")
        with pytest.raises(RuntimeError), box.files.open("half", "wb") as writer:
            writer.write(bytes(1 << 20))
            raise RuntimeError
        time.sleep(0.3)
        assert not box.files.exists("half")
        box.files.write("odd \udcff?&#%", b"name")
        assert box.files.read("odd \udcff?&#%") == b"name"
        assert "/workspace/odd \udcff?&#%" in [info.path for info in box.files.list()]


# -- the command line ------------------------------------------------------------------------------


def command(server: Served, *arguments: str, stdin: str = "", **variables: str) -> Any:
    argv = [sys.executable, "-m", "belljar.cli.main", *arguments]
    named = {"BELLJAR_URL": server.url, "BELLJAR_KEY": server.key, **variables}
    return subprocess.run(
        argv, env=os.environ | named, input=stdin, capture_output=True, text=True, timeout=120
    )


def test_a2_run_at_a_server_is_as_run_here(server: Served, tmp_path: Path) -> None:
    """By BELLJAR_URL and BELLJAR_KEY, or by --url and --key; its runs are counted there."""
    runs = server.ask("GET", "/v1/usage").json()["runs"]
    (tmp_path / "table.csv").write_text("a\n1\n")
    code = (
        "import os, sys\n"
        "print(input(), os.environ['X'], open('/data/input/table.csv').read())\n"
        "open('/data/output/made', 'w').write('made')\n"
        "print('err', file=sys.stderr)\n"
        "sys.exit(3)"
    )
    given = ("--env", "X=y", "--input", str(tmp_path / "table.csv"), "-o", str(tmp_path / "out"))
    done = command(server, "run", "-c", code, *given, stdin="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "in y a\n1\n\n", "err\n")
    assert [one.read_text() for one in (tmp_path / "out").rglob("made")] == ["made"]
    assert server.ask("GET", "/v1/usage").json()["runs"] == runs + 1
    place = ("--url", server.url, "--key", server.key)
    slow = ("-c", "while True: pass", "--timeout", "0.3")
    done = command(server, "run", *slow, *place, BELLJAR_URL="http://127.0.0.1:1", BELLJAR_KEY="")
    assert (done.returncode, done.stderr) == (
        124,
        "belljar: timed out: the code was killed (see --timeout)\n",
    )
    told = json.loads(command(server, "run", "-c", "print(1)", "--json").stdout)
    assert (told["stdout"], told["status"]) == ("1\n", "ok")
    here = command(server, "run", "-c", "print(1)", "--url", "")
    assert here.stdout == "1\n"
    assert server.ask("GET", "/v1/usage").json()["runs"] == runs + 3


def test_a2_what_a_server_refuses_is_told_as_here(server: Served) -> None:
    for wrong, words in (
        (command(server, "run", "-c", "1", BELLJAR_KEY="blj_no"), "a valid key is needed"),
        (command(server, "run", "-c", "1", BELLJAR_URL="http://127.0.0.1:1"), "127.0.0.1:1"),
        (command(server, "run", "-c", "1", "--timeout", "1e6"), "above the maximum"),
        (command(server, "run", "-c", "1", "--url", "", "--key", "x"), "there is no server"),
        (command(server, "run", "-c", "1", "--package", "no such!"), "no such!"),
        (command(server, "run", "-c", "1", stdin="x" * (9 << 20)), "--input"),
    ):
        assert wrong.returncode == 125, wrong
        assert words in wrong.stderr and wrong.stdout == ""


def test_a2_a_shell_at_a_server(server: Served, tmp_path: Path) -> None:
    (tmp_path / "given.txt").write_text("given")
    lines = "x = 41\nprint(open('/data/input/given.txt').read())\n"
    lines += "%fork\n%switch b1\nprint(x + 1)\n1 / 0\n"
    done = command(server, "shell", "--input", str(tmp_path / "given.txt"), stdin=lines)
    assert "given\n" in done.stdout and "42\n" in done.stdout, done
    assert "ZeroDivisionError" in done.stderr and done.returncode == 1
    assert server.ask("GET", "/v1/sandboxes").json()["sandboxes"] == []
