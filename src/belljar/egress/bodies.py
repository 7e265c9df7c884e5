"""The body of a request on its way to its host: placeholders are replaced, or stop it.

What `Content-Type` says is the code's word. A host may look at what is there all the same, and
unpack an archive that calls itself JSON, with references back into the value: its answer would have
the value in pieces. So a body with a placeholder in it is held until all of it has come, and goes
on if it is what it says.
"""

from __future__ import annotations

from collections.abc import Callable

from belljar.egress.finding import Spellings, Stream
from belljar.egress.scrubbing import Headers

LONGEST_BYTES = 64 * 1024
"""Of a body that may have a placeholder in it: it is looked at in one step."""


class Outgoing:
    """A placeholder in it is a Refusal, before its last byte is passed on."""

    def __init__(self, stopped: Spellings, check: Callable[[Headers], None]) -> None:
        self._stream = Stream(stopped)
        self._check = check

    def feed(self, data: bytes) -> bytes:
        return self._stream.feed(data)

    def finish(self) -> bytes:
        return self._stream.finish()

    def trailers(self, headers: Headers) -> Headers:
        """What stands after the body; never replaced."""
        self._check(headers)
        return headers


class Filled(Outgoing):
    """For a host that gets a secret in bodies."""

    def __init__(
        self,
        filled: Spellings,
        stopped: Spellings,
        check: Callable[[Headers], None],
        check_whole: Callable[[bytes], None],
    ) -> None:
        """`stopped`: for what is too long. `check_whole`: of a body that has not gone on yet."""
        super().__init__(stopped, check)
        self._filled = filled
        self._check_whole = check_whole
        self._held = bytearray()
        self._is_too_long = False

    def feed(self, data: bytes) -> bytes:
        if self._is_too_long:
            return super().feed(data)
        self._held += data
        if len(self._held) <= LONGEST_BYTES:
            return b""
        self._is_too_long = True
        held, self._held = bytes(self._held), bytearray()
        return super().feed(held)

    def finish(self) -> bytes:
        if self._is_too_long:
            return super().finish()
        body = bytes(self._held)
        self._check_whole(body)
        return self._filled.replace(body)
