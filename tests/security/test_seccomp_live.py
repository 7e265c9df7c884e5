"""The filter in force, in a process of its own: what it refuses, and what goes on working (I3).

Run as root these tests are at their sharpest: there only the filter stands in the way.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.engines.linux import kernel, seccomp, syscalls
from belljar.probes import load

SOURCE = str(Path(seccomp.__file__).parents[3])

INSTALL = """
import sys
sys.path.insert(0, {source!r})
from belljar.engines.linux import seccomp
seccomp.install(seccomp.build(memfd={memfd}, affinity={affinity}))
"""

CALLS = """
import ctypes, json, os, sys
sys.path.insert(0, {source!r})
from belljar.engines.linux import syscalls
numbers = syscalls.numbers(syscalls.this_machine())
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
buffer = ctypes.create_string_buffer(4096)
def register(value):
    if isinstance(value, str):
        return buffer if value == "buffer" else value.encode()
    return ctypes.c_long(value)
def call(name, *args):
    '''0 or the errno, from a child: some of these change the caller.'''
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        nr = name if isinstance(name, int) else numbers[name]
        result = libc.syscall(ctypes.c_long(nr), *map(register, args))
        os.write(writing, b"%d" % (ctypes.get_errno() if result == -1 else 0))
        os._exit(0)
    os.close(writing)
    answer = os.read(reading, 10)
    os.close(reading)
    os.waitpid(pid, 0)
    return int(answer or -1)
"""


def behind(source: str, *, memfd: bool = True, affinity: bool = True, filtered: bool = True) -> str:
    """Runs Python behind the filter and returns what it printed; its failure is the test's."""
    install = INSTALL.format(source=SOURCE, memfd=memfd, affinity=affinity) if filtered else ""
    done = subprocess.run(
        [sys.executable, "-c", install + source],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def errnos(calls: list[tuple[object, ...]], *, filtered: bool = True, **options: bool) -> list[int]:
    source = CALLS.format(source=SOURCE)
    source += f"print(json.dumps([call(*each) for each in json.loads({json.dumps(calls)!r})]))"
    answer = json.loads(behind(source, filtered=filtered, **options))
    assert isinstance(answer, list)
    return answer


# -- what it refuses -------------------------------------------------------------------------------

# The kernel itself lets anybody make these, or fails them with another errno.
OPEN_TO_ALL: list[tuple[object, ...]] = [
    ("ptrace", 0, 0, 0, 0),
    ("process_vm_readv", os.getpid(), 0, 0, 0, 0, 0),
    ("kcmp", os.getpid(), os.getpid(), 1, 0, 0),
    ("pidfd_getfd", -1, 0, 0),
    ("unshare", 0),
    ("setns", -1, 0),
    ("shmget", 0, 4096, 0o600),
    ("semget", 0, 1, 0o600),
    ("msgget", 0, 0o600),
    ("mq_open", "belljar-no-such-queue", 0, 0, 0),
    ("keyctl", 0, -3, 0),
    ("add_key", 0, 0, 0, 0, 0),
    ("io_setup", 1, 0),
    ("vmsplice", -1, 0, 0, 0),
    ("name_to_handle_at", -1, 0, 0, 0, 0),
    ("fanotify_mark", -1, 0, 0, -1, 0),
    ("perf_event_open", 0, 0, -1, -1, 0),
    ("personality", 0x0040000),
    ("set_mempolicy", 0, 0, 0),
    ("move_pages", 0, 0, 0, 0, 0, 0),
    ("ioprio_set", 1, 0, 2 << 13),
    ("io_uring_setup", 0, "buffer"),
    ("memfd_secret", -1),
    ("statmount", 0, 0, 0, 0),
    ("seccomp", 2, 0, "buffer"),
    ("syncfs", -1),
    ("socket", 40, 1, 0),
    ("socket", 16, 3, 12),
    ("socket", 2, 1, 262),
    ("setsockopt", -1, 1, 26, 0, 0),
    ("ioctl", -1, 0x5412, 0),
    ("ioctl", -1, 0x40086602 | 1 << 32, 0),
    ("prctl", 59, 0, 0, 0, 0),
    ("prctl", 22, 2, 0, 0, 0),
    ("prctl", 0x59616D61, 0, 0, 0, 0),
    ("clone3", 0, 0),
    ("prlimit64", os.getpid(), 7, 0, 0),
    ("setpriority", 0, os.getpid(), 19),
    ("fcntl", -1, 1024, 1),
    ("mmap", 0, 1, 3, 0x40022, -1, 1),
]
# Here only the privileges of root make the difference. All have arguments that do no harm.
OPEN_TO_ROOT: list[tuple[object, ...]] = [
    ("mount", "none", "/tmp", "belljar-no-such-fs", 0, 0),
    ("umount2", "/nonexistent", 0),
    ("pivot_root", "/nonexistent", "/nonexistent"),
    ("chroot", "/nonexistent"),
    ("fsopen", "belljar-no-such-fs", 0),
    ("open_tree", -1, "/nonexistent", 0),
    ("mount_setattr", -1, "", 0x1000, "buffer", 32),
    ("reboot", 0, 0, 0, 0),
    ("swapon", "/nonexistent", 0),
    ("acct", "/nonexistent"),
    ("init_module", 0, 0, ""),
    ("finit_module", -1, "", 0),
    ("kexec_load", 0, 1000000, 0, 0xFF00),
    ("sethostname", 0, -1),
    ("bpf", 9999, 0, 0),
    ("open_by_handle_at", -1, "buffer", 0),
    ("quotactl", -1, 0, 0, 0),
    ("userfaultfd", -1),
    ("mknodat", -1, "", 0o020666, 0),
    ("socket", 17, 3, 0),
]


def expected(name: object, *args: object) -> int:
    """From the table; tests/unit/test_seccomp.py holds that against a list of its own."""
    for verdict, checks in syscalls.clauses(str(name)):
        numbers = [arg if isinstance(arg, int) else 0 for arg in args] + [0] * 6
        if all(numbers[index] & mask in values for index, mask, values in checks):
            return verdict
    raise AssertionError(name)


def test_refused_calls_fail_with_their_errno() -> None:
    """I3, PV-05 to PV-21, PR-05, PR-06, NW-06 to NW-09."""
    calls = OPEN_TO_ALL + OPEN_TO_ROOT
    wanted = [expected(*call) for call in calls]
    assert all(wanted), "a call in this list is allowed"
    assert dict(zip(map(str, calls), errnos(calls), strict=True)) == dict(
        zip(map(str, calls), wanted, strict=True)
    )


def test_without_the_filter_they_answer_otherwise() -> None:
    """So the test above can fail. A few agree by chance: features this kernel does not have."""
    calls = OPEN_TO_ALL + (OPEN_TO_ROOT if os.geteuid() == 0 else [])
    bare = errnos(calls, filtered=False)
    alike = [call for call, code in zip(calls, bare, strict=True) if code == expected(*call)]
    assert len(alike) < len(calls) / 4, alike


def test_namespaces_cannot_be_nested() -> None:
    """I1, PV-08, PV-25: also not with clone, for any of the flags."""
    flags = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
    calls: list[tuple[object, ...]] = [("clone", flag | 17, 0, 0, 0, 0) for flag in flags]
    calls += [("clone", flag | 17 | 0xFFFF << 32, 0, 0, 0, 0) for flag in flags]
    assert set(errnos(calls)) == {errno.EPERM}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="an entry point of x86")
def test_the_32_bit_entry_point_is_closed() -> None:
    """I3, PV-22: int 0x80 with the number that is getpid there and writev here."""
    source = """
import ctypes, mmap, os
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("53 b814000000 cd80 5b c3"))
getpid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
answer = getpid()
print("own pid" if answer == os.getpid() else answer)
"""
    assert behind(source) == str(-errno.ENOSYS)


@pytest.mark.skipif(os.uname().machine != "aarch64", reason="a way in of ARM")
def test_32_bit_programs_of_arm_get_nowhere() -> None:
    """I3, PV-22: the kernel runs them, and their numbers mean other calls here."""
    getpid = next(probe for probe in load() if probe.id == "PV-22").render({})
    if "BROKEN" not in behind(getpid, filtered=False):
        pytest.skip("this processor or kernel runs no 32-bit programs")
    assert "HELD" in behind(getpid)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="an entry point of x86")
def test_the_x32_entry_point_is_closed() -> None:
    """I3: its getpid, and its own numbers from 512 on, with and without its bit."""
    calls: list[tuple[object, ...]] = [(0x40000000 | 39,), (0x40000000 | 520,), (512,), (545,)]
    assert set(errnos(calls)) == {errno.ENOSYS}


def test_unknown_calls_are_refused() -> None:
    assert set(errnos([(450 + 300,), (9999,), (-1,), (0x7FFFFFFF,)])) == {errno.ENOSYS}


def test_the_options_take_effect() -> None:
    calls: list[tuple[object, ...]] = [
        ("memfd_create", "x", 0),
        ("sched_setaffinity", 0, 4096, "buffer"),
    ]
    without = errnos(calls, memfd=False, affinity=False)
    assert without == [errno.ENOSYS, errno.EPERM]
    assert errnos(calls) == [0, errno.EINVAL]  # EINVAL: the kernel saw an empty set of cores


def test_it_holds_after_exec_and_in_threads() -> None:
    """PV-02, PV-04."""
    source = """
import subprocess, threading
def look():
    fields = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
    status = dict(line.split(":", 1) for line in fields.splitlines())
    print(status["NoNewPrivs"].strip(), status["Seccomp"].strip())
thread = threading.Thread(target=look)
thread.start()
thread.join()
look()
"""
    assert behind(source).split("\n") == ["1 2", "1 2"]


# -- what goes on working --------------------------------------------------------------------------

WORKS = {
    "threads": """
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert sum(pool.map(abs, range(100))) == 4950
""",
    "subprocess": """
import subprocess
assert subprocess.check_output("echo a | tr a b; ls / >/dev/null", shell=True) == b"b\\n"
try:
    subprocess.run(["sleep", "9"], timeout=0.1)
except subprocess.TimeoutExpired:
    print("killed")
""",
    "sqlite3": """
import sqlite3, tempfile
with tempfile.TemporaryDirectory() as folder:
    base = sqlite3.connect(folder + "/x.db")
    assert base.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    base.execute("create table t(a)")
    base.execute("insert into t values (1)")
    base.commit()
    assert base.execute("select a from t").fetchall() == [(1,)]
    base.close()
""",
    "multiprocessing": """
import multiprocessing, operator
from multiprocessing import shared_memory
for way in ("fork", "spawn", "forkserver"):
    with multiprocessing.get_context(way).Pool(2) as pool:
        assert pool.map(operator.neg, [1, 2]) == [-1, -2]
block = shared_memory.SharedMemory(create=True, size=4096)
block.close()
block.unlink()
queue = multiprocessing.Queue()
child = multiprocessing.get_context("fork").Process(target=queue.put, args=(7,))
child.start()
assert queue.get(timeout=20) == 7
child.join()
""",
    "pty": """
import fcntl, os, pty, struct, termios
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", "test -t 0 && stty -echo && echo a terminal"])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
said = b""
try:
    while part := os.read(terminal, 100):
        said += part
except OSError:
    pass
assert b"a terminal" in said, said
assert os.waitpid(pid, 0)[1] == 0
""",
    "asyncio": """
import asyncio
async def main():
    cat = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    assert (await cat.communicate(b"x"))[0] == b"x"
    async def answer(reader, writer):
        writer.write(b"hello")
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b"hello"
    writer.close()
    server.close()
asyncio.run(main())
""",
    "signals and timers": """
import os, signal, time
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
assert seen
pidfd = os.pidfd_open(os.getpid())
signal.signal(signal.SIGUSR1, lambda *_: seen.append(2))
signal.pidfd_send_signal(pidfd, signal.SIGUSR1)
assert seen == [1, 2]
""",
    "files": """
import mmap, os, shutil, tempfile
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    with open("a", "wb") as file:
        file.write(b"x" * 5000)
    shutil.copy2("a", "b")
    os.link("a", "c")
    os.symlink("a", "d")
    os.mkfifo("e")
    os.rename("c", "f")
    os.chmod("f", 0o600)
    os.utime("f")
    os.truncate("f", 10)
    with open("b", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[0] = 1
        view.madvise(mmap.MADV_DONTNEED)
    assert os.listxattr("a") is not None
    assert sorted(os.listdir()) == ["a", "b", "d", "e", "f"]
    os.chdir("/")
""",
    "sockets": """
import select, socket
left, right = socket.socketpair()
left.sendall(b"x")
assert select.select([right], [], [], 1)[0]
socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
assert socket.getaddrinfo("127.0.0.1", 80)
""",
    "scheduling": """
import os, resource
os.nice(1)
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 500), hard))
os.sync()
""",
}


@pytest.mark.parametrize("what", WORKS)
def test_ordinary_programs_work(what: str) -> None:
    """I3, R2: as on a bare host."""
    behind(WORKS[what])


PROGRAMS = {
    "bash": "x=$(echo a | cat); [ $x = a ] && cat <(echo b) && echo c | while read l; do :; done",
    "git": "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m a "
    "&& git clone -q . copy",
    "gcc": "echo 'int main(void){return 0;}' > a.c && gcc -o a a.c && ./a",
    "node": 'node -e \'new (require("worker_threads").Worker)("1", {eval: true})'
    '.on("exit", () => require("child_process").execSync("true"))\'',
    "tar": "echo a > a && tar czf a.tgz a && tar xzf a.tgz",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_other_programs_work(program: str, tmp_path: Path) -> None:
    """I3: those of them that are on this machine."""
    if not shutil.which(program) or not shutil.which("bash"):
        pytest.skip(f"no {program} here")
    behind(
        f"import subprocess; subprocess.run(['bash', '-ec', {PROGRAMS[program]!r}], check=True, "
        f"cwd={str(tmp_path)!r}, env=dict(__import__('os').environ, HOME={str(tmp_path)!r}))"
    )


# -- becoming a sandbox ----------------------------------------------------------------------------

CHILDREN = """
import os, random, sys, threading, time
sys.path.insert(0, {source!r})
from belljar.engines.linux import kernel

threading.Thread(target=lambda: None).start()  # threading has state that a fork must mend
drawn = set()
for _ in range({count}):
    reading, writing = os.pipe()
    pid, pidfd = kernel.clone3({flags}, pidfd=True)
    if pid == 0:
        thread = threading.Thread(target=lambda: os.write(writing, b"thread "))
        thread.start()
        thread.join()
        assert pidfd == -1
        assert threading.current_thread() is threading.main_thread()
        # libc must know the new thread id, or there is no clock of that name
        time.clock_gettime(time.pthread_getcpuclockid(threading.get_ident()))
        os.write(writing, f"{{os.getpid()}} {{random.random()}}".encode())
        os._exit(7)
    os.close(writing)
    said = b""
    while part := os.read(reading, 100):
        said += part
    os.close(reading)
    assert os.waitid(os.P_PIDFD, pidfd, os.WEXITED).si_status == 7, said
    os.close(pidfd)
    word, inner_pid, number = said.decode().split()
    assert word == "thread"
    assert int(inner_pid) == (1 if {flags} & kernel.CLONE_NEWPID else pid)
    drawn.add(number)
assert len(drawn) == {count}, "children share their random numbers"
"""


def namespaces_allowed() -> bool:
    done = subprocess.run(["unshare", "-Ur", "true"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("flags", [0, kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID])
def test_clone3_makes_sound_interpreters(flags: int) -> None:
    """F1: a sandbox is a fork of a warm interpreter; it must be as good as a new one."""
    if flags and not namespaces_allowed():
        pytest.skip("this user may not make user namespaces")
    behind(CHILDREN.format(source=SOURCE, flags=flags, count=200), filtered=False)


def test_a_failed_clone3_leaves_the_parent_whole() -> None:
    source = f"""
import os, sys
sys.path.insert(0, {SOURCE!r})
from belljar.engines.linux import kernel
for _ in range(20):
    try:
        kernel.clone3(kernel.CLONE_NEWNS | 0x200)  # CLONE_FS, which excludes it
    except OSError as error:
        print(error)
import importlib, decimal  # needs the import lock
pid = os.fork()
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    assert (
        behind(source, filtered=False).split("\n") == ["[Errno 22] clone3: Invalid argument"] * 20
    )


def test_capabilities_are_gone_for_good() -> None:
    """I1, PV-01: all five sets, from the full ones a new user namespace gives."""
    if not namespaces_allowed():
        pytest.skip("this user may not make user namespaces")
    source = f"""
import os, sys
sys.path.insert(0, {SOURCE!r})
from belljar.engines.linux import capabilities, kernel
pid, _ = kernel.clone3(kernel.CLONE_NEWUSER)
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
before = capabilities.current()
assert before["CapEff"] == before["CapPrm"] == before["CapBnd"] != 0, before
capabilities.drop()
assert set(capabilities.current().values()) == {{0}}, capabilities.current()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
sets = {{name: int(status[name], 16) for name in capabilities.current()}}
assert sets == capabilities.current(), sets
try:
    kernel.sethostname("free")
except OSError as error:
    print(error.errno)
capabilities.drop()  # and once more, without the right to: nothing is left, so nothing fails
"""
    assert behind(source, filtered=False) == str(errno.EPERM)
