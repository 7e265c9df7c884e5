"""On macOS and Windows there are no sandboxes, which is said plainly, and the client works (K1).

An interpreter that lacks what those systems lack (tests/elsewhere.py) talks to a real server here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.testing.served import Served, served

HERE = Path(__file__).parents[2]
ELSEWHERE = [sys.executable, str(HERE / "tests" / "elsewhere.py")]
SYSTEMS = ("darwin", "win32")
REMEDIES = {
    "darwin": ("macOS", "Lima", "multipass"),
    "win32": ("Windows", "WSL2", "wsl --install"),
}
pytestmark = pytest.mark.parametrize("system", SYSTEMS)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(sandboxes={"pool_size": 1, "build_environments": False}) as server:
        yield server


def python(
    system: str, *arguments: str, server: Served | None = None, stdin: str = "", cwd: Path = HERE
) -> subprocess.CompletedProcess[str]:
    place = {"BELLJAR_URL": server.url, "BELLJAR_KEY": server.key} if server else {}
    variables = {name: value for name, value in os.environ.items() if "BELLJAR" not in name}
    done = subprocess.run(
        [*ELSEWHERE, system, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        cwd=cwd,
        env={**variables, **place},
    )
    assert "RuntimeWarning" not in done.stderr, done.stderr
    return done


def command(system: str, *arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return python(system, "-m", "belljar.cli.main", *arguments, **more)  # type: ignore[arg-type]


# -- the pretence is one ---------------------------------------------------------------------------


def test_what_the_system_lacks_is_not_there(system: str) -> None:
    code = """
import os, select, signal, sys
assert not hasattr(os, "memfd_create") and not hasattr(os, "pidfd_open")
assert not hasattr(select, "epoll") and not os.path.exists("/proc/self/status")
for name in ("fcntl", "resource", "termios", "pwd", "grp", "pty"):
    try:
        __import__(name)
        print("has", name)
    except ModuleNotFoundError:
        print("lacks", name)
print(sys.platform, hasattr(os, "fork"), hasattr(signal, "SIGKILL"))
"""
    lines = python(system, "-c", code).stdout.splitlines()
    assert lines[-1] == f"{system} {system == 'darwin'} {system == 'darwin'}"
    assert {line.split()[0] for line in lines[:-1]} == {"has" if system == "darwin" else "lacks"}


# -- one clear answer ------------------------------------------------------------------------------


def test_every_public_name_can_be_imported(system: str) -> None:
    code = """
import belljar
print([getattr(belljar, name) and name for name in belljar.__all__ if name != "wasm"])
"""
    done = python(system, "-c", code)
    assert done.returncode == 0 and "'Sandbox'" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "belljar.run('print(1)')",
        "belljar.Belljar()",
        "belljar.Sandbox().run('1')",
        "belljar.wasm",
        "belljar.aio.Belljar()",
        "__import__('asyncio').run(belljar.aio.run('1'))",
        "belljar.run('print(1)', engine='docker')",
    ],
)
def test_the_library_says_what_to_do(system: str, call: str) -> None:
    code = f"""
import belljar
try:
    {call}
except belljar.EngineUnavailable as error:
    print(error.message, "|", error.hint)
"""
    done = python(system, "-c", code)
    name, *words = REMEDIES[system]
    assert done.stdout.startswith(f"sandboxes need Linux, and this is {name} |"), done.stderr
    assert all(word in done.stdout for word in (*words, "url=", "BELLJAR_URL", "docs/client.md"))


@pytest.mark.parametrize(
    "arguments",
    ["run -c 1", "shell", "doctor", "engines", "prove", "serve", "mcp", "env list", "trail list"],
)
def test_the_command_line_says_what_to_do(system: str, arguments: str) -> None:
    done = command(system, *arguments.split())
    assert done.returncode == 125
    first, second, *rest = done.stderr.splitlines()
    name, *words = REMEDIES[system]
    assert first == f"belljar: sandboxes need Linux, and this is {name}" and not rest
    assert all(word in second for word in words)


def test_help_and_version_work(system: str) -> None:
    assert "Runs code that nobody vouches for" in command(system, "--help").stdout
    assert command(system, "serve", "--help").returncode == 0
    assert command(system, "version").stdout.strip()


# -- the client ------------------------------------------------------------------------------------


def test_the_library_works_at_a_server(system: str, server: Served, tmp_path: Path) -> None:
    """Runs, output as it comes, kept sandboxes with files, copies and programs, uploads."""
    (tmp_path / "sales.csv").write_text("a,b\n1,2\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.txt").write_text("from a folder")
    code = """
import asyncio, os, pathlib, belljar
place = {"url": os.environ["BELLJAR_URL"]}
print(belljar.run("print(6 * 7)", **place).stdout.strip())
seen = []
async def main():
    on_output = lambda name, data: seen.append(bytes(data))
    result = await belljar.aio.run("print(1); print(2)", on_output=on_output, **place)
    async with belljar.aio.Sandbox(**place) as box:
        program = await box.start(["sleep", "60"])
        await program.kill()
        ended = await program.wait()
    return result.status, ended.signal
print(asyncio.run(main()), b"".join(seen))
inputs = {"sales.csv": pathlib.Path("sales.csv"), "folder": pathlib.Path("folder")}
with belljar.Sandbox(**place, inputs=inputs, environment="base") as box:
    box.run("rows = open('/data/input/sales.csv').read().splitlines()")
    print(box.run("len(rows)").value, box.run("open('/data/input/folder/x.txt').read()").value)
    copy, = box.fork(1)
    copy.run("rows.append(1)")
    print(copy.run("len(rows)").value, box.run("len(rows)").value)
    box.files.write("/workspace/there.txt", "hello")
    box.files.download("/workspace/there.txt", "here.txt")
    print(pathlib.Path("here.txt").read_text(), box.exec(["echo", "shell"]).stdout.strip())
"""
    done = python(system, "-c", code, server=server, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "42",
        "('ok', 9) b'1\\n2\\n'",
        "2 'from a folder'",
        "3 2",
        "hello shell",
    ], done.stderr


def test_the_command_line_works_at_a_server(system: str, server: Served, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("import sys; print(sys.stdin.read(), open('in.txt').read())")
    (tmp_path / "in.txt").write_text("file")
    (tmp_path / "input.txt").write_text("input")
    done = command(
        *(system, "run", "code.py", "--file", "in.txt", "--stdin", "input.txt"),
        server=server,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "input file\n"), done.stderr
    done = command(system, "run", "-", server=server, stdin="raise SystemExit(7)")
    assert done.returncode == 7
    made = "open('/data/output/a.txt', 'w').write('made')"
    done = command(system, "run", "-c", made, "-o", "out", server=server, cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "out" / "a.txt").read_text() == "made", done.stderr
    nested = "import os; os.mkdir('/data/output/d'); open('/data/output/d/b', 'w').write('below')"
    done = command(system, "run", "-c", nested, "-o", "out", server=server, cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "out/d/b").read_text() == "below", done.stderr
    done = command(system, "shell", server=server, stdin="x = 20\nx + 22\n")
    assert "42" in done.stdout, done.stderr


def test_a_wrong_key_is_the_servers_answer(system: str, server: Served) -> None:
    done = command(system, "run", "--url", server.url, "--key", "blj_wrong", "-c", "1")
    assert done.returncode == 125 and "Traceback" not in done.stderr


# -- what pip installs -----------------------------------------------------------------------------


def test_what_is_installed_has_a_wheel_for_the_system(system: str) -> None:
    """Dependencies of the library and the client are pure Python, but for uv, which has wheels for
    every system; what has none for Windows is not asked for there."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["client"]]
    names = {line.partition(">")[0] for line in wanted}
    assert names == {"typer", "rich", "uv", "httpx"}
    for extra, lines in project["optional-dependencies"].items():
        if extra != "dev":
            uvloop = [line for line in lines if line.startswith("uvloop")]
            assert all("sys_platform != 'win32'" in line for line in uvloop)
