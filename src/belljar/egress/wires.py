"""What comes first on a wire says what it is: `L`, listeners of a sandbox's own network namespace,
or `M`, many connections on the wire itself."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import socket

from belljar.engines.linux.wait import readable

from . import burning, mux
from .doors import DOORS
from .ledger import Attempt
from .outlet import Door, Outlet
from .refusal import failed
from .streams import ClientStream, Tcp, is_reserved

WITHOUT_DESCRIPTORS_S = 0.2
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FIRST_BYTES = 65_536
_FIRST_WORD_S = 120.0


def attach(outlet: Outlet, wire: socket.socket) -> None:
    """Serves it until the lease ends."""
    wire.setblocking(False)
    context = contextvars.copy_context()
    context.run(burning.blamed.set, outlet.account)  # and so do all tasks that come of this one
    task = asyncio.create_task(_live(outlet, wire), context=context)
    outlet.on_close(task)


def tell_lost(outlet: Outlet) -> None:
    """The sandbox has no network, or not by this wire: nobody else would say so."""
    why = failed(
        "the gateway had no free file descriptor, so this sandbox has no network", status=503
    )
    Attempt(outlet.ledger, scheme="").ended(why)


async def _live(outlet: Outlet, wire: socket.socket) -> None:
    try:
        async with asyncio.timeout(_FIRST_WORD_S):
            await readable(wire)
        first, descriptors, flags, _ = socket.recv_fds(wire, _FIRST_BYTES, len(DOORS))
        listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        try:
            if first == b"L" and flags & socket.MSG_CTRUNC and len(listeners) < len(DOORS):
                tell_lost(outlet)
            elif first == b"L" and listeners and all(_is_listener(one) for one in listeners):
                await asyncio.gather(*map(_accept, [outlet] * 3, listeners, DOORS))
            elif first[:1] == b"M" and not listeners:
                await _share(outlet, wire, first[1:])
        finally:
            for listener in listeners:
                listener.close()
    except (OSError, TimeoutError):
        pass
    finally:
        wire.close()


async def _accept(outlet: Outlet, listener: socket.socket, door: Door) -> None:
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    while True:
        await outlet.knock()
        try:
            accepted, _ = await loop.sock_accept(listener)
        except OSError as error:
            if error.errno not in SCARCE:
                if error.errno in (errno.EBADF, errno.EINVAL):
                    return
                continue
            await asyncio.sleep(WITHOUT_DESCRIPTORS_S)
            continue
        if is_reserved(accepted):
            accepted.close()
            why = failed("the gateway has too many connections", status=503)
            Attempt(outlet.ledger, scheme="").ended(why)
            await asyncio.sleep(WITHOUT_DESCRIPTORS_S)
            continue
        outlet.begin(Tcp(accepted), door)


async def _share(outlet: Outlet, wire: socket.socket, first: bytes) -> None:
    async def opened(lane: ClientStream, door: int) -> None:
        await outlet.knock()
        outlet.begin(lane, DOORS[door])

    await mux.Wire(wire, doors=len(DOORS), opened=opened, turns=outlet.turns).live(first)


def _is_listener(given: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        return (
            given.family in (socket.AF_INET, socket.AF_INET6)
            and given.type == socket.SOCK_STREAM
            and given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        )
    return False
