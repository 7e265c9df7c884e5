"""The gateway's process. It is told everything over its control socket and ends with it.

Nothing of a sandbox's runs in it, but all that sandboxes send passes through: after its imports it
gives up everything that it does not need (`hardening`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from belljar.errors import BelljarError
from belljar.network import Allow, Rules
from belljar.network import rules as as_rules

from . import burning, control, hardening, wires
from .authority import Authority
from .certificates import Contexts
from .ledger import Ledger
from .limits import Limits
from .outlet import Operator, Outlet
from .refusal import Refusal
from .resolving import Resolver
from .secrets import Held, Keeper
from .underway import UnderWay

_SWEEP_S = 1.0
_MOST_UNSENT = 256
"""Messages that the host has not taken; then nothing new goes out."""


class Process:
    def __init__(
        self,
        talk: socket.socket,
        given: dict[str, Any],
        *,
        contexts: Contexts,
        trust: ssl.SSLContext,
        under_way: UnderWay,
    ) -> None:
        self._talk = talk
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[dict[str, Any], Callable[[], None] | None]] = deque()
        self._blocked = False
        self._taken = asyncio.Event()
        self._outlets: dict[int, Outlet] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._limits = Limits.of(given["limits"])
        self._contexts = contexts
        self._trust = trust
        self._under_way = under_way
        allowed = given["allowed"]
        self._operator = Operator(
            allowed=None if allowed == "any" else tuple(map(Allow, allowed)),
            denied=given["denied"],
            resolver=Resolver(names=given["names"], private=given["private"]),
        )

    async def live(self, owner: int) -> None:
        """Until the host has gone."""
        self._loop.add_reader(owner, os._exit, 0)
        self._loop.add_reader(self._talk, self._hear)
        self._say({"ready": {"identity": hardening.identity()}})
        while True:
            await asyncio.sleep(_SWEEP_S)
            for outlet in list(self._outlets.values()):
                outlet.sweep()

    # -- the host --------------------------------------------------------------------------------

    def _hear(self) -> None:
        try:
            heard = control.receive(self._talk)
        except BlockingIOError:
            return
        except control.Incomplete as error:
            self._say({"id": error.named["id"], "error": "the gateway has no free file descriptor"})
            return
        except OSError:
            heard = None
        if heard is None:
            os._exit(0)
        order, descriptors = heard
        if order["do"] == "wire":
            outlet = self._outlets.get(order["lease"])
            wire = socket.socket(fileno=descriptors[0]) if descriptors else None
            if outlet and wire:
                wires.attach(outlet, wire)
            elif outlet:
                wires.tell_lost(outlet)
            elif wire:
                wire.close()
            return
        task = self._loop.create_task(self._do(order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, order: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": order["id"]}
        outlet = self._outlets.get(order["lease"])
        burning.blamed.set(outlet.account if outlet else burning.Account(lambda _: None))
        try:
            if order["do"] == "open":
                self._open(order)
            elif order["do"] == "change":
                self._outlets[order["lease"]].change(_rules(order))
            elif order["do"] == "tell":
                answer["under_way"] = outlet.ledger.under_way() if outlet else []
            elif outlet:
                await outlet.close()
                self._outlets.pop(order["lease"], None)
        except BelljarError as error:
            answer |= {"refused": error.message, "hint": error.hint}
        except Refusal as refusal:
            answer |= {"refused": f"network: {refusal.why}", "hint": ""}
        except Exception as error:
            answer |= {"error": type(error).__name__}
        self._say(answer)

    def _open(self, order: dict[str, Any]) -> None:
        number = order["lease"]
        self._outlets[number] = Outlet(
            rules=_rules(order),
            limits=self._limits,
            ledger=Ledger(partial(self._tell, number), self._under_way, number),
            keeper=Keeper([Held.of(one) for one in order["secrets"]]),
            operator=self._operator,
            trust=self._trust,
            certificate=self._contexts.for_name,
            settled=self._settled,
        )

    def _tell(self, lease: int, told: list[dict[str, Any]], slot: int | None) -> None:
        message: dict[str, Any] = {"lease": lease, "egress": told}
        if slot is None:
            self._say(message)
        else:
            message["slot"] = slot, self._under_way.number(slot)
            self._say(message, partial(self._under_way.over, slot))

    def _say(self, message: dict[str, Any], sent: Callable[[], None] | None = None) -> None:
        """`sent` is called when the message is out of this process's hands."""
        self._unsent.append((message, sent))
        if not self._blocked:
            self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                message, sent = self._unsent[0]
                control.send(self._talk, message)
                self._unsent.popleft()
                if sent:
                    sent()
        except BlockingIOError:
            self._blocked = True
            self._loop.add_writer(self._talk, self._send)
            return
        except OSError as error:
            if error.errno not in wires.SCARCE:
                os._exit(0)
            self._blocked = True  # a long message needs a descriptor
            self._loop.remove_writer(self._talk)
            self._loop.call_later(wires.WITHOUT_DESCRIPTORS_S, self._send)
            return
        if self._blocked:
            self._loop.remove_writer(self._talk)
            self._blocked = False
        self._taken.set()

    async def _settled(self) -> None:
        while len(self._unsent) > _MOST_UNSENT:
            self._taken.clear()
            await self._taken.wait()


def trust(roots: str) -> ssl.SSLContext:
    """How hosts prove who they are."""
    context = ssl.create_default_context(cadata=roots or None)
    context.set_alpn_protocols(["http/1.1"])
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _rules(order: dict[str, Any]) -> Rules:
    return as_rules(order["rules"])


def main(descriptor: int) -> None:
    """Never returns."""
    talk = socket.socket(fileno=descriptor)
    first = control.receive(talk)
    if first is None:
        os._exit(0)
    given, (owner, shared) = first
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        hardening.enter_namespace(given["namespace"])
        trusting = trust(given["roots"])
        contexts = Contexts(Authority.of(given.pop("authority")))
        contexts.for_name("rehearsal.invalid")  # loads what no file can be opened for later
        silence = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        under_way = UnderWay(shared)
        watch = burning.Watch()
        hardening.harden()
        asyncio.run(_main(talk, given, owner, contexts, trusting, under_way, watch, silence))
    except Exception as error:
        control.send(talk, {"error": f"{type(error).__name__}: {error}"})
    os._exit(1)


async def _main(
    talk: socket.socket,
    given: dict[str, Any],
    owner: int,
    contexts: Contexts,
    trusting: ssl.SSLContext,
    under_way: UnderWay,
    watch: burning.Watch,
    silence: int,
) -> None:
    talk.setblocking(False)
    process = Process(talk, given, contexts=contexts, trust=trusting, under_way=under_way)
    watch.start()
    os.dup2(silence, sys.stderr.fileno())  # from here on whatever it said would only be kept
    await process.live(owner)
