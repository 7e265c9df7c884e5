"""The daemon's HTTP API, as far as one container's life needs it.

Two reasons to speak it ourselves instead of through a client library: the connection of `attach`
becomes the sandbox's stream as it is, without a copy in between, and nothing has to be installed or
imported. Requests are HTTP/1.0, so that an answer is simply all that comes before the end.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import stat
import time
from collections.abc import Mapping
from typing import IO, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from belljar.errors import EngineError, EngineUnavailable

HISTORY_S = 150
ANSWER_S = 15.0
"""A daemon that takes longer for any single request counts as hanging."""
_RECEIVE = 64 * 1024
_MOST_BYTES = 16 << 20

_PLACES = ("/var/run/docker.sock", "{runtime}/docker.sock", "{runtime}/podman/podman.sock")
_HINT_DOWN = "is the daemon running (systemctl start docker), and is docker_host right?"
_HINT_RIGHTS = "add this user to the group docker (that is as much as root), or use rootless Docker"
_HINT_HANGS = "look at the daemon's log, or restart it; sandboxes are made again when it answers"
_HINT_FULL = "make room where the daemon keeps its data: docker system df, docker system prune"


class Address(NamedTuple):
    """Where a daemon listens."""

    text: str
    family: socket.AddressFamily
    place: str | tuple[str, int]


class Refused(EngineError):
    """The daemon answered, and the answer is no."""

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class Silent(EngineError):
    """The daemon does not answer, or not in time."""


def find_address(docker_host: str = "") -> Address:
    """`docker_host`, else DOCKER_HOST, else the first of the usual sockets that is there."""
    text = docker_host or os.environ.get("DOCKER_HOST", "")
    if not text:
        runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
        places = [place.format(runtime=runtime) for place in _PLACES]
        text = "unix://" + next((place for place in places if _is_socket(place)), places[0])
    parts = urlsplit(text)
    if parts.scheme == "unix" and parts.path:
        return Address(text, socket.AF_UNIX, parts.path)
    if parts.scheme == "tcp" and parts.hostname:
        return Address(text, socket.AF_INET, (parts.hostname, parts.port or 2375))
    raise EngineUnavailable(
        f"docker_host: {text!r} cannot be used",
        hint="write unix:///path or tcp://host:port; for a daemon behind TLS or ssh, forward its"
        " socket: ssh -L /tmp/docker.sock:/var/run/docker.sock host",
    )


class Daemon:
    def __init__(self, address: Address) -> None:
        self.address = address

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        wait_s: float = ANSWER_S,
    ) -> Any:
        """The answer's JSON, or None where there is none."""
        loop = asyncio.get_running_loop()
        connection = self._socket()
        try:
            async with asyncio.timeout(wait_s):
                await loop.sock_connect(connection, self.address.place)
                await loop.sock_sendall(connection, _request(method, path, query, body))
                answer = bytearray()
                while data := await loop.sock_recv(connection, _RECEIVE):
                    answer += data
                    _check_size(answer)
        except OSError as error:  # a time-out is one, too
            raise self._unreachable(error, f"{method} {path}", wait_s) from error
        finally:
            connection.close()
        return parse(bytes(answer))

    def call_now(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        wait_s: float = ANSWER_S,
        lines: bool = False,
    ) -> Any:
        """The same for those who are not in an event loop, or cannot leave it."""
        connection = self._socket()
        try:
            connection.settimeout(wait_s)
            connection.connect(self.address.place)
            connection.sendall(_request(method, path, query, body))
            answer = bytearray()
            while data := connection.recv(_RECEIVE):
                answer += data
                _check_size(answer)
        except OSError as error:
            raise self._unreachable(error, f"{method} {path}", wait_s) from error
        finally:
            connection.close()
        return parse(bytes(answer), lines=lines)

    def history(self, container: str) -> list[str]:
        """What happened to a container of late, oldest first; for a daemon whose clock is ours."""
        now = time.time()
        query = {
            "since": str(int(now) - HISTORY_S),
            "until": f"{now:.6f}",
            "filters": json.dumps({"container": [container]}),
        }
        answer = self.call_now("GET", "/events", query=query, wait_s=1.0, lines=True)
        return [str(event.get("Action", "")) for event in answer]

    async def attach(self, container: str) -> tuple[socket.socket, bytes]:
        """A connection to the container's standard streams, and what already came over it."""
        loop = asyncio.get_running_loop()
        query = {"stream": "1", "stdin": "1", "stdout": "1", "stderr": "1"}
        path = f"/containers/{container}/attach"
        connection = self._socket()
        answer = b""
        try:
            async with asyncio.timeout(ANSWER_S):
                await loop.sock_connect(connection, self.address.place)
                await loop.sock_sendall(connection, _request("POST", path, query, None, raw=True))
                while b"\r\n\r\n" not in answer:
                    data = await loop.sock_recv(connection, _RECEIVE)
                    answer += data
                    if not data or len(answer) > _RECEIVE:
                        break
            head, _, rest = answer.partition(b"\r\n\r\n")
            if _status(head) not in (101, 200):
                parse(answer)
                raise EngineError("Docker did not attach to its container")
        except OSError as error:
            connection.close()
            raise self._unreachable(error, f"POST {path}", ANSWER_S) from error
        except BaseException:
            connection.close()
            raise
        return connection, rest

    def send_file(
        self, path: str, file: IO[bytes], *, query: Mapping[str, str], wait_s: float
    ) -> bytes:
        """POSTs a tar archive; returns the answer's body, which may be a log of what was done."""
        size = os.fstat(file.fileno()).st_size
        connection = self._socket()
        try:
            connection.settimeout(wait_s)
            connection.connect(self.address.place)
            head = f"POST {path}?{urlencode(query)} HTTP/1.0\r\nHost: docker\r\n"
            head += f"Content-Type: application/x-tar\r\nContent-Length: {size}\r\n\r\n"
            connection.sendall(head.encode())
            connection.sendfile(file)
            answer = bytearray()
            while data := connection.recv(_RECEIVE):
                answer += data
        except OSError as error:
            raise self._unreachable(error, f"POST {path}", wait_s) from error
        finally:
            connection.close()
        head_bytes, _, content = bytes(answer).partition(b"\r\n\r\n")
        if _status(head_bytes) >= 400:
            parse(bytes(answer))
        return content

    def _socket(self) -> socket.socket:
        connection = socket.socket(self.address.family, socket.SOCK_STREAM)
        connection.setblocking(False)
        return connection

    def _unreachable(self, error: OSError, what: str, wait_s: float) -> EngineError | Exception:
        where = self.address.text
        if isinstance(error, TimeoutError):
            return Silent(
                f"Docker at {where} did not answer {what} within {wait_s:g} s", hint=_HINT_HANGS
            )
        if error.errno in (errno.EACCES, errno.EPERM):
            return EngineUnavailable(f"Docker at {where} is closed to us", hint=_HINT_RIGHTS)
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.EHOSTUNREACH):
            return EngineUnavailable(f"Docker cannot be reached at {where}", hint=_HINT_DOWN)
        return Silent(f"Docker at {where} hung up: {error}", hint=_HINT_HANGS)


def parse(answer: bytes, *, lines: bool = False) -> Any:
    """`lines`: the answer is a list of JSON texts, one in a line."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = _status(head)
    if status < 300 or status == 304:
        try:
            if lines:
                return [json.loads(line) for line in body.splitlines() if line.strip()]
            if b"json" not in head.lower() or not body.strip():
                return None
            return json.loads(body)
        except ValueError:
            raise EngineError("Docker's answer is not JSON", hint=_HINT_HANGS) from None
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body.decode("utf-8", "replace").strip() or f"HTTP status {status}"
    full = "no space left" in message or "disk quota" in message.lower()
    raise Refused(status, f"Docker refused: {message[:1000]}", hint=_HINT_FULL if full else "")


def name(text: str) -> str:
    """As a part of a path; images have slashes that stay."""
    return quote(text, safe="/:@")


def _status(head: bytes) -> int:
    words = head.split(b" ", 2)
    if len(words) < 2 or not head.startswith(b"HTTP/") or not words[1][:3].isdigit():
        raise Silent("Docker hung up in the middle of an answer", hint=_HINT_HANGS)
    return int(words[1][:3])


def _request(
    method: str,
    path: str,
    query: Mapping[str, str] | None,
    body: Mapping[str, Any] | None,
    *,
    raw: bool = False,
) -> bytes:
    content = json.dumps(body).encode() if body is not None else b""
    lines = [
        f"{method} {path}{'?' + urlencode(query) if query else ''} HTTP/1.{1 if raw else 0}",
        "Host: docker",
        f"Content-Length: {len(content)}",
    ]
    if content:
        lines.append("Content-Type: application/json")
    if raw:
        lines += ["Connection: Upgrade", "Upgrade: tcp"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def _check_size(answer: bytearray) -> None:
    if len(answer) > _MOST_BYTES:
        raise EngineError("Docker's answer does not end")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
