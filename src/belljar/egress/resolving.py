"""From a name to a connection: looked up once, judged, and exactly what was judged is dialled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from . import addresses
from .addresses import Address
from .refusal import blocked, failed
from .streams import Tcp, is_reserved
from .targets import Target

_THREADS = 128
"""Made when needed. A lease may hold four of them for as long as a name server is silent."""
_STACK_BYTES = 1 << 20
"""As large as usual they would count as a gibibyte against the process's memory."""
_LOOKUP_S = 15.0
_DIAL_S = 10.0
_MOST_JUDGED = 64
_MOST_ADDRESSES = 6


class Resolver:
    """One for the whole gateway."""

    def __init__(self, *, names: Mapping[str, str], private: Sequence[str]) -> None:
        self._names = {name.lower(): address for name, address in names.items()}
        self._allowed = addresses.private(private)
        threading.stack_size(_STACK_BYTES)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="names")

    async def look_up(self, target: Target, turn: asyncio.Semaphore) -> list[Address]:
        """Addresses that may be dialled. `turn` is a lease's own: a look-up whose server never
        answers holds a thread, and must not hold those of others."""
        if given := self._names.get(target.host):
            found = [given]
        else:
            found = await self._ask(target, turn)
        good = []
        for text in list(dict.fromkeys(found))[:_MOST_JUDGED]:
            with contextlib.suppress(ValueError):
                address = addresses.plain(text)
                if addresses.may_be_dialled(address, self._allowed):
                    good.append(address)
        if not good:
            raise blocked(
                f"{target.host} leads to {', '.join(found[:3])}, which is not a public address; "
                "private, local and reserved ones are not dialled"
            )
        return good[:_MOST_ADDRESSES]

    async def _ask(self, target: Target, turn: asyncio.Semaphore) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_LOOKUP_S):
                await turn.acquire()
                asked = self._threads.submit(_look_up, target)
                asked.add_done_callback(lambda _: _from_thread(loop, turn.release))
                return await asyncio.wrap_future(_shielded(asked))
        except TimeoutError:
            raise failed(f"{target.host}: the look-up of its name took too long") from None
        except OSError as error:
            raise failed(f"{target.host}: its name is not known ({error.strerror})") from error

    async def dial(self, target: Target, judged: Sequence[Address]) -> tuple[Tcp, Address]:
        loop = asyncio.get_running_loop()
        problem: Exception | None = None
        for address in judged:
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            try:
                stream = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            except OSError as error:
                problem = error
                continue
            if is_reserved(stream):
                stream.close()
                raise failed("the gateway has too many connections", status=503)
            try:
                stream.setblocking(False)
                async with asyncio.timeout(_DIAL_S):
                    await loop.sock_connect(stream, (str(address), target.port))
                return Tcp(stream), address
            except (OSError, TimeoutError) as error:
                stream.close()
                problem = error
            except BaseException:
                stream.close()
                raise
        code = getattr(problem, "errno", None)
        why = os.strerror(code) if code else "it did not answer"
        raise failed(f"{target.host}:{target.port} cannot be reached: {why}")


def _look_up(target: Target) -> list[str]:
    # As bytes: a text would be encoded once more, by a codec that is loaded from files.
    name = target.host.encode("ascii")
    answers = socket.getaddrinfo(name, target.port, type=socket.SOCK_STREAM)
    return [str(answer[4][0]) for answer in answers]


def _shielded(asked: Future[list[str]]) -> Future[list[str]]:
    """Who stops waiting does not take the look-up's turn back before it is over."""
    copy: Future[list[str]] = Future()

    def done(original: Future[list[str]]) -> None:
        if copy.set_running_or_notify_cancel():
            error = original.exception()
            if error:
                copy.set_exception(error)
            else:
                copy.set_result(original.result())

    asked.add_done_callback(done)
    return copy


def _from_thread(loop: asyncio.AbstractEventLoop, call: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(call)  # type: ignore[arg-type]
