"""Kernel objects that are shared with the host or counted for nobody are out of reach.

Each attack runs behind the real wall; what matters is looked at from outside.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from belljar import Belljar, Result, Sandbox
from belljar.engines.jail import launch
from belljar.probes import host


@pytest.fixture(scope="module")
def jar() -> Iterator[Belljar]:
    with Belljar() as jar:
        yield jar


def said(result: Result) -> str:
    assert result.success, result.stderr
    return result.stdout.strip()


def test_netlink_whose_queues_no_limit_counts_is_refused(jar: Belljar) -> None:
    """L2, I4; names are still looked up as before."""
    code = """
import errno, socket
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
except OSError as error:
    print(errno.errorcode[error.errno], socket.getaddrinfo("localhost", 80)[0][4][0] != "")
"""
    assert said(jar.run(code)) == "EAFNOSUPPORT True"


def test_multicast_groups_are_refused(jar: Belljar) -> None:
    """I4: joining holds a lock of the whole machine's networking."""
    code = """
import socket, struct
four, six = socket.socket(type=socket.SOCK_DGRAM), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
group = socket.inet_aton("224.1.1.1") + socket.inet_aton("127.0.0.1")
for sock, level, option, value in (
    (four, socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group),
    (four, socket.IPPROTO_IP, 42, struct.pack("I4xHH", 1, socket.AF_INET, 0) + bytes(124)),
    (six, socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, bytes([255, 2] + [0] * 13 + [9]) + bytes(4)),
):
    try:
        sock.setsockopt(level, option, value)
        print("joined")
    except OSError:
        pass
"""
    assert said(jar.run(code)) == ""


def test_buffers_keep_the_size_the_wall_gave_them(jar: Belljar) -> None:
    """L2: asking for more is no error, and changes nothing."""
    code = """
import socket
pair = socket.socketpair()[0]
before = pair.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
pair.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
print(pair.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before)
"""
    assert said(jar.run(code)) == "True"


def test_little_waits_in_connections_that_nobody_accepts(jar: Belljar) -> None:
    """L2: such bytes are charged to nobody, so there must be few."""
    code = """
import socket
held = 0
for family, address in ((socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_UNIX, "/tmp/s")):
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen(4096)
    for _ in range(200):
        client = socket.socket(family)
        client.settimeout(0.01)
        try:
            client.connect(listener.getsockname())
            while True:
                held += client.send(bytes(65536))
        except OSError:
            pass
        client.close()
print(held)
"""
    result = jar.run(code, timeout_s=60)
    if result.isolation["sockets"] == "watched":
        pytest.skip("this kernel cannot shorten queues; how many sockets there are is watched")
    assert int(said(result)) < 24 << 20


def test_ancillary_data_is_small(jar: Belljar) -> None:
    """L2: the kernel copies it, uncounted, before it looks at it; descriptors still pass."""
    code = """
import errno, os, socket
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"x"], [0] * 250)
print(len(socket.recv_fds(theirs, 1, 250)[1]))
try:
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, 77, bytes(12000))])
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    result = jar.run(code)
    if result.isolation["sockets"] == "watched":
        pytest.skip("this kernel has one limit for the whole machine")
    assert said(result) == "250\nENOBUFS"


FLOOD = """
import os, socket, time
held = []
for _ in range(%d):
    if os.fork() == 0:
        held = [socket.socketpair() for _ in range(100)]
        time.sleep(5)
        os._exit(0)
time.sleep(3)
print("still here")
"""


OLD_KERNEL = """

def queues_are_limited():
    return False

_write_any = _write

def _write(name, value):
    if name in _HIDDEN_BY_OLD_KERNELS:
        raise FileNotFoundError(2, "hidden", name)
    _write_any(name, value)
"""


@pytest.mark.parametrize("kept", [False, True])
def test_a_flood_of_sockets_is_ended_where_queues_cannot_be_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kept: bool
) -> None:
    """L2: kernels up to 6.7 or so. Elsewhere the zygote is told that it runs on one."""
    shutil.copytree(f"{launch.PACKAGE_ROOT}/belljar", tmp_path / "belljar")
    with open(tmp_path / "belljar/engines/jail/netns.py", "a") as source:
        source.write(OLD_KERNEL)
    monkeypatch.setattr(launch, "PACKAGE_ROOT", str(tmp_path))
    # Its own Belljar: the one that sandboxes share may have a zygote of the real package already.
    with Belljar() as jar, Sandbox(jar) if kept else nullcontext(jar) as place:
        few, many = place.run(FLOOD % 4), place.run(FLOOD % 14)
    assert few.isolation["sockets"] == "watched"
    assert said(few) == "still here"
    assert many.status == "out_of_memory" and "still here" not in many.stdout


def test_nobody_can_watch_the_host_use_its_files(jar: Belljar) -> None:
    """I2: inotify can be opened, and watches nothing; dnotify is refused."""
    code = """
import ctypes, errno, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)
watcher = libc.inotify_init1(0)
watch = libc.inotify_add_watch(watcher, b"/usr/bin", 0xFFF)
print(watcher >= 0, watch, errno.errorcode[ctypes.get_errno()])
try:
    fcntl.fcntl(os.open("/usr/bin", os.O_RDONLY), 1026, 1)
except PermissionError:
    print("refused")
"""
    assert said(jar.run(code)) == "True -1 ENOSPC\nrefused"


def test_the_hosts_devices_are_not_changed(jar: Belljar) -> None:
    """I2: they work, and their times and modes are out of reach."""
    names = ("null", "zero", "full", "random", "urandom")
    before = {name: os.stat(f"/dev/{name}").st_mtime_ns for name in names}
    code = """
import os
open("/dev/null", "w").write("works")
for name in ("null", "zero", "full", "random", "urandom"):
    for change in (lambda p: os.utime(p, (1, 1)), lambda p: os.utime(p), lambda p: os.chmod(p, 0)):
        try:
            change("/dev/" + name)
            print("changed", name)
        except OSError:
            pass
"""
    assert said(jar.run(code)) == ""
    assert {name: os.stat(f"/dev/{name}").st_mtime_ns for name in names} == before


def test_where_belljar_is_installed_is_not_told(jar: Belljar) -> None:
    """I2"""
    code = "import sys; print([p for p in sys.path_importer_cache if p not in sys.path])"
    assert said(jar.run(code)) == "[]"


def test_a_belljar_of_the_parent_is_refused_in_a_forked_process(jar: Belljar) -> None:
    """A1: it would wait for ever for a thread that is not there."""
    jar.run("print(1)")
    child = os.fork()
    if child == 0:
        timer = threading.Timer(20, os._exit, (2,))
        timer.start()
        try:
            jar.run("print(1)")
            os._exit(3)
        except Exception as error:
            os._exit(0 if type(error).__name__ == "Closed" else 4)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.02)
    pytest.fail("the forked process hangs")


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has one id for all")
def test_two_belljars_of_one_process_share_no_user(jar: Belljar) -> None:
    """I1: counts that the kernel keeps by user would be shared, too."""
    marks = [host.new_mark() for _ in range(4)]
    code = (
        "import ctypes, sys, time\n"
        "ctypes.CDLL(None).prctl(15, {mark!r}.encode(), 0, 0, 0)\n"
        "print('there', flush=True)\n"
        "time.sleep(30)"
    )
    there = threading.Semaphore(0)
    with Belljar() as other:
        for number, mark in enumerate(marks):
            place = (jar, other)[number % 2]
            place.submit(code.format(mark=mark), on_output=lambda *_: there.release())
        assert all(there.acquire(timeout=30) for _ in marks)
        users = [os.stat(f"/proc/{host.named(mark)[0]}").st_uid for mark in marks]
    assert len(set(users)) == len(marks), users
