"""A bar for what takes long, such as building an environment; drawn once there is news."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from belljar.cli.say import say

if TYPE_CHECKING:
    from rich import progress


class Bar:
    """On a terminal a bar on standard error; elsewhere one line per new step."""

    def __init__(self, *, title: str) -> None:
        self._title = title
        self._bar: progress.Progress | None = None
        self._task: progress.TaskID | None = None
        self._last = ""

    def update(self, text: str, fraction: float | None) -> None:
        text = f"{self._title}: {text}"
        if not sys.stderr.isatty():
            if text != self._last:
                say(text)
            self._last = text
            return
        if self._bar is None:
            self._bar = _bar()
            self._task = self._bar.add_task(text, total=None)
            self._bar.start()
        assert self._task is not None
        total = None if fraction is None else 1.0
        self._bar.update(self._task, description=text, completed=fraction or 0.0, total=total)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None


def _bar() -> progress.Progress:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
