"""Who lives inside whose walls, when sandboxes branch."""

from __future__ import annotations

from collections.abc import Callable

from belljar.errors import EngineError
from belljar.holding import Held

KILL_S = 5.0


class Family:
    """A sandbox and those branches of it that still live, inside its walls: the walls of one that
    was closed stand until the last of them is gone, and nothing else is left within them."""

    def __init__(
        self, held: Held, on_fall: Callable[[], None], parent: Family | None = None
    ) -> None:
        """`on_fall`: called when its walls have fallen."""
        self._held = held
        self._on_fall = on_fall
        self._parent = parent
        self._inside: set[Family] = set()
        self._left = False

    def branch(self, held: Held, on_fall: Callable[[], None]) -> Family:
        found = Family(held, on_fall, self)
        self._inside.add(found)
        return found

    async def leave(self) -> None:
        self._left = True
        if not self._inside:
            await self._fall()
            return
        if not await self._held.empty(within_s=KILL_S):
            await self._fall()
            raise EngineError(
                "code in a closed sandbox could not be ended by itself; its branches, which live "
                "behind its walls, were ended with it",
                hint="belljar doctor says how the kernel can limit and count processes here",
            )

    async def _fall(self) -> None:
        try:
            await self._held.release()
        finally:
            self._on_fall()
            parent = self._parent
            if parent:
                parent._inside.discard(self)
                if parent._left and not parent._inside:
                    await parent._fall()
