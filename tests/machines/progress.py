"""What is going on, for a person at a terminal and for a log."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Teller:
    """One line at the bottom for what runs, lines above it for what is done.

    A log has no bottom line: there both become lines.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._started = time.monotonic()
        self._task = self._progress.add_task("", total=None, visible=False)

    def __enter__(self) -> Teller:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def doing(self, what: str) -> None:
        if self._console.is_terminal:
            self._progress.reset(self._task, description=what, visible=True)
        else:
            self._line(f"{what} …")

    def did(self, what: str) -> None:
        self._line(what)

    def _line(self, what: str) -> None:
        passed_s = time.monotonic() - self._started
        self._console.print(f"{passed_s:6.0f} s  {what}", soft_wrap=True, markup=False)
