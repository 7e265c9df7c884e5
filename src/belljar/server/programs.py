"""The programs of one kept sandbox: those that run, and the last that ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from belljar.kept.processes import Process
from belljar.kept.sandbox import Sandbox
from belljar.server.budget import Hold
from belljar.server.errors import ApiError

ENDED = 8
"""What they printed is held as long."""
MOST = 32


class Programs:
    def __init__(self, box: Sandbox, hold: Callable[[], Hold]) -> None:
        """`hold` counts what one more may print, or refuses it."""
        self._box = box
        self._hold = hold
        self._starting = 0
        self._known: dict[int, tuple[Process, Hold]] = {}

    def find(self, process_id: int) -> Process:
        found = self._known.get(process_id)
        if found is None:
            raise ApiError(
                "not_found", "there is no such process", hint="GET …/processes lists those that run"
            )
        return found[0]

    def running(self) -> list[Process]:
        return [process for process, _ in self._known.values() if process.running]

    @contextlib.contextmanager
    def starting(self) -> Iterator[Hold]:
        """One more; those that are being started count, too."""
        if len(self._box.processes()) + self._starting >= MOST:
            raise ApiError(
                "quota_exceeded",
                f"{MOST} programs run in this sandbox already",
                hint="end one with POST …/processes/ID/signal",
                retry_after_s=1,
            )
        held = self._hold()
        self._starting += 1
        try:
            yield held
        except BaseException:
            held()
            raise
        finally:
            self._starting -= 1

    def add(self, process: Process, held: Hold) -> None:
        """`held`: what it may print; when it has ended, what it has printed."""
        ended = [number for number, (one, _) in self._known.items() if not one.running]
        for number in ended[:-ENDED]:
            self._known.pop(number)[1]()
        self._known[process.process_id] = (process, held)
        process.on_end = lambda: held.shrink(process.held_bytes)
        if not process.running:
            process.on_end()

    def forget(self) -> None:
        for _, held in self._known.values():
            held()
        self._known.clear()
