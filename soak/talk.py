"""A tenant's requests to the server: each carries a token, each is judged and recorded."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from .place import Place
from .record import Op, Record

PATIENCE_S = 150.0
"""Longer than anything the server may take: who waits in vain has found something."""
Judge = Callable[[Any], str]
"""Says what is wrong with an answer; nothing if it is right."""
EVENTS = {"Accept": "text/event-stream"}
AGENTS = {"Accept": "application/json, text/event-stream"}


class Disturbed(Exception):
    """A request was not answered as expected, so that what would follow makes no sense. It is
    recorded; whether a fault explains it is judged afterwards."""


class Talk:
    """What one worker has to say to the server, as one tenant at a time."""

    def __init__(
        self, name: str, place: Place, record: Record, http: httpx.AsyncClient,
        now: Callable[[], float],
    ) -> None:  # fmt: skip
        self.place = place
        self.tenant = place.tenants[name]
        self.since = 0.0
        """When the job under way began to keep something; see `Op.since`."""
        self.under_way: Op | None = None
        """The last request that was begun."""
        self._name = name
        self._record = record
        self._http = http
        self._now = now

    def begin(self) -> None:
        self.since = self._now()

    def failed(self, explained: bool) -> None:
        """Of the request that is being judged, where the answer says so in words of its own."""
        if self.under_way:
            self.under_way.failed, self.under_way.explained = True, explained

    def token(self) -> str:
        token = f"t{self._record.seed:x}x{next(_numbers):06x}"
        _owners[token.encode()] = self._name
        return token

    async def ask(
        self,
        kind: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str = "",
        judge: Judge = lambda _: "",
        expect: int = 200,
        headers: dict[str, str] | None = None,
        one_run: bool = False,
        leave_after_s: float | None = None,
        key: str | None = None,
        heard: dict[str, str] | None = None,
    ) -> Any:
        """The answer, as JSON if it is that; Disturbed if it is not the one expected. `body`: bytes
        as they are, anything else as JSON. `heard`: gets the answer's headers."""
        with self._op(kind, token, one_run) as op:
            sent = self._headers(op.token, headers, key)
            is_json = body is not None and not isinstance(body, bytes)
            content = json.dumps(body).encode() if is_json else body
            if content is not None:
                sent.setdefault(
                    "Content-Type", "application/json" if is_json else "application/octet-stream"
                )
            try:
                async with asyncio.timeout(leave_after_s):
                    answer = await self._http.request(
                        method, self.place.url + path, content=content, headers=sent
                    )
            except TimeoutError:
                op.outcome = "left"
                raise Disturbed from None
            if heard is not None:
                heard.update(answer.headers)
            return self._judged(op, answer.status_code, answer.content, expect, judge)

    async def stream(
        self, kind: str, path: str, body: Any, *, token: str, judge: Judge, one_run: bool = False
    ) -> Any:
        """The result that a stream of events ends with. The printed pieces must be what it says."""
        with self._op(kind, token, one_run) as op:
            headers = self._headers(op.token, EVENTS | {"Content-Type": "application/json"})
            content = json.dumps(body).encode()
            request = self._http.stream(
                "POST", self.place.url + path, content=content, headers=headers
            )
            async with request as answer:
                if answer.status_code != 200:
                    return self._judged(op, answer.status_code, await answer.aread(), 200, judge)
                op.http = 200
                return self._told(op, await self._heard(op, _events(answer)), judge)

    async def socket(
        self, kind: str, sandbox: str, message: dict[str, Any], *, token: str, judge: Judge
    ) -> Any:
        """One run through a WebSocket of its own."""
        with self._op(kind, token, False) as op:
            url = self.place.url.replace("http", "ws") + f"/v1/sandboxes/{sandbox}/socket"
            headers = self._headers(op.token)
            async with connect(url, additional_headers=headers, proxy=None) as talking:
                op.http = 101
                await talking.send(json.dumps({"type": "run", "id": op.token, **message}))
                return self._told(op, await self._heard(op, _messages(talking, op.token)), judge)

    # -- judging -----------------------------------------------------------------------------------

    def _op(self, kind: str, token: str, one_run: bool) -> _Recording:
        self.under_way = op = Op(
            token=token or self.token(),
            tenant=self._name,
            kind=kind,
            began=self._now(),
            since=self.since,
            one_run=one_run,
        )
        return _Recording(op, self._record, self._now)

    def _headers(
        self, token: str, more: dict[str, str] | None = None, key: str | None = None
    ) -> dict[str, str]:
        found = {"Authorization": f"Bearer {key or self.tenant.key}", "X-Request-ID": token}
        return found | (more or {})

    def _judged(self, op: Op, status: int, content: bytes, expect: int, judge: Judge) -> Any:
        op.http = status
        self._search(op, content)
        answer = _parsed(content)
        if status != expect:
            _refusal(op, answer)
            raise Disturbed
        if status == 200 and isinstance(answer, dict) and "success" in answer:
            op.took(answer)
            if "output" in answer:  # of /execute
                op.status = "ok" if answer["success"] else ""
        return self._settled(op, answer, judge)

    def _told(self, op: Op, said: tuple[str, dict[str, Any], str], judge: Judge) -> Any:
        last, result, printed = said
        self._search(op, json.dumps(result).encode())
        if last != "end":
            _refusal(op, result)
            raise Disturbed
        op.took(result)
        if not result.get("truncated") and printed != result["stdout"]:
            op.outcome, op.why = "wrong", "what was streamed is not what the result says"
            raise Disturbed
        return self._settled(op, result, judge)

    def _settled(self, op: Op, answer: Any, judge: Judge) -> Any:
        op.why = judge(answer)
        op.outcome = "wrong" if op.why else "right"
        if op.why:
            op.why = f"{op.why}: {json.dumps(answer, default=repr)[:300]}"
            raise Disturbed
        return answer

    async def _heard(
        self, op: Op, events: AsyncIterator[tuple[str, dict[str, Any]]]
    ) -> tuple[str, dict[str, Any], str]:
        """The last event, and what was printed to standard output."""
        printed: list[str] = []
        async for name, said in events:
            if name == "output" and said.get("stream") == "stdout":
                printed.append(said.get("text", ""))
            elif name == "usage":
                op.cpu_ms = said["cpu_ms"]
            elif name in ("end", "error"):
                return name, said, "".join(printed)
        raise httpx.RemoteProtocolError("the stream ended without a last event")

    def _search(self, op: Op, content: bytes) -> None:
        for tenant in self.place.tenants.values():
            if any(form in content for form in tenant.forms()):
                self._record.seen.append(
                    f"{tenant.name}'s secret is in the answer to {op.kind} {op.token}"
                )
        for token in set(_TOKEN.findall(content)):
            if _owners.get(token, self._name) != self._name:
                self._record.seen.append(
                    f"{self._name}'s {op.kind} {op.token} was answered with {_owners[token]}'s"
                    f" {token.decode()}"
                )


class _Recording:
    """Records the request however it ends; whatever breaks the connection is one thing."""

    def __init__(self, op: Op, record: Record, now: Callable[[], float]) -> None:
        self._op, self._record, self._now = op, record, now

    def __enter__(self) -> Op:
        return self._op

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        op = self._op
        op.ended = self._now()
        self._record.ops.append(op)
        if error is None or isinstance(error, Disturbed):
            return
        if isinstance(error, asyncio.CancelledError):
            op.outcome, op.why = "left", "the soak ended"
            return
        if isinstance(error, httpx.HTTPError | WebSocketException | OSError):
            op.outcome, op.why = "broken", repr(error)[:200]
            raise Disturbed from error


_numbers = itertools.count(1)
_owners: dict[bytes, str] = {}
"""Whose each token is: another tenant's in an answer is the worst that can be."""
_TOKEN = re.compile(rb"t[0-9a-f]+x[0-9a-f]{6}")


def _refusal(op: Op, answer: Any) -> None:
    found = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(found, dict) or not {"code", "message", "retryable"} <= set(found):
        op.outcome, op.why = "wrong", f"an error of another shape: {str(answer)[:200]}"
        return
    op.outcome = "refused"
    op.code, op.retryable = found["code"], found["retryable"]
    op.why = f"{found['message']} ({found.get('hint', '')})"


def _parsed(content: bytes) -> Any:
    """JSON, the message of a stream with one event, or bytes."""
    if content.startswith(b"event: message"):
        content = content.partition(b"data: ")[2].partition(b"\n")[0]
    try:
        return json.loads(content)
    except ValueError:
        return content


async def _events(answer: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: ") and name:
            yield name, json.loads(line[6:])


async def _messages(talking: Any, identity: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    while True:
        async with asyncio.timeout(PATIENCE_S):
            said = json.loads(await talking.recv())
        if said.pop("id", "") == identity:
            yield said.pop("type"), said


@asynccontextmanager
async def clients() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=100, keepalive_expiry=10.0)
    timeout = httpx.Timeout(PATIENCE_S)
    async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as http:
        yield http
