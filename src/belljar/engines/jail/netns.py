"""Empty network namespaces: loopback and nothing else.

Making one takes longer than everything else about a sandbox, and destroying one queues in the
kernel. Without capabilities nothing in it can be changed, so one that carried no traffic is as good
as new and is handed on; one whose counters moved is thrown away.
"""

from __future__ import annotations

import array
import fcntl
import itertools
import os
import socket
import struct

from belljar.engines.linux import kernel
from belljar.engines.linux.pidfd import pid_of

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
# Whatever is sent, received or refused moves one of these. (sockstat would not do: it has figures
# of the whole machine in it.)
_COUNTERS = ("dev", "snmp", "netstat", "snmp6")
# Bytes that wait are kernel memory. What waits in a connection that was not accepted yet is charged
# to nobody, so few may wait, and little in each; loopback needs no large windows. How many sockets
# there are is watched besides: each can be a listener.
_BACKLOG = "net/core/somaxconn"
_ANCILLARY = "net/core/optmem_max"
_ENDED = "net/ipv4/tcp_max_tw_buckets"
_HIDDEN_BY_OLD_KERNELS = (_BACKLOG, _ANCILLARY, _ENDED, "net/unix/max_dgram_qlen")
"""Older kernels show these only in network namespaces that the initial user namespace owns, or let
nobody write them there (6.1 hides the first two). No privilege helps: the files do not exist."""
_SETTINGS = {
    _BACKLOG: "32",
    "net/ipv4/tcp_rmem": "4096 16384 16384",
    "net/ipv4/tcp_wmem": "4096 16384 65536",
    "net/ipv4/igmp_max_memberships": "0",
    # Connections that ended are remembered for a minute, 250 bytes each, in uncounted memory.
    _ENDED: "2048",
    # What options and ancillary data of one socket may take, uncounted; a message with as many
    # descriptors as the kernel passes needs 1 KB.
    _ANCILLARY: "8192",
    "net/unix/max_dgram_qlen": "8",
}
_SETTINGS_UNCOUNTED = {_BACKLOG: "4", "net/unix/max_dgram_qlen": "2"}
"""Where no cgroup counts the rest either."""
DOORS = (3128, 80, 443)
"""Where the gateway listens on loopback: proxy, HTTP, HTTPS."""
_WAITING_AT_A_DOOR = 64
"""A gateway that is busy for a moment must not cost many connections at once a second each, which
is when TCP tries again. What waits at all doors together was seen to be 11 MB at most. The small
windows stay: a door passes 200 MB/s and more with them."""


class Network:
    """One namespace, kept by its descriptor."""

    def __init__(self, *, counted: bool) -> None:
        kernel.unshare(kernel.CLONE_NEWNET)
        _loopback_up()
        self._settings = _SETTINGS if counted else {**_SETTINGS, **_SETTINGS_UNCOUNTED}
        for name, value in self._settings.items():
            try:
                _write(name, value)
            except (FileNotFoundError, PermissionError):
                if name not in _HIDDEN_BY_OLD_KERNELS:
                    raise
        self._handle = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.sockets = os.open("/proc/thread-self/net/sockstat", os.O_RDONLY | os.O_CLOEXEC)
        """An open file that says how many sockets there are in here, including those that no
        process holds (connections that nobody accepted, senders of data that nobody read). It can
        be read from any namespace."""
        self._untouched = _counters()
        self.hosts = ""
        """If it has doors: then the gateway has sockets in here, and it is never handed on."""

    def enter(self) -> None:
        """Moves the calling process, and so its next child, into this namespace."""
        kernel.setns(self._handle, kernel.CLONE_NEWNET)

    def open_doors(self, wire: int, hosts: str) -> None:
        """Sockets that listen in here go to the gateway; nobody else has them. `hosts`: what
        /etc/hosts of all sandboxes in here is."""
        self.enter()
        doors: list[socket.socket] = []
        limited = queues_are_limited()
        try:
            if limited:
                _write(_BACKLOG, str(_WAITING_AT_A_DOOR))
            for port in DOORS:
                door = socket.socket()
                doors.append(door)
                door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                door.bind(("127.0.0.1", port))
                door.listen(_WAITING_AT_A_DOOR)
            with socket.socket(fileno=os.dup(wire)) as to_gateway:
                rights = array.array("i", [door.fileno() for door in doors])
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                to_gateway.sendmsg([b"L"], ancillary, socket.MSG_DONTWAIT)
            self.hosts = hosts
        except OSError as error:
            raise OSError(error.errno, f"doors to the gateway: {error.strerror}") from error
        finally:
            for door in doors:
                door.close()
            # What the code itself listens on is as short as ever; the doors are what they are.
            if limited:
                _write(_BACKLOG, self._settings[_BACKLOG])

    def is_untouched(self) -> bool:
        """True if no packet was ever sent in here and no socket is left."""
        if self.hosts:
            return False
        self.enter()
        return _counters() == self._untouched

    def close(self) -> None:
        os.close(self._handle)
        os.close(self.sockets)


def queues_are_limited() -> bool:
    """Whether this kernel lets us limit how many connections wait in the namespace we are in."""
    return os.path.exists(f"/proc/sys/{_BACKLOG}")


def _write(name: str, value: str) -> None:
    with open(f"/proc/sys/{name}", "w") as file:
        file.write(value)


class Strays:
    """What is dialled or sent in a namespace to where nothing leads, from now on, as the kernel
    counts it. Can be asked also when all processes in there are gone; copies of a sandbox share
    it."""

    def __init__(self, pidfd: int) -> None:
        self._files: list[int] = []
        pid = pid_of(pidfd)
        for name in ("snmp", "snmp6"):
            try:
                self._files.append(os.open(f"/proc/{pid}/net/{name}", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:  # no IPv6 here; or it has ended already, and nothing was dialled
                pass
        self._before = 0
        self._before = self.count()

    def count(self) -> int:
        seen = sum(_unrouted(os.pread(file, 65536, 0).decode()) for file in self._files)
        return seen - self._before

    def __del__(self) -> None:
        for file in self._files:
            os.close(file)


def _unrouted(text: str) -> int:
    """`snmp` has a line of names and one of figures for each protocol, `snmp6` a line for each."""
    lines = [line.split() for line in text.splitlines()]
    found = [line[1] for line in lines if line[:1] == ["Ip6OutNoRoutes"]]
    for names, figures in itertools.pairwise(lines):
        if names[:1] == figures[:1] == ["Ip:"] and "OutNoRoutes" in names:
            found.append(figures[names.index("OutNoRoutes")])
    return sum(map(int, found))


def _counters() -> list[bytes]:
    """What the kernel counts in the namespace this process is in."""
    seen = []
    for name in _COUNTERS:
        try:
            descriptor = os.open(f"/proc/thread-self/net/{name}", os.O_RDONLY)
        except FileNotFoundError:  # no IPv6 here
            continue
        seen.append(os.read(descriptor, 65536))
        os.close(descriptor)
    return seen


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
        fcntl.ioctl(endpoint, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
