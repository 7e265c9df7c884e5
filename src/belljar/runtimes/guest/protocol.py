"""The whole surface between the host and the agent: length-prefixed frames on one byte stream.

    frame  = kind (1 byte) + payload length (4 bytes, big endian) + payload
    in     = (PUT DATA*)* RUN (STDIN | NET)* [STOP]
    out    = READY (STDOUT | STDERR | WANT | USED | NET)* (FILE DATA*)* END, or FAULT at any time

A sandbox that is kept speaks the second half of the kinds: questions with an id (ASK, ANSWER), raw
bytes of a channel (TO, FROM) and what happens meanwhile (EVENT). A channel has the id of the
question that opened it.

Control payloads are JSON objects, the rest is raw bytes. The guest is hostile: a reader accepts
only known kinds and bounded lengths, and never guesses.
"""

from __future__ import annotations

import json
import struct

MAX_PATH = 4096
NAMES_BEYOND = 50
"""Files that are named, with the reason, beyond the number that is brought back."""
HEADER = struct.Struct(">BI")
MAX_PAYLOAD = 1 << 20
CHUNK = 64 * 1024

# host → agent
PUT = 1  # JSON {root, path, size, mode}: a file follows as DATA frames of `size` bytes in all
DATA = 2  # raw: the next piece of the file announced last (both directions)
RUN = 3  # JSON: start the code (see forking.Job)
STDIN = 4  # raw: standard input; an empty payload closes it
STOP = 5  # empty: kill everything that runs and report
ASK = 6  # JSON {id, op, …}: see keeper.py
TO = 7  # channel (4 bytes) + raw: input of a process or content of a file; no bytes: the end
NET = 8  # raw: between relay.py and the gateway (both directions); no bytes: there is no way now

# agent → host
READY = 16  # JSON: the sandbox is walled and waits
STDOUT = 17  # raw, in order, the head of the stream
STDERR = 18
STDOUT_TAIL = 19  # raw: the end of the stream, after something in the middle was dropped
STDERR_TAIL = 20
FILE = 21  # JSON {path, size, skipped}: a produced file; DATA follow unless skipped
END = 22  # JSON: how the code ended
FAULT = 23  # JSON {step, message, hint}: the sandbox itself failed
WANT = 24  # empty: what came of standard input is taken, more may come
USED = 25  # JSON: what the code used so far, where only the agent can tell
ANSWER = 26  # JSON {id, ok} or {id, error: {kind, message}}
FROM = 27  # channel (4 bytes) + stream (1 byte) + raw
EVENT = 28  # JSON {channel, …}: an output whose content follows, progress, an end

FROM_HOST = frozenset((PUT, DATA, RUN, STDIN, STOP, NET))
FROM_AGENT = frozenset(
    (READY, STDOUT, STDERR, STDOUT_TAIL, STDERR_TAIL, FILE, DATA, END, FAULT, WANT, USED, NET)
)


# Streams of FROM, beside 1 output, 2 errors and 3 a file. What code wrote goes as raw bytes and not
# as JSON: the host parses none of it.
class Stream:
    SHOWN = 4  # the content of an output that was announced
    VALUE = 5  # of the last expression


ERROR_TEXTS = {6: "name", 7: "message", 8: "traceback"}  # of what ended a run

SMALL = 64 * 1024
KEPT_FROM_HOST = frozenset((ASK, TO, NET))
KEPT_FROM_AGENT = frozenset((READY, FAULT, ANSWER, FROM, EVENT, NET))
CHANNEL = struct.Struct(">I")
OUTPUT = struct.Struct(">IB")
MOST = {READY: SMALL, FAULT: SMALL, FILE: SMALL, USED: SMALL, EVENT: SMALL, END: 8 * SMALL}
"""Of kinds whose payload is JSON and small. To parse a mebibyte takes some ten milliseconds."""


class BadFrame(Exception):
    """Bytes that are not the protocol."""


def frame(kind: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def message(kind: int, content: dict) -> bytes:  # type: ignore[type-arg]
    return frame(kind, json_bytes(content))


def json_bytes(content: dict) -> bytes:  # type: ignore[type-arg]
    return json.dumps(content).encode()


def unpack(payload: bytes) -> dict:  # type: ignore[type-arg]
    try:
        content = json.loads(payload)
    except (ValueError, RecursionError):
        raise BadFrame("a control frame that is not JSON") from None
    if not isinstance(content, dict):
        raise BadFrame("a control frame that is not an object")
    return content


class Reader:
    """Cuts a byte stream into frames. Holds at most one incomplete frame."""

    def __init__(self, accepted: frozenset[int]) -> None:
        self._accepted = accepted
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        buffer = self._buffer
        buffer += data
        frames: list[tuple[int, bytes]] = []
        position = 0
        while len(buffer) - position >= HEADER.size:
            kind, length = HEADER.unpack_from(buffer, position)
            if kind not in self._accepted:
                raise BadFrame("a frame of unknown kind %d" % kind)
            most = MOST.get(kind, MAX_PAYLOAD)
            if length > most:
                raise BadFrame("a frame of %d bytes; at most %d are accepted" % (length, most))
            end = position + HEADER.size + length
            if end > len(buffer):
                break
            frames.append((kind, bytes(buffer[position + HEADER.size : end])))
            position = end
        del buffer[:position]
        return frames
