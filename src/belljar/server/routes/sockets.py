"""`/v1/sandboxes/{id}/socket`: a WebSocket for interactive use (L6).

Messages are JSON objects with a `type`; an `id` that the client gives comes back in what belongs to
it. What happens is told with the names and fields of the server-sent events.

    client → server  run, interrupt, kill, extend, start, stdin, signal, resize, ping
    server → client  output, shown, usage, progress, sandbox, end, started, exit, error, pong
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, WebSocket
from pydantic import Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketDisconnect

from belljar.kept.processes import Process
from belljar.server import bodies, writing
from belljar.server import schemas_kept as schemas
from belljar.server.budget import Hold
from belljar.server.errors import ApiError, answer
from belljar.server.gate import Visit
from belljar.server.routes.processes import feed, output_of, start_program
from belljar.server.routes.sandboxes import happening
from belljar.server.sandboxes import Owned
from belljar.server.schemas import Text
from belljar.server.server import Server
from belljar.server.steps import Step
from belljar.server.streams import Told, text_of
from belljar.server.strict import Strict, content, refusal

router = APIRouter()

AHEAD, AHEAD_BYTES = 256, 1 << 20
"""Messages that wait to be sent; one may be longer, alone."""
AT_ONCE = 32
"""Runs and programs that one socket has under way."""
POLICY, TOO_SLOW = 1008, 1013
LOOK_S = 2.0
"""How often it is asked whether the key is still one."""


class _Message(Strict):
    id: Text = ""


class Run(_Message, schemas.StepRequest):
    type: Literal["run"]


class Interrupt(_Message):
    type: Literal["interrupt"]


class Kill(_Message):
    type: Literal["kill"]


class Extend(_Message, schemas.ExtendRequest):
    type: Literal["extend"]


class Start(_Message, schemas.StartRequest):
    type: Literal["start"]


class Stdin(_Message, schemas.StdinRequest):
    type: Literal["stdin"]
    process_id: int


class Signal(_Message, schemas.SignalRequest):
    type: Literal["signal"]
    process_id: int


class Resize(_Message, schemas.ResizeRequest):
    type: Literal["resize"]
    process_id: int


class Ping(_Message):
    type: Literal["ping"]


Message = Run | Interrupt | Kill | Extend | Start | Stdin | Signal | Resize | Ping
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


@router.websocket("/v1/sandboxes/{sandbox_id}/socket")
async def socket(websocket: WebSocket, sandbox_id: str) -> None:
    server: Server = websocket.app.state.server
    visit: Visit = websocket.scope["belljar"]
    try:
        owned = server.book.find(visit, sandbox_id)
    except Exception as error:
        await websocket.send_denial_response(answer(error, ran=False))
        return
    await websocket.accept()
    await Talk(server, visit, owned, websocket).live()


class Talk:
    """One socket. Everything that it began ends with it, but for detached programs."""

    def __init__(self, server: Server, visit: Visit, owned: Owned, websocket: WebSocket) -> None:
        self._server = server
        self._visit = visit
        self._owned = owned
        self._tenant = owned.tenant
        self._websocket = websocket
        self._patience_s = server.settings.send_timeout_s
        self._out = Outbox()
        self._under_way: set[asyncio.Task[None]] = set()

    async def live(self) -> None:
        sending = asyncio.create_task(self._send())
        receiving = asyncio.create_task(self._receive())
        own = (sending, receiving, asyncio.create_task(self._look()))
        code = 1000
        try:
            done, _ = await asyncio.wait(own, return_when=asyncio.FIRST_COMPLETED)
            code = next(iter(done)).result()
        finally:
            for task in (*own, *self._under_way):
                task.cancel()
            await asyncio.wait((*own, *self._under_way))
        if code:
            await self._close(code)

    async def _close(self, code: int) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._websocket.close(code)
        except (TimeoutError, RuntimeError, WebSocketDisconnect):
            pass  # gone meanwhile

    async def _send(self) -> int:
        turn = self._server.turns.of(self._tenant.name)
        while True:
            text = await self._out.next()
            try:
                if isinstance(text, bytes):
                    await self._send_text(text)
                else:
                    async for piece in writing.in_turn(text, turn):
                        await self._send_text(piece, more=True)
                    await self._send_text(b"", more=False)
            except TimeoutError:
                return TOO_SLOW
            except (RuntimeError, WebSocketDisconnect):
                return 0
            await self._out.sent()

    async def _send_text(self, text: bytes, **fragment: bool) -> None:
        """`more`: a fragment of a message."""
        async with asyncio.timeout(self._patience_s):
            await self._websocket.send(
                {"type": "websocket.send", "text": text.decode(), **fragment}
            )

    async def _look(self) -> int:
        """A client that only listens sends nothing to ask at."""
        while self._visit.still_valid():
            await asyncio.sleep(LOOK_S)
        return POLICY

    async def _receive(self) -> int:
        while True:
            received = await self._websocket.receive()
            if received["type"] == "websocket.disconnect":
                return 0
            if not self._visit.still_valid():
                return POLICY
            identity = ""
            held = self._server.bodies.hold(self._tenant)
            try:
                given, size = await self._read(received.get("text") or "")
                if isinstance(given, dict) and isinstance(given.get("id"), str):
                    identity = given["id"][:64]
                message = _message(given)
                held.grow(size)
                if not await self._take(message, held):
                    held()
            except Exception as error:
                held()
                await self._fail(identity, error)

    async def _read(self, text: str) -> tuple[Any, int]:
        """What came, and what it will take if something is begun with it."""
        sent = text.encode()
        if bodies.is_small(sent):
            return bodies.parse(sent), bodies.COPIES * len(text)
        async with self._server.bodies.turns.of(self._tenant.name):
            return await bodies.read(self._server, self._tenant, [sent])

    async def _take(self, message: Message, held: Hold) -> bool:
        """True: something is under way that keeps what was `held` for it."""
        box = self._owned.box
        match message:
            case Run():
                self._begin(self._run(message), held)
                return True
            case Start():
                self._begin(self._start(message), held)
                return True
            case Interrupt():
                box.interrupt()
            case Kill():
                box.kill()
            case Extend():
                box.extend(message.seconds)
            case Stdin():
                process = self._owned.programs.find(message.process_id)
                await feed(process, content(message.data), close=message.close)
            case Signal():
                await self._owned.programs.find(message.process_id).kill(message.number)
            case Resize():
                process = self._owned.programs.find(message.process_id)
                await process.resize(message.rows, message.columns)
            case Ping():
                await self._say(message.id, ("pong", {}))
        return False

    def _begin(self, work: Any, held: Hold) -> None:
        if len(self._under_way) >= AT_ONCE:
            work.close()
            raise ApiError(
                "queue_full", f"{AT_ONCE} things are under way in this socket", retry_after_s=1
            )
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(lambda _: held())

    async def _run(self, message: Run) -> None:
        options = {"timeout_s": message.timeout_s, "stdin": content(message.stdin)}
        with self._turn() as visit:
            step = Step(self._server, visit, self._owned, message.code, tell=True, **options)
            try:
                async for told in happening(step, self._owned):
                    await self._say(message.id, told)
            except Exception as error:
                await self._fail(message.id, error, ran=visit.ran)
            finally:
                step.abandon()

    async def _start(self, message: Start) -> None:
        process: Process | None = None
        visit = dataclasses.replace(self._visit, after=[])
        try:
            process = await start_program(self._server, visit, self._owned, message)
            async for told in output_of(process, started=True):
                await self._say(message.id, told, process_id=process.process_id)
        except Exception as error:
            await self._fail(message.id, error, ran=visit.ran)
        finally:
            if process and process.running and not message.detached:
                self._server.soon(process.kill())

    async def _fail(self, identity: str, error: Exception, *, ran: bool = False) -> None:
        said = json.loads(bytes(answer(error, ran=ran).body))
        await self._say(identity, ("error", said))

    @contextmanager
    def _turn(self) -> Iterator[Visit]:
        """For one thing that is under way: what its result takes is given back after it, and not
        with the socket."""
        visit = dataclasses.replace(self._visit, after=[])
        try:
            yield visit
        finally:
            for give_back in visit.after:
                give_back()

    async def _say(self, identity: str, told: Told, **more: Any) -> None:
        name, said = told
        if name == "sandbox":
            said = {"sandbox": said}  # it has an id of its own
        await self._out.put(text_of(said, type=name, id=identity, **more))


class Outbox:
    """What waits to be sent: whoever has more to say waits, too, and with something large until it
    is sent."""

    def __init__(self) -> None:
        self._texts: deque[bytes | Iterator[bytes]] = deque()
        self._bytes = 0
        self._news = asyncio.Condition()

    async def put(self, text: bytes | Iterator[bytes]) -> None:
        size = _size(text)
        async with self._news:
            await self._news.wait_for(lambda: self._has_room(size))
            self._texts.append(text)
            self._bytes += size
            self._news.notify_all()
            if size > AHEAD_BYTES:
                await self._news.wait_for(lambda: all(one is not text for one in self._texts))

    async def next(self) -> bytes | Iterator[bytes]:
        async with self._news:
            await self._news.wait_for(lambda: self._texts)
            return self._texts[0]

    async def sent(self) -> None:
        """What was next is with the client's own buffers."""
        async with self._news:
            self._bytes -= _size(self._texts.popleft())
            self._news.notify_all()

    def _has_room(self, size: int) -> bool:
        few = len(self._texts) < AHEAD and self._bytes + size <= AHEAD_BYTES
        return few or not self._texts


def _size(text: bytes | Iterator[bytes]) -> int:
    """What comes in pieces is large."""
    return len(text) if isinstance(text, bytes) else AHEAD_BYTES + 1


def _message(given: Any) -> Message:
    try:
        return _MESSAGE.validate_python(given)
    except ValidationError as error:
        raise refusal(error) from None
