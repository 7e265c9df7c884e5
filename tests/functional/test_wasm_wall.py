"""I1-I3, R3: the process around the module, looked at from outside and attacked from inside."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from belljar import Belljar, EngineUnavailable, Settings
from belljar.engines import registry
from belljar.engines.wasm import compiled, fetch, runtimes

missing = registry.why_not("wasm", Settings())
pytestmark = pytest.mark.skipif(missing is not None, reason=f"wasm: {missing}")

LOOP = "print('on', flush=True)\nwhile True: pass"


@pytest.fixture
def jar() -> Iterator[Belljar]:
    with Belljar(Settings(pool_size=0, engine="wasm")) as jar:
        yield jar


def children(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry))
    return found


def zygotes(pid: int, but: Collection[int] = ()) -> list[int]:
    """`but`: those of other engines, which tests beside these may have left waiting."""
    mark = b"exec(os.read"
    return [
        c for c in children(pid) if c not in but and mark in Path(f"/proc/{c}/cmdline").read_bytes()
    ]


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


class Running:
    """A run under way in another thread, and the pid of its process."""

    def __init__(self, jar: Belljar, code: str = LOOP, **options: object) -> None:
        on = threading.Event()
        self.results: list[object] = []
        before = [z for z in zygotes(os.getpid()) if children(z)]
        self._thread = threading.Thread(
            target=lambda: self.results.append(
                jar.run(code, on_output=lambda *_: on.set(), **options)  # type: ignore[arg-type]
            )
        )
        self._thread.start()
        assert on.wait(20)
        (zygote,) = [z for z in zygotes(os.getpid(), before) if children(z)]
        (self.pid,) = children(zygote)
        self.zygote = zygote

    def end(self) -> object:
        self._thread.join(20)
        return self.results[0]


def test_the_process_has_nothing(jar: Belljar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_TEST_SECRET", "secret")
    running = Running(jar, timeout_s=3)
    seen = status(running.pid)
    assert (seen["Seccomp"], seen["NoNewPrivs"], seen["Threads"]) == ("2", "1", "2")
    for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(seen[kind], 16) == 0
    if os.geteuid() == 0:
        assert int(seen["CapBnd"], 16) == 0
        assert seen["Uid"].split() == [seen["Uid"].split()[0]] * 4 != ["0"] * 4
        assert seen["Gid"].split() == [seen["Uid"].split()[0]] * 4
        assert seen["Groups"] == ""
        assert os.listdir(f"/proc/{running.pid}/fd") == ["3"], "the stream to the host, only"
        assert b"secret" not in Path(f"/proc/{running.pid}/environ").read_bytes()
        assert os.getsid(running.pid) != os.getsid(0)
    running.end()


# Confined like a sandbox, in a process of its own, it tries what a hole in the module's wall would
# let somebody try.
ATTACK = """
import ctypes, os, sys
sys.path.insert(0, {root!r})
from belljar.engines.linux import kernel, syscalls
from belljar.engines.wasm import confine
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def attempt(call, *arguments):
    return libc.syscall(number[call], *(ctypes.c_void_p(argument) for argument in arguments))
number = syscalls.numbers(syscalls.this_machine())
program = confine.allowed_calls()
confine.forget_privileges()
buffer = ctypes.create_string_buffer(64)
path = ctypes.create_string_buffer(b"/etc/passwd")
shell = ctypes.create_string_buffer(b"/bin/sh")
tries = [
    ("open", ("openat", -100, ctypes.addressof(path), 0, 0)),
    ("create", ("openat", -100, ctypes.addressof(path), 0o102, 0)),
    ("stat", ("newfstatat", -100, ctypes.addressof(path), ctypes.addressof(buffer), 0)),
    ("socket", ("socket", 1, 1, 0)),
    ("socketpair", ("socketpair", 1, 1, 0, ctypes.addressof(buffer))),
    ("execve", ("execve", ctypes.addressof(shell), 0, 0)),
    ("fork", ("clone", 17, 0, 0, 0, 0)),
    ("clone3", ("clone3", ctypes.addressof(buffer), 64)),
    ("kill", ("kill", os.getppid(), 0)),
    ("kill all", ("kill", -1, 0)),
    ("tgkill", ("tgkill", os.getppid(), os.getppid(), 0)),
    ("ptrace", ("ptrace", 16, os.getppid(), 0, 0)),
    ("read others", ("process_vm_readv", os.getppid(), 0, 0, 0, 0, 0)),
    ("new code", ("mmap", 0, 4096, 7, 0x22, -1, 0)),
    ("unshare", ("unshare", 0x10000000)),
    ("mount", ("mount", 0, 0, 0, 0, 0)),
    ("setuid", ("setresuid", 0, 0, 0)),
    ("limits of others", ("prlimit64", os.getppid(), 7, 0, ctypes.addressof(buffer))),
    ("memfd", ("memfd_create", ctypes.addressof(path), 0)),
    ("io_uring", ("io_uring_setup", 8, ctypes.addressof(buffer))),
    ("ioctl", ("ioctl", 1, 0x5412, ctypes.addressof(buffer))),
    ("bpf", ("bpf", 0, 0, 0)),
    ("prctl", ("prctl", 4, 1, 0, 0, 0)),
    ("shared memory", ("shmget", 0, 4096, 0o1777)),
]
before = {{}}
for name, (call, *arguments) in tries:
    if name in ("open", "stat", "socket", "memfd", "new code"):
        before[name] = attempt(call, *arguments)
os.close(0)
confine.confine(program, os.getppid())
done = []
for name, (call, *arguments) in tries:
    if attempt(call, *arguments) != -1 or ctypes.get_errno() not in (1, 38):
        done.append(f"{{name}} {{ctypes.get_errno()}}")
dead = [name for name, result in before.items() if result < 0]
os.write(1, f"succeeded: {{done}} impossible before: {{dead}}".encode())
"""


def test_a_hole_in_the_module_would_lead_nowhere(tmp_path: Path) -> None:
    root = str(Path(compiled.__file__).parents[3])
    script = ATTACK.format(root=root)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.stdout == b"succeeded: [] impossible before: []", done.stderr


def test_a_killed_sandbox_is_a_killed_run_and_nobody_elses(jar: Belljar) -> None:
    running = Running(jar)
    os.kill(running.pid, signal.SIGKILL)
    result = running.end()
    assert result.status == "killed"  # type: ignore[attr-defined]
    assert jar.run("print(1)").stdout == "1\n"


def test_a_killed_zygote_is_replaced(jar: Belljar) -> None:
    running = Running(jar)
    os.kill(running.zygote, signal.SIGKILL)
    assert running.end().status == "killed"  # type: ignore[attr-defined]
    assert jar.run("print(1)").stdout == "1\n"


def test_nothing_is_left_of_a_belljar_that_was_killed(eventually: Callable[..., None]) -> None:
    """R3, with sandboxes waiting and running."""
    script = textwrap.dedent(
        f"""
        import sys, threading
        from belljar import Belljar, Settings
        jar = Belljar(Settings(pool_size=2, engine="wasm"))
        jar.run("print(1)")
        say = lambda *_: print("on", flush=True)
        for _ in range(2):
            threading.Thread(target=jar.run, args=({LOOP!r},), kwargs=dict(on_output=say)).start()
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == process.stdout.readline() == b"on\n"
    family = zygotes(process.pid)
    family += [child for zygote in family for child in children(zygote)]
    assert len(family) >= 3
    process.kill()
    process.wait()

    def alive() -> list[int]:
        return [
            pid
            for pid in family
            if Path(f"/proc/{pid}").exists() and status(pid)["State"][0] != "Z"
        ]

    eventually(alive, [], within_s=5)


def test_nothing_is_left_after_closing() -> None:
    others = zygotes(os.getpid())
    with Belljar(Settings(pool_size=3, engine="wasm")) as jar:
        jar.run("print(1)")
        jar.run("console.log(1)", language="javascript")
        family = zygotes(os.getpid(), others)
        assert len(family) == 2
        family += [child for zygote in family for child in children(zygote)]
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]


def test_many_at_once() -> None:
    """F2: fifty sandboxes, all of them running at the same time."""
    with Belljar(Settings(pool_size=0, engine="wasm", concurrency=50)) as jar:
        jar.run("print(1)")
        answers: list[str] = []
        here = threading.Barrier(50, timeout=100)

        def one(number: int) -> None:
            code = f"import sys\nprint('on', flush=True)\nsys.stdin.read()\nprint({number})"
            reader, writer = os.pipe()

            def met() -> None:
                here.wait()
                os.close(writer)

            begun = iter((threading.Thread(target=met).start, *([lambda: None] * 9)))
            result = jar.run(
                code, stdin_descriptor=reader, on_output=lambda *_: next(begun)(), timeout_s=120
            )
            os.close(reader)
            answers.append(result.stdout)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert sorted(answers) == sorted(f"on\n{number}\n" for number in range(50))


# -- what is executed ------------------------------------------------------------------------------


def test_compiled_code_that_others_could_have_written_is_not_executed(tmp_path: Path) -> None:
    folder = tmp_path / "wasm"
    folder.mkdir(mode=0o700)
    file = folder / "a.cwasm"
    file.write_bytes(b"x")
    file.chmod(0o600)
    assert compiled.trusted(file)
    for path, mode in ((file, 0o660), (file, 0o602), (folder, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert not compiled.trusted(file), (path, oct(mode))
        path.chmod(before)
    link = folder / "link.cwasm"
    link.symlink_to(file)
    assert not compiled.trusted(link)
    assert not compiled.trusted(folder / "gone")
    if os.geteuid() == 0:
        os.chown(file, 12345, 12345)
        assert not compiled.trusted(file)


def archive(member: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        info = tarfile.TarInfo(member)
        info.size = len(content)
        file.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def runtime_of(data: bytes, member: str = "package/a.wasm") -> runtimes.Runtime:
    integrity = base64.b64encode(hashlib.sha512(data).digest()).decode()
    return runtimes.Runtime(
        name="a", package="a", version="1", integrity=integrity, member=member, boot="boot.py"
    )


def test_an_archive_is_taken_only_if_it_is_the_one_we_know() -> None:
    data = archive("package/a.wasm", b"\0asm1234")
    known = runtime_of(data)
    assert fetch._module(known, data) == b"\0asm1234"
    with pytest.raises(EngineUnavailable, match="not the one we know"):
        fetch._module(known, archive("package/a.wasm", b"\0asmevil"))
    other = archive("package/a.wasm", b"\x7fELF")
    with pytest.raises(EngineUnavailable, match="no WebAssembly module"):
        fetch._module(runtime_of(other), other)


def test_a_machine_without_the_interpreters_says_how_to_get_them(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, build_environments=False, engine="wasm")
    found = registry.why_not("wasm", settings)
    assert found is not None
    assert "belljar image build --wasm" in found.hint
    with Belljar(settings) as jar, pytest.raises(EngineUnavailable, match="image build"):
        jar.run("print(1)")


def test_a_registry_that_is_not_there_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    with pytest.raises(EngineUnavailable, match="could not be fetched") as refusal:
        fetch.build(Settings(home=tmp_path))
    assert "npm config set registry" in refusal.value.hint
    assert not list((tmp_path / "wasm").glob("*.wasm"))
    assert not list((tmp_path / "wasm").glob(".fetch-*"))
