"""Reads JSON for the server, one text after the other, until the server has gone; see `parsers`.

request    length (4 bytes), text
answer     length (4 bytes), 0 and what was read, marshalled; or 1 and why it was not
"""

from __future__ import annotations

import marshal
import os
import socket
import struct

from belljar.server.strict_json import NotRead, parse

LENGTH = struct.Struct(">I")
READ, REFUSED = 0, 1
_NICER = 5
"""Whoever sends large bodies waits for those who send small ones."""


def main(descriptor: int) -> None:
    os.nice(_NICER)
    with socket.socket(fileno=descriptor).makefile("rwb") as server:
        while length := server.read(LENGTH.size):
            text = server.read(LENGTH.unpack(length)[0])
            try:
                answer = bytes([READ]) + marshal.dumps(parse(text))
            except NotRead as error:
                answer = bytes([REFUSED]) + str(error).encode("utf-8", "replace")
            server.write(LENGTH.pack(len(answer)))
            server.write(answer)
            server.flush()
