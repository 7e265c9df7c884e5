"""The host between an agent and the gateway (N1): what a hostile guest sends costs a bounded
amount, holds nothing else up, and ends at worst its own network. The agent is the test itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from belljar import netline
from belljar.conversation import Conversation
from belljar.engines.base import Doors, Inside
from belljar.errors import EngineError, SandboxLost
from belljar.model import Limits
from belljar.receiver import Outcome
from belljar.runtimes.guest import protocol
from belljar.sandbox import Order, Sandbox
from belljar.sending import Sending

HOSTS = {"api.example.com": "127.0.0.1"}
LINE = "127.0.0.1 api.example.com\n"
END = {"exit_code": 0, "signal": None, "dropped": {"stdout": 0, "stderr": 0}}
WITHIN_S = 20


class Beyond:
    """A wall with nobody behind it but the test."""

    isolation: Mapping[str, str] = {"network": "none"}
    inputs = None

    def __init__(self, hosts: Path | None = None) -> None:
        self.stream, self.agent = socket.socketpair()
        self.hosts = hosts
        self.stream.setblocking(False)
        self.agent.setblocking(False)
        self.killed = False
        self._frames = protocol.Reader(protocol.FROM_HOST | protocol.KEPT_FROM_HOST)
        self._came: list[tuple[int, bytes]] = []

    def settle(self) -> None: ...

    def apply(self, limits: Limits) -> Inside:
        return Inside(rlimits={})

    def look(self) -> None:
        return None

    def kill(self) -> None:
        self.killed = True

    async def destroy(self) -> None:
        self.stream.close()
        self.agent.close()

    async def say(self, kind: int, payload: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.agent, protocol.frame(kind, payload))

    async def end(self) -> None:
        await self.say(protocol.END, protocol.json_bytes(END))

    async def hear(self, kind: int) -> bytes:
        """The next of that kind."""
        while True:
            while self._came:
                came, payload = self._came.pop(0)
                if came == kind:
                    return payload
            data = await asyncio.get_running_loop().sock_recv(self.agent, 1 << 16)
            assert data, "nobody there"
            self._came += self._frames.feed(data)


class Gateway:
    def __init__(self) -> None:
        ours, self.wire = socket.socketpair()
        self.end = ours
        self.end.setblocking(False)
        self.doors = Doors(wire=lambda: self.wire, hosts=HOSTS)

    async def recv(self, size: int = 1 << 16) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.end, size)


def order(doors: Doors | None) -> Order:
    return Order(
        path="/workspace/main.py",
        argv=None,
        compile=None,
        env={},
        stdin=b"",
        workspace={},
        inputs={},
        limits=Limits(timeout_s=WITHIN_S),
        doors=doors,
    )


class Running:
    """A run under way, with its agent and its gateway."""

    def __init__(self, hosts: Path | None = None) -> None:
        self.wall = Beyond(hosts)
        self.gateway = Gateway()
        self.sandbox = Sandbox(self.wall)

    async def __aenter__(self) -> Running:
        self._run = asyncio.ensure_future(self.sandbox.run(order(self.gateway.doors)))
        self.told = protocol.unpack(await self.wall.hear(protocol.RUN))
        assert await self.gateway.recv(1) == b"M", "the host says which kind of wire it is"
        return self

    async def outcome(self) -> Outcome:
        async with asyncio.timeout(WITHIN_S):
            return await self._run

    async def __aexit__(self, *_: object) -> None:
        self._run.cancel()
        with contextlib.suppress(asyncio.CancelledError, EngineError):
            await self._run
        await self.sandbox.destroy()
        self.gateway.end.close()


def test_n1_bytes_are_carried_both_ways_and_the_wire_ends_with_the_run() -> None:
    async def main() -> None:
        async with Running() as run:
            assert run.told["doors"]["hosts"].endswith(LINE)
            await run.wall.say(protocol.NET, b"\0out")
            assert await run.gateway.recv() == b"\0out"
            run.gateway.end.send(b"\0in")
            assert await run.wall.hear(protocol.NET) == b"\0in"
            await run.wall.end()
            assert (await run.outcome()).ended and not run.wall.killed
            assert await run.gateway.recv() == b""
            assert run.sandbox.isolation["network"].startswith("named hosts")
            await run.wall.say(protocol.NET, b"too late")  # taken, and nobody hears it
            await asyncio.sleep(0)
            assert not run.sandbox.lost

    asyncio.run(main())


def test_n1_hosts_that_the_wall_has_as_a_file_are_written_there(tmp_path: Path) -> None:
    """In the same file: another one by that name would not be the one that is mounted."""
    file = tmp_path / "hosts"
    file.write_text("before\n" * 100)
    inode = file.stat().st_ino

    async def main() -> None:
        async with Running(file) as run:
            assert run.told["doors"] == {"hosts": ""}
            await run.wall.end()
            await run.outcome()

    asyncio.run(main())
    assert file.read_text().endswith(LINE) and "before" not in file.read_text()
    assert file.stat().st_ino == inode


def test_n1_a_guest_without_a_network_has_nothing_to_say_to_one() -> None:
    async def main() -> None:
        wall = Beyond()
        sandbox = Sandbox(wall)
        await wall.say(protocol.READY, b"{}")
        await sandbox.ready()
        run = asyncio.ensure_future(sandbox.run(order(None)))
        await wall.say(protocol.NET, b"x")
        outcome = await run
        assert wall.killed and "network that it does not have" in outcome.problem
        await sandbox.destroy()

    asyncio.run(main())


def test_n1_a_flood_that_the_gateway_does_not_take_ends_the_wire_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L5: the host holds 32 MiB of it (here 1), reads on, and the run goes on."""
    monkeypatch.setattr(netline, "MOST_WAITING", 1 << 20)

    async def main() -> None:
        async with Running() as run:
            for _ in range(24):
                await run.wall.say(protocol.NET, bytes(1 << 16))
            assert await run.wall.hear(protocol.NET) == b"", "the agent is told"
            line = run.sandbox._line
            assert line and line.closed and not line._waiting
            await run.wall.say(protocol.STDOUT, b"still here")
            await run.wall.end()
            outcome = await run.outcome()
            assert (outcome.stdout, run.wall.killed) == (b"still here", False)
            with contextlib.suppress(OSError, TimeoutError):
                for _ in range(24):  # who goes on for ever has the host busy for nothing
                    async with asyncio.timeout(0.5):
                        await run.wall.say(protocol.NET, bytes(1 << 16))
            assert run.wall.killed and "flood" in run.sandbox.lost

    asyncio.run(main())


def test_n1_an_agent_that_takes_nothing_is_not_read_ahead_for() -> None:
    """What waits for it stays with the gateway, which has its own bounds."""

    async def main() -> None:
        async with Running() as run:
            sent = 0
            with contextlib.suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(0.3):
                        loop = asyncio.get_running_loop()
                        await loop.sock_sendall(run.gateway.end, bytes(1 << 16))
                    sent += 1 << 16
            assert sent < 4 << 20
            await run.wall.end()  # the other direction is not held up
            assert (await run.outcome()).ended

    asyncio.run(main())


def test_n1_a_gateway_that_hangs_up_is_told_inside() -> None:
    async def main() -> None:
        async with Running() as run:
            run.gateway.end.shutdown(socket.SHUT_RDWR)
            assert await run.wall.hear(protocol.NET) == b""
            await run.wall.say(protocol.NET, b"nobody there")
            await run.wall.end()
            assert (await run.outcome()).ended and not run.wall.killed

    asyncio.run(main())


def test_n1_the_agent_may_give_its_network_up() -> None:
    async def main() -> None:
        async with Running() as run:
            await run.wall.say(protocol.NET, b"")
            assert await run.gateway.recv() == b""
            await run.wall.end()
            assert (await run.outcome()).ended

    asyncio.run(main())


def test_n1_a_kept_sandbox_gets_doors_new_doors_and_new_names() -> None:
    async def main() -> None:
        wall = Beyond()
        talk = Conversation(wall)
        first, second = Gateway(), Gateway()

        async def answer(op: str, **answer: object) -> str:
            ask = protocol.unpack(await wall.hear(protocol.ASK))
            assert ask["op"] == op
            await wall.say(protocol.ANSWER, protocol.json_bytes({"id": ask["id"], **answer}))
            return str(ask["hosts"])

        for gateway in (first, second):
            opened = asyncio.ensure_future(talk.open_doors(gateway.doors))
            assert (await answer("open_doors", ok={})).endswith(LINE)
            await opened
            assert await gateway.recv() == b"M"
        assert await first.recv() == b"", "the old one is over"
        await wall.say(protocol.NET, b"hello")
        assert await second.recv() == b"hello"
        named = asyncio.ensure_future(talk.name_hosts({}))
        assert "example" not in await answer("name_hosts", ok={})
        await named
        refused = asyncio.ensure_future(talk.open_doors(Gateway().doors))
        await answer("open_doors", error={"kind": "os", "message": "in use \ud800"})
        with pytest.raises(EngineError, match="in use") as error:
            await refused
        error.value.message.encode()
        await talk.destroy()
        with pytest.raises(SandboxLost):
            await talk.name_hosts(HOSTS)

    asyncio.run(main())


def test_frames_of_many_senders_go_out_whole_and_in_order() -> None:
    """Also if one of them is cancelled half-way, and though the stream takes little at a time."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        loop = asyncio.get_running_loop()
        sending = Sending(loop, ours)
        pieces = [protocol.frame(protocol.DATA, bytes([n]) * 70_000) for n in range(20)]
        tasks = [asyncio.ensure_future(sending.send(piece)) for piece in pieces]
        await asyncio.sleep(0.01)
        for task in tasks[::3]:
            task.cancel()
        got = bytearray()
        while len(got) < sum(map(len, pieces)):
            got += await loop.sock_recv(theirs, 1 << 16)
        assert bytes(got) == b"".join(pieces)
        await asyncio.gather(*tasks, return_exceptions=True)
        waiting = sending.put(bytes(1 << 22))
        assert waiting
        theirs.close()
        with pytest.raises(OSError):
            await waiting
        with pytest.raises(OSError):
            sending.put(b"x")
        ours.close()

    asyncio.run(main())
