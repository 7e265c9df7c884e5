"""What a run shows besides its standard output: bounded, and sent one by one."""

from __future__ import annotations

import binascii
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Union

from .interrupts import Interrupts
from .streams import Streams

Data = Union[str, bytes]

_REPRESENTATIONS = 20
_METADATA_BYTES = 16 * 1024
_MIME = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,120}(;[ \w.=+-]{1,60})?", re.ASCII)


class Outputs:
    def __init__(
        self,
        emit: Callable[[dict[str, Any]], None],
        *,
        output_bytes: int,
        outputs: int,
        interrupts: Interrupts,
        streams: Streams,
    ) -> None:
        self._emit = emit
        self._output_bytes = output_bytes
        self._outputs = outputs
        self._interrupts = interrupts
        self._streams = streams
        self._bytes_left = output_bytes
        self._outputs_left = outputs
        self._pid = os.getpid()
        self._running = False
        self._early: list[dict[str, Any]] = []
        self._forked()
        self.dropped = 0
        os.register_at_fork(after_in_child=self._forked)

    def begin(self) -> None:
        with self._lock:
            self._pid = os.getpid()
            self._bytes_left = self._output_bytes
            self._outputs_left = self._outputs
            self.dropped = 0
            self._running = True
            early, self._early = self._early, []
            for output in early:
                self._pass_on(output)

    def end(self) -> int:
        """Returns how many outputs were dropped. What threads show from now on waits for the next
        run, which it belongs to as little."""
        with self._lock:
            self._running = False
            self._bytes_left = self._output_bytes
            self._outputs_left = self._outputs
            return self.dropped

    def has_room(self) -> bool:
        """False: what is costly to make would be dropped anyhow."""
        return self._outputs_left > 0 and self._bytes_left > 0

    def skip(self) -> None:
        self.dropped += 1

    def send(self, kind: str, data: Mapping[str, Data], metadata: Mapping[str, Any]) -> None:
        """Representations that do not fit are left out, and the metadata say how large they were;
        with none left the output is dropped."""
        if os.getpid() != self._pid:  # a fork by the code: it must not speak on our channel
            sys.stdout.write(str(data.get("text/plain", "")) + "\n")
            return
        with self._lock:
            if not self.has_room():
                self.dropped += 1
                return
            fitting, sizes = self._fit(data)
            if not fitting:
                self.dropped += 1
                return
            output: dict[str, Any] = {"kind": kind, "data": fitting, "metadata": _plain(metadata)}
            if sizes:
                output["metadata"]["dropped"] = sizes
            self._outputs_left -= 1
            self._pass_on(output)

    def _fit(self, data: Mapping[str, Data]) -> tuple[dict[str, Any], dict[str, int]]:
        fitting: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        for mime in sorted(data, key=_plain_first)[:_REPRESENTATIONS]:
            content, size = _encoded(data[mime])
            if not isinstance(mime, str) or not _MIME.fullmatch(mime):
                continue
            if size > self._bytes_left:
                sizes[mime] = size
                continue
            self._bytes_left -= size
            fitting[mime] = content
        return fitting, sizes

    def _pass_on(self, output: dict[str, Any]) -> None:
        if not self._running:
            self._early.append(output)
            return
        self._streams.flush()  # what was printed before is seen before
        with self._interrupts:
            self._emit(output)

    def _forked(self) -> None:
        """A thread that is not here any more may have held it."""
        self._lock = threading.RLock()


def _plain_first(mime: str) -> bool:
    return mime != "text/plain"


def _encoded(content: Data) -> tuple[Any, int]:
    if isinstance(content, bytes):
        text = binascii.b2a_base64(content, newline=False).decode()
        return {"base64": text}, len(text)
    try:
        return content, len(content.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        clean = content.encode("utf-8", "backslashreplace").decode()
        return clean, len(clean.encode())


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Only what is JSON and small: a copy, made of nothing but Python's own types."""
    if not metadata:
        return {}
    try:
        text = json.dumps(metadata, allow_nan=False)
        copy = json.loads(text)
    except Exception:
        return {"note": "the metadata were not JSON"}
    if len(text) > _METADATA_BYTES or not isinstance(copy, dict):
        return {"note": "the metadata were too large"}
    return copy
