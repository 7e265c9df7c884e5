"""The gateway's process as the host sees it: how it is started, asked and heard."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from belljar import threads
from belljar.errors import InvalidRequest, NetworkUnavailable, Unavailable
from belljar.extras import install
from belljar.network import Egress, host_name, patterns
from belljar.runtimes.interpreter import base_interpreter
from belljar.settings import Settings

from . import control, underway
from .addresses import private
from .authority import Authority, system_roots

_START_S = 60.0
_ANSWER_S = 10.0
"""Questions are answered in one turn of the gateway's loop, and no turn is longer than `burning`
lets it be."""
_STUCK_S = 3.0
_LOOK_S, _IDLE_LOOKS = 0.5, 2
"""A process that does not answer is looked at after `_STUCK_S`, then every `_LOOK_S`. If it is seen
idle more than `_IDLE_LOOKS` times in a row, it was stopped or hangs. It is ended after some 4 s."""
_PING_S = 5.0
"""How often a process with leases is asked something: code that waits for a hung one cannot ask."""
_MOST_UNSENT = 1_000
_AGAIN = "try again: a new gateway is started"
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
Order = Mapping[str, Any]


class Listener(NamedTuple):
    """Who hears about a lease."""

    tried: OnEgress
    lost: Callable[[], None]
    """Called once if the process ends before the lease does."""


class Running:
    """The gateway's process as the host sees it."""

    def __init__(
        self,
        talk: socket.socket,
        process: subprocess.Popen[bytes],
        *,
        authority: Authority,
        more_roots: bytes,
        under_way: int,
    ) -> None:
        self.authority = authority
        self.more_roots = more_roots
        self.alive = True
        self.listeners: dict[int, Listener] = {}
        """By the number of the lease; who has none is idle."""
        self._talk = talk
        self._process = process
        self._under_way = under_way
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Order]] = {}
        self._heard: dict[int, int] = {}
        """Which record was the last of each slot."""
        self._unsent: deque[tuple[Order, socket.socket | None]] = deque()
        self._ready: asyncio.Future[Order] = self._loop.create_future()
        self._pinging: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, settings: Settings) -> Running:
        started = await threads.ENGINES.take_for(threads.OURS, _discard, _launch, settings)
        self = cls(
            started.talk,
            started.process,
            authority=started.authority,
            more_roots=started.more_roots,
            under_way=started.under_way,
        )
        self._loop.add_reader(started.talk, self._hear)
        try:
            async with asyncio.timeout(_START_S):
                await self._ready
        except BaseException as error:
            self.close()
            said = os.pread(started.complaints, 4000, 0).decode("utf-8", "replace").strip()
            if isinstance(error, asyncio.CancelledError):
                raise
            why = str(error) or f"it took longer than {_START_S:.0f} s"
            raise Unavailable(
                "the gateway did not start",
                detail=f"{why} {said[-500:]}".strip(),
                hint="see docs/network.md; settings.network_* say where and how it works",
            ) from error
        finally:
            os.close(started.complaints)
        self._ping()
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def number(self) -> int:
        return next(self._numbers)

    async def ask(self, order: Order) -> Order:
        """The answer, when it is done."""
        number = self.number()
        done: asyncio.Future[Order] = self._loop.create_future()
        later = self._expect(number, done)
        try:
            self.send({**order, "id": number})
            return await done
        finally:
            later.cancel()
            self._asked.pop(number, None)

    def heard(self, slot: int, number: int) -> bool:
        """Whether the record of what was under way there has come."""
        return self._heard.get(slot) == number

    def _expect(self, number: int, done: asyncio.Future[Order]) -> asyncio.TimerHandle:
        self._asked[number] = done
        return self._loop.call_later(_STUCK_S, self._doubt, number, self._loop.time(), 0)

    def _ping(self) -> None:
        if self.listeners and not self._asked:
            number = self.number()
            done: asyncio.Future[Order] = self._loop.create_future()
            later = self._expect(number, done)

            def answered(_: object) -> None:
                later.cancel()
                self._asked.pop(number, None)

            done.add_done_callback(answered)
            self.send({"do": "ping", "lease": 0, "id": number})
        if self.alive:
            self._pinging = self._loop.call_later(_PING_S, self._ping)

    def _doubt(self, number: int, asked_at: float, idle: int) -> None:
        """A question has no answer yet. A process that is at work, or that the machine gives no
        time, is waited for longer."""
        if number not in self._asked:
            return
        idle = 0 if _is_at_work(self.pid) else idle + 1
        if idle > _IDLE_LOOKS or self._loop.time() - asked_at > _ANSWER_S:
            # Whatever it is busy with, it would let nothing more through in order.
            self.close("the gateway does not answer, and was ended")
        else:
            self._loop.call_later(_LOOK_S, self._doubt, number, asked_at, idle)

    def send(self, order: Order, descriptor: socket.socket | None = None) -> None:
        """Never waits. `descriptor` goes along, and is closed here."""
        if not self.alive or len(self._unsent) >= _MOST_UNSENT:
            if descriptor:
                descriptor.close()
            why = "takes no more requests now" if self.alive else "has ended"
            raise NetworkUnavailable(f"the gateway's process {why}", hint=_AGAIN)
        self._unsent.append((order, descriptor))
        if len(self._unsent) == 1:
            self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                order, descriptor = self._unsent[0]
                control.send(self._talk, order, [descriptor.fileno()] if descriptor else [])
                self._unsent.popleft()
                if descriptor:
                    descriptor.close()
        except BlockingIOError:
            self._loop.add_writer(self._talk, self._send)
            return
        except OSError:
            self.close()
            return
        self._loop.remove_writer(self._talk)

    def close(self, why: str = "the gateway's process has ended") -> None:
        """Ends the process. Attempts that it had under way are reported from here."""
        if not self.alive:
            return
        self.alive = False
        if self._pinging:
            self._pinging.cancel()
        self._loop.remove_reader(self._talk)
        self._loop.remove_writer(self._talk)
        self._process.kill()
        self._process.wait()
        while self._hear_one():
            pass
        self._talk.close()
        for _, descriptor in self._unsent:
            if descriptor:
                descriptor.close()
        self._unsent.clear()
        ended = NetworkUnavailable(why, hint=_AGAIN)
        for waiting in (*self._asked.values(), self._ready):
            if not waiting.done():
                waiting.set_exception(ended)
                waiting.exception()  # nobody may be waiting
        listeners, self.listeners = self.listeners, {}
        for lease, egress in underway.left(self._under_way, self._heard):
            if listener := listeners.get(lease):
                listener.tried(egress)
        os.close(self._under_way)
        for listener in listeners.values():
            listener.lost()

    def _hear(self) -> None:
        for _ in range(64):  # then others have their turn
            try:
                if not self._hear_one():
                    self.close()
                    return
            except BlockingIOError:
                return

    def _hear_one(self) -> bool:
        """False when there is nothing more to come."""
        try:
            heard = control.receive(self._talk)
        except BlockingIOError:
            if self.alive:
                raise
            return False
        except ConnectionResetError:
            return True  # said before the last messages of a process that has ended
        except OSError:
            heard = None
        if heard is None:
            return False
        self._take(heard[0])
        return True

    def _take(self, message: dict[str, Any]) -> None:
        if told := message.get("egress"):
            if "slot" in message:
                slot, number = message["slot"]
                self._heard[slot] = number
            if listener := self.listeners.get(message["lease"]):
                for one in told:
                    listener.tried(Egress(**one))
            return
        waiting = self._asked.get(message["id"]) if "id" in message else self._ready
        if waiting is None or waiting.done():
            return
        if "refused" in message:
            waiting.set_exception(InvalidRequest(message["refused"], hint=message["hint"]))
        elif "error" in message:
            why = message["error"]
            waiting.set_exception(NetworkUnavailable("the gateway failed", detail=why))
        else:
            waiting.set_result(message)


def _is_at_work(pid: int) -> bool:
    """It runs, or would if it got the time, or its memory back from the disk."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("R", "D")
    except OSError:
        return False


class _Started(NamedTuple):
    talk: socket.socket
    process: subprocess.Popen[bytes]
    authority: Authority
    more_roots: bytes
    under_way: int
    complaints: int


def _launch(settings: Settings) -> _Started:
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
    under_way = underway.make()
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
        control.send(ours, given, [owner, under_way])
    except OSError as error:
        ours.close()
        os.close(complaints)
        os.close(under_way)
        raise Unavailable(
            "the gateway could not be started",
            detail=str(error),
            hint="are open files or processes (ulimit -n, -u) of this user used up?",
        ) from error
    finally:
        os.close(owner)
    return _Started(ours, process, authority, more_roots, under_way, complaints)


def _discard(started: _Started) -> None:
    """Nobody waits for it any more."""
    started.process.kill()
    started.process.wait()
    started.talk.close()
    os.close(started.under_way)
    os.close(started.complaints)


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
        raise Unavailable(
            "settings.network_authorities cannot be read", detail=str(error)
        ) from error


def _private(settings: Settings) -> list[str]:
    try:
        return [str(network) for network in private(settings.network_private)]
    except ValueError as error:
        raise InvalidRequest(
            f"settings.network_private: {error}", hint='addresses such as "10.1.0.0/16"'
        ) from error
