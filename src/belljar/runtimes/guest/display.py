"""How a value is shown: as text, and as whatever richer form it can give of itself.

The words are those of notebooks: `_repr_html_` and its kin, `_repr_mimebundle_`, `display()`.
"""

from __future__ import annotations

import binascii
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

from . import figures, tables
from .outputs import Data, Outputs
from .plain import plain
from .streams import Streams

TEXT_CHARS = 32 * 1024

_METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
)

_BINARY = ("image/", "audio/", "video/", "application/pdf", "application/octet-stream")

# Most values; they have no other form, so nobody has to look for one.
_ONLY_TEXT = frozenset(
    (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range)
)


class Display:
    """`display()`, and the last expression's value."""

    def __init__(self, outputs: Outputs, streams: Streams, pictures: figures.Figures) -> None:
        self._outputs = outputs
        self._streams = streams
        self._pictures = pictures
        self._numbers = itertools.count(1)

    def result(self, value: object) -> str:
        """Shows it as the run's result; returns its text."""
        data, metadata = self.represent(value)
        if data:
            self._outputs.send("result", data, metadata)
        text = data.get("text/plain")
        return text if isinstance(text, str) else plain(value, limit=TEXT_CHARS)

    def display(
        self,
        *values: object,
        include: object = None,
        exclude: object = None,
        metadata: Mapping[str, Any] | None = None,
        transient: object = None,
        display_id: object = None,
        raw: bool = False,
        clear: bool = False,
        **others: object,
    ) -> Handle | None:
        """Shows values in their richest form. With `display_id`, gives back a handle to update
        them; `raw`: they are dictionaries by MIME type already."""
        identity = "display-%d" % next(self._numbers) if display_id is True else display_id
        for value in values:
            self.show(value, identity, metadata, raw=raw)
        return Handle(self, str(identity)) if identity is not None else None

    def show(
        self,
        value: object,
        identity: object = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        raw: bool = False,
        update: bool = False,
    ) -> None:
        if not self._outputs.has_room():
            self._outputs.skip()
            return
        if raw and isinstance(value, dict):
            data = _clean(value)
            described: dict[str, Any] = {}
        else:
            data, described = self.represent(value)
        if not data:
            return
        if identity is not None:
            described["display_id"] = str(identity)[:200]
        if update:
            described["update"] = True
        self._outputs.send("display", data, {**described, **(metadata or {})})

    # -- what a value can be shown as ------------------------------------------------------------

    def represent(self, value: Any) -> tuple[dict[str, Data], dict[str, Any]]:
        """By MIME type, and metadata. Empty if the value showed itself."""
        kind = type(value)
        if kind in _ONLY_TEXT or isinstance(value, type):
            return {"text/plain": plain(value, limit=TEXT_CHARS)}, {}
        data: dict[str, Data] = {}
        metadata: dict[str, Any] = {}
        if figures.is_figure(value):
            self._add(data, metadata, "image/png", value, self._pictures.png)
        elif tables.is_table(value):
            self._add(data, metadata, "text/html", value, tables.html)
            self._add(data, metadata, "application/json", value, tables.records)
        else:
            self._ask(value, data, metadata)
            if not data and hasattr(kind, "_ipython_display_"):
                try:
                    value._ipython_display_()
                    return {}, {}
                except Exception as error:
                    self._failed(value, "_ipython_display_", error)
        if "text/plain" not in data:
            data["text/plain"] = plain(value, limit=TEXT_CHARS)
        return data, metadata

    def _ask(self, value: Any, data: dict[str, Data], metadata: dict[str, Any]) -> None:
        """Methods are looked for in the type: a proxy that answers to every name has none."""
        kind = type(value)
        if hasattr(kind, "_repr_mimebundle_"):
            try:
                bundle = value._repr_mimebundle_(include=None, exclude=None)
                if isinstance(bundle, tuple):
                    bundle, described = bundle
                    metadata.update(described)
                data.update(_clean(bundle or {}))
            except Exception as error:
                self._failed(value, "_repr_mimebundle_", error)
            if data.keys() - {"text/plain"}:
                return  # it has said all; Plotly's HTML beside it would be a page of megabytes
        for mime, method in _METHODS:
            if mime in data or (mime == "image/jpeg" and "image/png" in data):
                continue
            if hasattr(kind, method):
                try:
                    content = getattr(value, method)()
                    if isinstance(content, tuple):
                        content, metadata[mime] = content
                    if content is not None:
                        data.update(_clean({mime: content}))
                except Exception as error:
                    self._failed(value, method, error)

    def _add(
        self,
        data: dict[str, Data],
        metadata: dict[str, Any],
        mime: str,
        value: object,
        make: Any,
    ) -> None:
        try:
            data[mime], metadata[mime] = make(value)
        except Exception as error:
            self._failed(value, mime, error)

    def _failed(self, value: object, what: str, error: Exception) -> None:
        if isinstance(error, NotImplementedError):  # a polite no
            return
        told = plain(error, limit=500)
        self._streams.complain("belljar: %s of %s: %s\n" % (what, type(value).__name__, told))


class Handle:
    """What `display(…, display_id=…)` gives back."""

    def __init__(self, display: Display, display_id: str) -> None:
        self._display = display
        self.display_id = display_id

    def display(self, value: object, **options: Any) -> None:
        self._display.show(value, self.display_id, **options)

    def update(self, value: object, **options: Any) -> None:
        self._display.show(value, self.display_id, update=True, **options)

    def __repr__(self) -> str:
        return "<display %s>" % self.display_id


# -- contents by MIME type -------------------------------------------------------------------------


def _clean(bundle: Mapping[str, Any]) -> dict[str, Data]:
    """Text, or bytes where the type is binary; JSON as its text."""
    data: dict[str, Data] = {}
    for mime, content in bundle.items():
        if content is None or not isinstance(mime, str):
            continue
        if isinstance(content, (bytes, bytearray, memoryview)):
            data[mime] = bytes(content)
        elif mime.startswith(_BINARY) and not mime.endswith("+xml"):
            try:
                data[mime] = binascii.a2b_base64(content)
            except (binascii.Error, TypeError, ValueError):
                continue
        elif mime.endswith("json"):
            data[mime] = to_json(content)
        elif mime == "text/plain":
            data[mime] = plain(_Verbatim(str(content)), limit=TEXT_CHARS)
        else:
            data[mime] = str(content)
    return data


class _Verbatim:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def to_json(content: object) -> str:
    """Strict JSON, in which there is no NaN."""
    try:
        return json.dumps(content, allow_nan=False, ensure_ascii=False, default=_known)
    except ValueError:
        return json.dumps(_finite(content), allow_nan=False, ensure_ascii=False)


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {str(key): _finite(item) for key, item in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(item) for item in content]
    if content is None or isinstance(content, (str, int)):
        return content
    return _finite(_known(content))


def _known(content: Any) -> Any:
    """What libraries put into structures meant as JSON."""
    if hasattr(content, "tolist"):  # arrays and their elements
        return content.tolist()
    if hasattr(content, "isoformat"):
        return content.isoformat()
    return str(content)
