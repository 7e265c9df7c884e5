"""matplotlib figures: shown as PNG without `savefig` or `show`, each once.

No backend of our own: pyplot knows which figures are open, and its `show` becomes ours when the
code has imported it.
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable
from typing import Any


def is_figure(value: object) -> bool:
    kind = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    return kind is not None and isinstance(value, kind)


class Figures:
    def __init__(self) -> None:
        self._show: Callable[[object], None] | None = None
        self._shown: list[Any] = []

    def begin(self, show: Callable[[object], None]) -> None:
        """`show`: how a figure is displayed."""
        self._show = show
        self._shown = []

    def adapt(self, pyplot: Any) -> None:
        """`show` shows at once. A figure's own does as well, which without a screen would warn."""
        pyplot.show = functools.partial(self.show_open)  # it sets attributes of its functions
        figures: Any = sys.modules["matplotlib.figure"]
        figures.Figure.show = functools.partialmethod(_show_with, self)

    def png(self, figure: Any) -> tuple[bytes, dict[str, int]]:
        """All that was drawn, also what lies beyond the edges."""
        self._shown.append(figure)
        file = io.BytesIO()
        figure.savefig(file, format="png", bbox_inches="tight")
        data = file.getvalue()
        width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
        return data, {"width": width, "height": height}

    def show_open(self, *arguments: object, **options: object) -> None:
        """In the order in which they were made; those that were displayed already only close."""
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        try:
            open_figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
        except AttributeError:  # not imported, or not to its end
            return
        try:
            for figure in open_figures:
                if self._show and not any(figure is shown for shown in self._shown):
                    self._show(figure)
        finally:
            for figure in open_figures:
                pyplot.close(figure)

    def show_one(self, figure: Any) -> None:
        if self._show:
            self._show(figure)

    def close(self) -> int:
        """Without showing them; how many there were."""
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        try:
            count = len(pyplot.get_fignums())
            pyplot.close("all")
        except AttributeError:
            return 0
        return count


def _show_with(figure: Any, figures: Figures, warn: bool = True) -> None:
    """Shows the figure."""
    figures.show_one(figure)
