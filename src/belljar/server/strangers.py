"""Connections on which nobody has shown a key: few for each address, none for long.

A connection is a stranger's from its first byte until the gate has admitted a request on it. Until
then it has a clock, and gives way to others when there are too many.
"""

from __future__ import annotations

from asyncio import TimerHandle

from belljar.server.reading import Reading

LEAST_STRANGERS = 16
"""Connections of one address that may wait to show a key, however few there are in all."""
GRACE_S = 5.0
"""Of a crowd that comes at once all are accepted before the first is read."""


class Stranger(Reading):
    """For a protocol of uvicorn, before its own class."""

    strangers: dict[str, dict[Stranger, None]]
    """By address, the oldest first; the same one for all connections of a server."""
    client: tuple[str, int] | None
    tenant_name = ""
    """Whose key came last."""
    idle_since = 0.0
    _clock: TimerHandle | None = None

    def may_give_way(self) -> bool:
        """Whether nothing of anybody's is lost if it is closed."""
        raise NotImplementedError

    def too_slow(self) -> None:
        """Called when the clock has run down."""
        raise NotImplementedError

    def is_strange(self) -> None:
        """It takes a place among those of its address: the oldest one's if there is no other."""
        self.idle_since = self.loop.time()
        there = self.strangers.setdefault(self._address, {})
        if len(there) >= max(LEAST_STRANGERS, self.belljar.settings.connections // 4):
            oldest = next(iter(there))
            if self.loop.time() - oldest.idle_since >= GRACE_S:
                oldest.give_way()
                there = self.strangers.setdefault(self._address, {})
        there[self] = None

    def is_known(self) -> None:
        """Or gone."""
        if there := self.strangers.get(self._address):
            there.pop(self, None)
        if not there:
            self.strangers.pop(self._address, None)

    def give_way(self) -> None:
        self.is_known()
        if self.transport.get_write_buffer_size():
            self.cut()  # closing would wait until it is read
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_clock()
        self.is_known()
        super().connection_lost(exc)

    def start_clock(self) -> None:
        self._clock = self.loop.call_later(self.belljar.settings.header_timeout_s, self.too_slow)

    def stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""
