"""What packages are told that behave differently in a notebook, and the part of IPython's own
module that people import by habit.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from . import tables
from .awaiting import Loop
from .display import Display
from .figures import Figures
from .imports import Onlooker


class Packages:
    def __init__(self, display: Display, pictures: Figures, loop: Loop) -> None:
        self._display = display
        self._onlooker = Onlooker(
            {
                "asyncio": loop.adopt,
                "matplotlib.pyplot": pictures.adapt,
                "pandas": tables.adapt,
                "plotly.io": self._adapt_plotly,
                "altair": self._adapt_altair,
                "IPython.display": self._adapt_ipython,
            },
            {"IPython": self._make_ipython, "IPython.display": self._make_ipython_display},
        )

    def _adapt_plotly(self, module: Any) -> None:
        """Figures give their structure, not a page with a script, and `show` needs no browser."""
        module.renderers.default = "plotly_mimetype"
        module.show = self._show_plotly

    def _show_plotly(self, figure: Any, *arguments: object, **options: object) -> None:
        if isinstance(figure, dict):
            figure = sys.modules["plotly.graph_objects"].Figure(figure)
        self._display.show(figure)

    def _adapt_altair(self, module: Any) -> None:
        module.renderers.enable("mimetype")
        render = functools.partial(_without_text, module.renderers.get())
        module.renderers.register("belljar", render)
        module.renderers.enable("belljar")

    # -- IPython ---------------------------------------------------------------------------------

    def _adapt_ipython(self, module: Any) -> None:
        """Where the real one is installed: its `display` prints when no shell of its own runs."""
        module.display = self._display.display
        module.update_display = self._update
        module.clear_output = _clear_output
        sys.modules["IPython.core.display_functions"].display = self._display.display  # type: ignore[attr-defined]

    def _make_ipython(self, module: Any) -> None:
        module.__doc__ = "Stands in for IPython: `IPython.display` is all there is of it."
        module.get_ipython = _get_ipython
        module.version_info = (0, 0, 0, "")
        module.__version__ = "0.0.0"
        module.__path__ = []

    def _make_ipython_display(self, module: Any) -> None:
        module.__doc__ = "Stands in for IPython.display where IPython is not installed."
        module.display = self._display.display
        module.update_display = self._update
        module.clear_output = _clear_output
        for name, mime in _KINDS.items():
            setattr(
                module, name, type(name, (_Shown,), {"mime": mime, "__module__": module.__name__})
            )
        for kind in (Math, Image):
            setattr(module, kind.__name__, kind)

    def _update(self, value: object, *, display_id: str, **options: Any) -> None:
        self._display.show(value, display_id, update=True, **options)


_KINDS = {
    "HTML": "text/html",
    "Markdown": "text/markdown",
    "Latex": "text/latex",
    "SVG": "image/svg+xml",
    "JSON": "application/json",
    "Javascript": "application/javascript",
    "Pretty": "text/plain",
}


class _Shown:
    """Something that is shown as one MIME type."""

    mime = "text/plain"

    def __init__(
        self, data: Any = None, url: object = None, filename: Any = None, **options: object
    ) -> None:
        if url is not None:
            raise ValueError("url: nothing is fetched here")
        if filename is not None:
            with open(filename, encoding="utf-8") as file:
                data = file.read()
        self.data = data

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {self.mime: self.data}

    def __repr__(self) -> str:
        return "<IPython.display.%s object>" % type(self).__name__


class Math(_Shown):
    mime = "text/latex"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {self.mime: "$\\displaystyle %s$" % str(self.data).strip("$")}


class Image(_Shown):
    """PNG, JPEG, GIF or WebP, from bytes or a file."""

    def __init__(self, data: Any = None, *arguments: object, **options: Any) -> None:
        filename = options.get("filename")
        if isinstance(data, (str, os.PathLike)):
            filename = data
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
        super().__init__(data)
        self.mime = _image_type(bytes(data))


def _image_type(data: bytes) -> str:
    for start, kind in ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif")):
        if data.startswith(start):
            return "image/" + kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise ValueError("not a PNG, JPEG, GIF or WebP image")


def _without_text(render: Any, *arguments: Any, **options: Any) -> Any:
    """Altair's own text says that its renderer was not set up; the chart's repr says more."""
    bundle = render(*arguments, **options)
    (bundle[0] if isinstance(bundle, tuple) else bundle).pop("text/plain", None)
    return bundle


def _get_ipython() -> None:
    return None


def _clear_output(wait: bool = False) -> None:
    """What was shown has been sent; it cannot be taken back."""
