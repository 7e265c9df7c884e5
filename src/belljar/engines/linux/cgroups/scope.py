"""A group from systemd: how an ordinary user gets limits that the kernel enforces.

The processes of a login are in a group that root owns, and only root may move one out of it. So we
ask the user's systemd, over D-Bus, for a scope that is delegated to us. An idle process, the
keeper, keeps the scope alive; it ends with us, and systemd then removes the scope with everything
in it. A process can enter the groups below the scope only from inside it, so systemd also moves our
zygotes there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

from . import files
from .owner import new_owner

HOST_LEAF = "belljar-host"
"""Below a delegated group: for processes that belong to no sandbox. (On v2 a group has either
processes or child groups with controllers.)"""
WAIT_S = 5.0
END_S = 5.0
_PAUSE_S = 0.001
_inputs: set[int] = set()
"""Each keeper's standard input. A forked copy of this process must not hold one open: that would
keep the scope alive."""
_NO_BUS = (
    "log in as this user (ssh, a terminal, a desktop): su and sudo start no systemd for the user; "
    "for services: loginctl enable-linger <user>"
)


def _forked() -> None:
    for descriptor in _inputs:
        os.close(descriptor)
    _inputs.clear()


os.register_at_fork(after_in_child=_forked)


class NoScope(Exception):
    """systemd gave us no scope: why, and what to type."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class Scope:
    """A delegated group, for as long as this is open."""

    def __init__(self) -> None:
        self.unit = f"belljar-{new_owner()}.scope"
        self._keeper = _wait_for_end_of_file()
        try:
            properties = [
                ("Description", ("s", "Belljar's sandboxes")),
                ("PIDs", ("au", [self._keeper.pid])),
                ("Delegate", ("b", True)),
                ("TasksMax", ("t", 2**64 - 1)),
                ("CollectMode", ("s", "inactive-or-failed")),
            ]
            _call("StartTransientUnit", "ssa(sv)a(sa(sv))", (self.unit, "fail", properties, []))
            self.path = self._appeared()
        except BaseException:
            self.close()
            raise

    def take(self, folder: str) -> None:
        """Moves the keeper into a leaf, so that the scope (at `folder`) can have groups."""
        files.mkdir(f"{folder}/{HOST_LEAF}")
        files.write(None, f"{folder}/{HOST_LEAF}/cgroup.procs", str(self._keeper.pid))

    def admit(self, pid: int) -> None:
        """Has systemd move a process into the scope. Raises OSError if it does not."""
        try:
            _call("AttachProcessesToUnit", "ssau", (self.unit, f"/{HOST_LEAF}", [pid]))
        except NoScope as error:
            raise OSError(f"systemd did not move {pid} into {self.unit}: {error.reason}") from error

    def close(self) -> None:
        # Closing its input is not enough: a program that this process started may hold that open.
        self._keeper.kill()
        assert self._keeper.stdin is not None
        _inputs.discard(self._keeper.stdin.fileno())
        self._keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(END_S)

    def _appeared(self) -> str:
        """The scope's path in the tree of groups, once the keeper is in it."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for line in files.read(None, f"/proc/{self._keeper.pid}/cgroup").decode().splitlines():
                if line.startswith("0::") and line.endswith(f"/{self.unit}"):
                    return line.removeprefix("0::")
            time.sleep(_PAUSE_S)
        raise NoScope(f"systemd made no scope within {WAIT_S:.0f} s")


def _wait_for_end_of_file() -> subprocess.Popen[bytes]:
    """The keeper. Not in our process group: an interrupt at the terminal is not for it."""
    command = shutil.which("cat", path="/usr/bin:/bin") or "cat"
    try:
        keeper = subprocess.Popen(
            [command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise NoScope(f"cat, which keeps a scope alive, cannot be started: {error}") from error
    assert keeper.stdin is not None
    _inputs.add(keeper.stdin.fileno())
    return keeper


def bus_addresses(environment: Mapping[str, str], uid: int) -> list[str]:
    """Where the user's bus may be. The one in the environment may have no systemd on it, and a
    process without the variables of a login may still have one at the usual path."""
    folder = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    found = [environment.get("DBUS_SESSION_BUS_ADDRESS", ""), f"unix:path={folder}/bus"]
    return list(dict.fromkeys(filter(None, found)))


def _call(method: str, signature: str, body: tuple[Any, ...]) -> None:
    """Asks the user's systemd, and waits for the answer for at most WAIT_S."""
    outcome: list[Any] = []
    # The library waits forever for a bus that accepts a connection and then says nothing.
    asking = threading.Thread(target=_ask, args=(method, signature, body, outcome), daemon=True)
    asking.start()
    asking.join(WAIT_S)
    (reply,) = outcome or [NoScope(f"the user's bus did not answer within {WAIT_S:.0f} s", _NO_BUS)]
    if isinstance(reply, NoScope):
        raise reply


def _ask(method: str, signature: str, body: tuple[Any, ...], outcome: list[Any]) -> None:
    answers: list[Any] = []
    for address in bus_addresses(os.environ, os.geteuid()):
        try:
            answers.append(_ask_at(address, method, signature, body))
            break
        except NoScope as error:
            answers.append(error)
        except ImportError:
            answers.append(NoScope("jeepney is not installed", "pip install jeepney"))
        except Exception as error:  # the library raises many kinds
            answers.append(NoScope(f"the user's systemd cannot be reached ({error})", _NO_BUS))
    outcome.append(answers[-1])


def _ask_at(address: str, method: str, signature: str, body: tuple[Any, ...]) -> Any:
    from jeepney import DBusAddress, new_method_call  # type: ignore[import-untyped]
    from jeepney.io.blocking import open_dbus_connection  # type: ignore[import-untyped]

    bus = DBusAddress(
        "/org/freedesktop/DBus",
        bus_name="org.freedesktop.DBus",
        interface="org.freedesktop.DBus",
    )
    systemd = DBusAddress(
        "/org/freedesktop/systemd1",
        bus_name="org.freedesktop.systemd1",
        interface="org.freedesktop.systemd1.Manager",
    )
    with contextlib.closing(open_dbus_connection(address, auth_timeout=WAIT_S)) as connection:
        # Processes are named by pid, which in another pid namespace is somebody else's.
        who = new_method_call(bus, "GetConnectionUnixProcessID", "s", (connection.unique_name,))
        if _answer(connection.send_and_get_reply(who, timeout=WAIT_S)) != (os.getpid(),):
            raise NoScope("the user's bus is outside this container, which has pids of its own")
        message = new_method_call(systemd, method, signature, body)
        return _answer(connection.send_and_get_reply(message, timeout=WAIT_S))


def _answer(reply: Any) -> Any:
    from jeepney import MessageType

    if reply.header.message_type == MessageType.error:
        raise NoScope(f"systemd refused: {', '.join(map(str, reply.body))}")
    return reply.body
