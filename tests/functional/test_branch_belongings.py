"""What code had open before a fork or a rollback: a branch shares none of it (S6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import belljar
from belljar.errors import BelljarError


@pytest.fixture
def box(jar: belljar.Belljar) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(jar, environment="base", max_runs=100) as box:
        box.run("import os, mmap, socket, select, tempfile")
        yield box


@pytest.fixture
def fork(box: belljar.Sandbox) -> Iterator[Fork]:
    made = Fork(box)
    yield made
    for branch in made.branches:
        branch.close()


class Fork:
    """The parent prepares, then the branch acts, and then both are looked at."""

    def __init__(self, box: belljar.Sandbox) -> None:
        self.box = box
        self.branches: list[belljar.Sandbox] = []

    def after(self, code: str) -> belljar.Sandbox:
        done = self.box.run(code)
        assert done.status == "ok", done.stderr
        (branch,) = self.box.fork()
        self.branches.append(branch)
        return branch


def said(box: belljar.Sandbox, code: str) -> str:
    result = box.run(code)
    assert result.status == "ok", result.stderr
    return str(result.value)


# -- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "way"),
    [
        ("/workspace", "planted"),
        ("/workspace/deep", "../planted"),
        ("/", "workspace/planted"),
        ("/usr", "../workspace/planted"),
        ("/data/input", "../../workspace/planted"),
        ("/dev/shm", "../../workspace/planted"),
        ("/proc/self", "../../workspace/planted"),
    ],
)
def test_s6_no_folder_leads_a_branch_into_its_parents_workspace(
    box: belljar.Sandbox, fork: Fork, folder: str, way: str
) -> None:
    box.run("os.mkdir('deep')")
    flags = ("os.O_RDONLY", "os.O_PATH")
    branch = fork.after(f"held = [os.open({folder!r}, flag) for flag in ({', '.join(flags)})]")
    plant = (
        "for folder in held:\n"
        f"    try: os.close(os.open({way!r}, os.O_CREAT | os.O_WRONLY, dir_fd=folder))\n"
        "    except OSError: pass\n"
        "    try: os.fchdir(folder); os.close(os.open('x', os.O_CREAT | os.O_WRONLY))\n"
        "    except OSError: pass"
    )
    branch.run(plant)
    assert said(box, "sorted(os.listdir('/workspace')), os.listdir('deep')") == "(['deep'], [])"


def test_s6_a_folder_that_is_open_is_the_branchs_own(fork: Fork) -> None:
    branch = fork.after("os.mkdir('d'); d = os.open('d', os.O_RDONLY); os.chdir('d')")
    code = "os.close(os.open('f', os.O_CREAT, dir_fd=d)); os.listdir('/workspace/d'), os.getcwd()"
    assert said(branch, code) == "(['f'], '/workspace/d')"
    assert said(fork.box, "os.listdir(d)") == "[]"


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "opened",
    [
        "tempfile.TemporaryFile()",
        "open('/dev/shm/f', 'w+b')",
        "os.fdopen(os.memfd_create('f'), 'w+b')",
        "open('f', 'w+b')",
    ],
)
def test_s6_an_open_file_is_the_branchs_own(fork: Fork, opened: str) -> None:
    needs_memfd(fork.box, opened)
    branch = fork.after(f"f = {opened}; f.write(b'parent'); f.flush()")
    assert said(branch, "f.write(b' child'); f.flush(); f.seek(0); f.read()") == "b'parent child'"
    assert said(fork.box, "f.tell(), f.seek(0), f.read()") == "(6, 0, b'parent')"
    assert said(branch, "f.seek(0); f.read()") == "b'parent child'"


def needs_memfd(box: belljar.Sandbox, code: str) -> None:
    if "memfd" in code and box.run("os.memfd_create('f')").status != "ok":
        pytest.skip("memfd_create is refused where no cgroup counts its memory")


def test_s6_how_far_a_file_was_read_is_the_branchs_own(jar: belljar.Belljar) -> None:
    with belljar.Sandbox(jar, environment="base", inputs={"data": b"0123456789"}) as box:
        box.run("import os; f = os.open('/data/input/data', os.O_RDONLY); os.read(f, 2)")
        (branch,) = box.fork()
        assert said(branch, "os.read(f, 4)") == "b'2345'"
        assert said(box, "os.read(f, 4)") == "b'2345'"
        branch.close()


def test_s6_two_descriptors_of_one_removed_file_lead_to_one_copy(fork: Fork) -> None:
    branch = fork.after(
        "f = open('f', 'w+'); f.write('parent'); f.flush(); g = open('f'); os.remove('f')"
    )
    assert said(branch, "f.write(' child'); f.flush(); g.read()") == "'parent child'"
    assert said(fork.box, "g.read()") == "'parent'"


# -- memory --------------------------------------------------------------------------------------

MAPPINGS = {
    "anonymous": "m = mmap.mmap(-1, 8192)",
    "a file": "f = open('f', 'w+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192)",
    "a closed file": "f = open('f', 'w+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192)\n"
    "f.close(); [os.close(n) for n in range(20, 30) if os.path.exists(f'/proc/self/fd/{n}')]",
    "a removed file": "f = tempfile.TemporaryFile(); f.truncate(8192)\n"
    "m = mmap.mmap(f.fileno(), 8192)",
    "/dev/shm": "f = open('/dev/shm/f', 'w+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192)",
    "a memfd": "f = os.memfd_create('f'); os.ftruncate(f, 8192); m = mmap.mmap(f, 8192)",
}


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS.keys())
def test_s6_shared_memory_is_the_branchs_own(fork: Fork, mapping: str) -> None:
    needs_memfd(fork.box, mapping)
    branch = fork.after(f"{mapping}\nm[:6] = b'parent'; m[5000] = 1")
    assert said(branch, "m[:6], m[5000]") == "(b'parent', 1)"
    branch.run("m[:6] = b'child!'")
    assert said(fork.box, "m[:6]; m[:6]") == "b'parent'"
    fork.box.run("m[:6] = b'PARENT'")
    assert said(branch, "m[:6]") == "b'child!'"
    shared = "import os\nif os.fork() == 0:\n    m[:6] = b'inside'; os._exit(0)\nos.wait(); m[:6]"
    assert said(branch, shared) == "b'inside'", "in the branch it is still shared"


def test_s6_a_mapping_is_still_that_of_its_file(fork: Fork) -> None:
    branch = fork.after(MAPPINGS["a file"] + "\nm[:6] = b'parent'")
    assert said(branch, "m[:6] = b'child!'; open('f', 'rb').read(6)") == "b'child!'"
    assert said(fork.box, "open('f', 'rb').read(6)") == "b'parent'"


def test_s6_a_private_mapping_does_not_follow_the_parents_file(fork: Fork) -> None:
    branch = fork.after(
        "open('f', 'wb').write(b'x' * 8192); f = open('f', 'r+b')\n"
        "m = mmap.mmap(f.fileno(), 8192, access=mmap.ACCESS_COPY); m[0] = 65"
    )
    fork.box.run("f.seek(4096); f.write(b'leak'); f.flush()")
    assert said(branch, "m[:2], m[4096:4100]") == "(b'Ax', b'xxxx')"


def test_s6_memory_and_locks_of_multiprocessing_are_the_branchs_own(fork: Fork) -> None:
    branch = fork.after(
        "import multiprocessing\nfrom multiprocessing import shared_memory\n"
        "value = multiprocessing.Value('i', 1); lock = multiprocessing.Lock()\n"
        "named = shared_memory.SharedMemory(create=True, size=100); named.buf[0] = 7"
    )
    code = (
        "value.value = 2; lock.acquire(); named.buf[0] = 9\n"
        "again = shared_memory.SharedMemory(named.name); again.buf[0]"
    )
    assert said(branch, code) == "9"
    parents = "again = shared_memory.SharedMemory(named.name); value.value, again.buf[0]"
    assert said(fork.box, parents) == "(1, 7)"
    assert said(fork.box, "lock.acquire(timeout=0)") == "True"
    branch.run("named.close(); again.close()")
    fork.box.run("again.close(); named.close(); named.unlink()")


def test_s6_memory_that_does_not_fit_refuses_the_branch_and_the_parent_goes_on(
    jar: belljar.Belljar,
) -> None:
    """Each private mapping of a file is a copy of its own in the branch."""
    with belljar.Sandbox(jar, environment="base", memory_bytes=128 << 20) as box:
        if not box.run("1").isolation["memory"].startswith("cgroup"):
            pytest.skip("no cgroup counts shared memory")
        code = (
            "import mmap\nwith open('f', 'wb') as f: f.write(bytes(30 << 20))\n"
            "f = open('f', 'r+b')\n"
            "held = [mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) for _ in range(6)]"
        )
        assert box.run(code).status == "ok"
        with pytest.raises(BelljarError):
            box.fork()
        assert said(box, "len(held[0])") == str(30 << 20)
        box.run("del held")
        (branch,) = box.fork()
        branch.close()


# -- pipes, sockets and the rest -----------------------------------------------------------------


def test_s6_a_pipe_of_the_parent_is_closed_in_the_branch(fork: Fork) -> None:
    branch = fork.after("r, w = os.pipe(); os.write(w, b'mine')")
    assert said(branch, "os.read(r, 10)") == "b''"
    assert branch.run("os.write(w, b'other')").error.name == "BrokenPipeError"
    assert said(fork.box, "os.read(r, 10)") == "b'mine'"


def test_s6_a_socket_of_the_parent_is_closed_in_the_branch(fork: Fork) -> None:
    branch = fork.after(
        "a, b = socket.socketpair(); b.send(b'mine')\n"
        "held = os.open('/workspace', os.O_RDONLY); socket.send_fds(a, [b'f'], [held])\n"
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname())"
    )
    assert said(branch, "a.recv(10), b.recv(10), c.recv(10)") == "(b'', b'', b'')"
    assert branch.run("s.accept()").error.name == "OSError"
    assert said(fork.box, "s.accept() and a.recv(10)") == "b'mine'"
    assert said(fork.box, "len(socket.recv_fds(b, 10, 5)[1])") == "1"


def test_s6_what_only_the_kernel_holds_is_closed_in_the_branch(fork: Fork) -> None:
    """A change of a shared epoll would be the parent's, too."""
    branch = fork.after(
        "r, w = os.pipe(); p = select.epoll(); p.register(r, select.EPOLLIN); os.write(w, b'x')\n"
        "child = os.pidfd_open(os.getpid()); far, near = os.openpty()"
    )
    assert branch.run("p.unregister(r)").error.name == "OSError"
    assert branch.run("os.write(far, b'typed\\n')").error.name == "OSError"
    assert said(fork.box, "len(p.poll(0))") == "1"
    assert said(fork.box, "select.select([near], [], [], 0)[0]") == "[]"


def test_s6_await_goes_on_in_parent_and_branch(fork: Fork) -> None:
    branch = fork.after("import asyncio\nawait asyncio.sleep(0)")
    for box in (branch, fork.box, branch):
        assert said(box, "await asyncio.sleep(0.01, 'slept')") == "'slept'"
        assert said(box, "await asyncio.to_thread(lambda: 'thread')") == "'thread'"


# -- going back ----------------------------------------------------------------------------------


def test_s6_an_open_file_is_after_a_rollback_what_it_was(box: belljar.Sandbox) -> None:
    box.run("f = open('log', 'w'); f.write('one '); f.flush()")
    undone = box.run("f.write('undone, and long'); f.flush()")
    box.rollback(undone.run_id)
    assert said(box, "f.write('two'); f.flush(); open('log').read()") == "'one two'"


def test_s6_a_mapped_file_is_after_a_rollback_what_it_was(box: belljar.Sandbox) -> None:
    box.run(MAPPINGS["a file"] + "\nm[:6] = b'before'")
    undone = box.run("m[:6] = b'undone'; open('f', 'r+b').truncate(8192); os.utime('f')")
    box.rollback(undone.run_id)
    assert said(box, "m[:6]") == "b'before'"
    assert said(box, "m[:6] = b'after!'; open('f', 'rb').read(6)") == "b'after!'"


def test_s6_files_in_shared_memory_are_put_back(box: belljar.Sandbox) -> None:
    box.run("open('/dev/shm/f', 'w').write('before')")
    undone = box.run("open('/dev/shm/f', 'w').write('undone'); open('/dev/shm/g', 'w').close()")
    box.rollback(undone.run_id)
    assert said(box, "open('/dev/shm/f').read(), os.listdir('/dev/shm')") == "('before', ['f'])"


def test_s6_a_branch_from_before_a_run_has_files_as_far_as_they_were(
    box: belljar.Sandbox,
) -> None:
    box.run("open('f', 'w').write('0123456789'); f = open('f'); f.read(2)")
    later = box.run("f.read(5)")
    (branch,) = box.fork(at=later.run_id)
    assert said(branch, "f.read(2)") == "'23'"
    assert said(box, "f.read(2)") == "'78'"
    branch.close()


def test_s6_a_branch_from_before_a_run_has_removed_and_mapped_files(box: belljar.Sandbox) -> None:
    box.run(
        MAPPINGS["a file"] + "\nm[:6] = b'before'; g = open('g', 'w+'); g.write('g'); g.flush()"
    )
    later = box.run("m[:6] = b'after!'; os.utime('f'); os.remove('g'); g.write('gone'); g.flush()")
    (branch,) = box.fork(at=later.run_id)
    assert said(branch, "m[:6], open('f', 'rb').read(6)") == "(b'before', b'before')"
    assert said(branch, "g.write('h'); g.flush(); open('g').read()") == "'gh'"
    assert said(box, "m[:6], g.seek(0), g.read()") == "(b'after!', 0, 'ggone')"
    branch.close()


def test_s6_a_pipe_to_a_program_stays_after_a_rollback(box: belljar.Sandbox) -> None:
    box.run(
        "import subprocess\n"
        "p = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,"
        " start_new_session=True)"
    )
    box.rollback(box.run("1").run_id)
    assert said(box, "p.stdin.write(b'hello\\n'); p.stdout.readline()") == "b'hello\\n'"
    box.run("p.kill()")
