"""The gateway's process as the host sees it: how it is started, asked and heard."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import socket
import subprocess
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from belljar import threads
from belljar.errors import BelljarError, InvalidRequest, Unavailable
from belljar.extras import install
from belljar.network import Egress, host_name, patterns
from belljar.runtimes.interpreter import base_interpreter
from belljar.settings import Settings

from . import control
from .addresses import private
from .authority import Authority, system_roots

_START_S = 60.0
_SEND_S = 5.0
_ANSWER_S = 60.0
_AGAIN = "run again: it starts anew"
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_START = "import os; exec(os.read({control}, 4096))"
_BOOT = """\
import sys
sys.path[:0] = {paths!r}
from belljar.egress import process
process.main({control})
"""
_VARIABLES = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/",
    # A name of a rule is whole: without this a search list could complete it to another one.
    "LOCALDOMAIN": ".",
}


OnEgress = Callable[[Egress], None]


class Running:
    """The gateway's process as the host sees it."""

    def __init__(
        self,
        talk: socket.socket,
        process: subprocess.Popen[bytes],
        *,
        authority: Authority,
        more_roots: bytes,
    ) -> None:
        self.authority = authority
        self.more_roots = more_roots
        self.alive = True
        self.listeners: dict[int, OnEgress] = {}
        self._talk = talk
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._ready: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def start(cls, settings: Settings) -> Running:
        started = await threads.ENGINES.do(_launch, settings)
        talk, process, authority, more_roots, complaints = started
        self = cls(talk, process, authority=authority, more_roots=more_roots)
        self._loop.add_reader(talk, self._hear)
        try:
            async with asyncio.timeout(_START_S):
                await self._ready
        except BaseException as error:
            self.close()
            said = os.pread(complaints, 4000, 0).decode("utf-8", "replace").strip()
            if isinstance(error, asyncio.CancelledError):
                raise
            why = str(error) or f"it took longer than {_START_S:.0f} s"
            raise Unavailable(
                f"the gateway did not start: {why}" + (f" {said[-500:]}" if not str(error) else ""),
                hint="see docs/network.md; settings.network_* say where and how it works",
            ) from error
        finally:
            os.close(complaints)
        return self

    def number(self) -> int:
        return next(self._numbers)

    async def ask(self, order: Mapping[str, Any]) -> None:
        """Returns when it is done."""
        number = self.number()
        done: asyncio.Future[None] = self._loop.create_future()
        self._asked[number] = done
        try:
            self.send({**order, "id": number})
            async with asyncio.timeout(_ANSWER_S):
                await done
        except TimeoutError:
            self.close()  # whatever it is busy with, it would let nothing more through in order
            raise Unavailable("the gateway does not answer", hint=_AGAIN) from None
        finally:
            self._asked.pop(number, None)

    def send(self, order: Mapping[str, Any], descriptors: list[int] | None = None) -> None:
        if not self.alive:
            raise Unavailable("the gateway's process has ended", hint=_AGAIN)
        while True:
            try:
                control.send(self._talk, order, descriptors or [])
                return
            except BlockingIOError:
                waiting = select.poll()
                waiting.register(self._talk, select.POLLOUT)
                if not waiting.poll(_SEND_S * 1000):
                    raise Unavailable("the gateway does not answer") from None
            except OSError as error:
                self.close()
                raise Unavailable(f"the gateway's process has ended: {error}") from error

    def close(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._talk)
        self._talk.close()
        self._process.kill()
        self._process.wait()
        ended = Unavailable("the gateway's process has ended", hint=_AGAIN)
        for waiting in (*self._asked.values(), self._ready):
            if not waiting.done():
                waiting.set_exception(ended)
                waiting.exception()  # nobody may be waiting

    def _hear(self) -> None:
        for _ in range(64):  # then others have their turn
            try:
                heard = control.receive(self._talk)
            except BlockingIOError:
                return
            except OSError:
                heard = None
            if heard is None:
                self.close()
                return
            self._take(heard[0])

    def _take(self, message: dict[str, Any]) -> None:
        if told := message.get("egress"):
            if listener := self.listeners.get(message["lease"]):
                for one in told:
                    listener(Egress(**one))
            return
        waiting = self._asked.get(message["id"]) if "id" in message else self._ready
        if waiting is None or waiting.done():
            return
        if "error" in message:
            error = BelljarError if "id" in message else Unavailable
            waiting.set_exception(error(message["error"], hint=message.get("hint", "")))
        else:
            waiting.set_result(None)


def _launch(
    settings: Settings,
) -> tuple[socket.socket, subprocess.Popen[bytes], Authority, bytes, int]:
    paths = [_PACKAGE_ROOT, *_libraries()]
    authority = Authority.load(settings.home)
    more_roots = _more_roots(settings)
    given = {
        "do": "start",
        "authority": authority.to_dict(),
        "roots": (system_roots() + b"\n" + more_roots).decode("ascii", "replace"),
        "allowed": "any"
        if settings.network_allowed == "any"
        else patterns(settings.network_allowed),
        "denied": patterns(settings.network_denied),
        "private": _private(settings),
        "names": {host_name(name): to for name, to in settings.network_names.items()},
        "namespace": settings.network_namespace,
        "limits": {
            "connections": settings.network_connections,
            "bytes": settings.network_bytes,
            "requests_per_s": settings.network_requests_per_s,
            "connection_s": settings.network_connection_s,
            "idle_s": settings.network_idle_s,
        },
    }
    complaints = os.memfd_create("belljar-gateway")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    owner = os.pidfd_open(os.getpid())
    try:
        with theirs:
            descriptor = theirs.fileno()
            process = subprocess.Popen(
                [base_interpreter(), "-SsB", "-c", _START.format(control=descriptor)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                env=_VARIABLES,
                cwd="/",
                start_new_session=True,
                pass_fds=(descriptor,),
            )
        ours.send(_BOOT.format(paths=paths, control=descriptor).encode())
        ours.setblocking(False)
        control.send(ours, given, [owner])
    except OSError as error:
        ours.close()
        os.close(complaints)
        raise Unavailable(
            f"the gateway could not be started: {error}",
            hint="are open files or processes (ulimit -n, -u) of this user used up?",
        ) from error
    finally:
        os.close(owner)
    return ours, process, authority, more_roots, complaints


def _libraries() -> list[str]:
    """Where they lie: the process starts without any site-packages."""
    found = []
    for name in ("h11", "cryptography"):
        spec = find_spec(name)
        if spec is None or not spec.origin:
            raise Unavailable(f"network: the library {name} is missing", hint=install("network"))
        found.append(str(Path(spec.origin).parents[1]))
    return list(dict.fromkeys(found))


def _more_roots(settings: Settings) -> bytes:
    if settings.network_authorities is None:
        return b""
    try:
        return settings.network_authorities.read_bytes()
    except OSError as error:
        raise Unavailable(f"settings.network_authorities cannot be read: {error}") from error


def _private(settings: Settings) -> list[str]:
    try:
        return [str(network) for network in private(settings.network_private)]
    except ValueError as error:
        raise InvalidRequest(
            f"settings.network_private: {error}", hint='addresses such as "10.1.0.0/16"'
        ) from error
