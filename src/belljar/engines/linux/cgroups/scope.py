"""A group from systemd: how an ordinary user gets limits that the kernel enforces.

The processes of a login are in a group of root's, and nobody else may move one out of there. So the
user's systemd is asked, over D-Bus, for a scope that is delegated to us. A process that holds
nothing keeps it; it ends with us, and systemd then removes the scope with all that is in it. Only
from inside the scope can a process enter the groups below it, so systemd also puts our zygotes
there.
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
"""Below a delegated group: processes that are no sandbox's. (On v2 a group has either processes or
groups with controllers.)"""
WAIT_S = 5.0
END_S = 5.0
_PAUSE_S = 0.001
_inputs: set[int] = set()
"""Of keepers. A forked copy of this process must not hold one open: it would keep the scope."""


def _forked() -> None:
    for descriptor in _inputs:
        os.close(descriptor)
    _inputs.clear()


os.register_at_fork(after_in_child=_forked)
_NO_BUS = (
    "log in as this user (ssh, a terminal, a desktop): su and sudo start no systemd for the user; "
    "for services: loginctl enable-linger <user>"
)


class NoScope(Exception):
    """systemd gave none: why, and what to type."""

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
        """What keeps the scope moves aside, so that it can have groups. `folder`: where it is."""
        files.mkdir(f"{folder}/{HOST_LEAF}")
        files.write(None, f"{folder}/{HOST_LEAF}/cgroup.procs", str(self._keeper.pid))

    def admit(self, pid: int) -> None:
        """Raises OSError if systemd does not put it there."""
        try:
            _call("AttachProcessesToUnit", "ssau", (self.unit, f"/{HOST_LEAF}", [pid]))
        except NoScope as error:
            raise OSError(f"systemd did not take it into {self.unit}: {error.reason}") from error

    def close(self) -> None:
        # Not by its input alone: a program that this process started may hold that open.
        self._keeper.kill()
        assert self._keeper.stdin is not None
        _inputs.discard(self._keeper.stdin.fileno())
        self._keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(END_S)

    def _appeared(self) -> str:
        """The scope's path among all groups, once its keeper is in there."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for line in files.read(None, f"/proc/{self._keeper.pid}/cgroup").decode().splitlines():
                if line.startswith("0::") and line.endswith(f"/{self.unit}"):
                    return line.removeprefix("0::")
            time.sleep(_PAUSE_S)
        raise NoScope(f"systemd made no scope within {WAIT_S:.0f} s")


def _wait_for_end_of_file() -> subprocess.Popen[bytes]:
    """Not in our process group: an interrupt at the terminal is not for it."""
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
        raise NoScope(f"nothing to keep a scope: {error}") from error
    assert keeper.stdin is not None
    _inputs.add(keeper.stdin.fileno())
    return keeper


def bus_addresses(environment: Mapping[str, str], uid: int) -> list[str]:
    """Where the user's own bus may be. That of the environment can be one without systemd, and
    those who come without the variables of a login have one, too."""
    folder = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    found = [environment.get("DBUS_SESSION_BUS_ADDRESS", ""), f"unix:path={folder}/bus"]
    return list(dict.fromkeys(filter(None, found)))


def _call(method: str, signature: str, body: tuple[Any, ...]) -> None:
    """Asks the user's systemd, and waits for its answer for WAIT_S at most."""
    outcome: list[Any] = []
    # The library waits for ever for a bus that accepts a connection and then says nothing.
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
        except Exception as error:  # the library's own are of many kinds
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
        # Processes are named by number: in another pid namespace that is somebody else's.
        who = new_method_call(bus, "GetConnectionUnixProcessID", "s", (connection.unique_name,))
        if _answer(connection.send_and_get_reply(who, timeout=WAIT_S)) != (os.getpid(),):
            raise NoScope("the user's bus is outside of this container, which has pids of its own")
        message = new_method_call(systemd, method, signature, body)
        return _answer(connection.send_and_get_reply(message, timeout=WAIT_S))


def _answer(reply: Any) -> Any:
    from jeepney import MessageType

    if reply.header.message_type == MessageType.error:
        raise NoScope(f"systemd refused: {', '.join(map(str, reply.body))}")
    return reply.body
