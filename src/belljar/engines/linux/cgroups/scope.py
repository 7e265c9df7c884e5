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
_PAUSE_S = 0.001
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
        self.unit = f"{new_owner()}.scope"
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
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()

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
        return subprocess.Popen(
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


def bus_address(environment: Mapping[str, str], uid: int) -> str:
    """Of the user's own bus, also for those who come without the variables of a login."""
    if address := environment.get("DBUS_SESSION_BUS_ADDRESS"):
        return address
    folder = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    return f"unix:path={folder}/bus"


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
    try:
        from jeepney import DBusAddress, MessageType, new_method_call  # type: ignore[import-untyped]
        from jeepney.io.blocking import open_dbus_connection  # type: ignore[import-untyped]
    except ImportError:
        outcome.append(NoScope("jeepney is not installed", "pip install jeepney"))
        return
    manager = DBusAddress(
        "/org/freedesktop/systemd1",
        bus_name="org.freedesktop.systemd1",
        interface="org.freedesktop.systemd1.Manager",
    )
    try:
        address = bus_address(os.environ, os.geteuid())
        with contextlib.closing(open_dbus_connection(address)) as connection:
            message = new_method_call(manager, method, signature, body)
            reply = connection.send_and_get_reply(message, timeout=WAIT_S)
    except Exception as error:  # the library's own are of many kinds
        outcome.append(NoScope(f"the user's systemd cannot be reached ({error})", _NO_BUS))
        return
    refused = reply.header.message_type == MessageType.error
    why = f"systemd refused: {', '.join(map(str, reply.body))}"
    outcome.append(NoScope(why) if refused else reply)
