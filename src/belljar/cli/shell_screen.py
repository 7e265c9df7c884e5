"""What a run shows, on its way to the person: text made harmless, pictures drawn or filed."""

from __future__ import annotations

import os
import select
import tempfile
from pathlib import Path

from belljar.cli import shell_pictures
from belljar.cli.live import DESCRIPTORS
from belljar.cli.terminal import Filter, harmless
from belljar.kept import events
from belljar.model import Output

_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}
"""Of pictures, the best first."""
_NO_COLOUR = b"\x1b[0m"
_CLEAR_LINE = b"\r\x1b[K"


class Screen:
    """Raw bytes into a pipe or a file, as for `belljar run`; only colours onto a terminal."""

    def __init__(self, *, folder: str | None, how: str) -> None:
        self._folder = Path(folder) if folder else None
        self._terminals = {name for name, fd in DESCRIPTORS.items() if os.isatty(fd)}
        if how == "auto" and "stdout" in self._terminals:
            how = shell_pictures.what_the_terminal_speaks(os.environ)
        self._how = how if "stdout" in self._terminals else "none"
        self._filters: dict[str, Filter] = {}
        self._at_margin = True
        self._status = False
        self._pictures = 0

    def show(self, event: events.Event, *, run_id: int) -> None:
        if isinstance(event, events.Printed):
            self.text(event.stream, event.data)
        elif isinstance(event, events.Shown):
            self._output(event.output, run_id)
        elif isinstance(event, events.Progress):
            self._progress(event)

    def text(self, stream: str, data: bytes) -> None:
        """The guest's words."""
        if stream in self._terminals:
            data = self._filters.setdefault(stream, Filter()).feed(data)
        self._write(stream, data)

    def line(self, text: str) -> None:
        """Our own words, and names that the guest chose."""
        self._write("stdout", harmless(text).encode("utf-8", "backslashreplace") + b"\n")

    def end(self) -> None:
        """After a run: the next thing begins on a line of its own, in no colour."""
        for stream, cleaner in self._filters.items():
            rest = cleaner.end()
            margin = self._at_margin and rest in (b"", _NO_COLOUR)  # which takes no room
            self._write(stream, rest)
            self._at_margin = margin
        self._filters.clear()
        self._clear_status()
        if not self._at_margin and self._terminals:
            self._write("stdout", b"\n")

    # -- what is shown ---------------------------------------------------------------------------

    def _output(self, output: Output, run_id: int) -> None:
        for mime, suffix in _SUFFIXES.items():
            content = output.data.get(mime)
            if content is not None:
                data = content if isinstance(content, bytes) else content.encode()
                self._picture(data, f"run{run_id}", suffix)
                return
        text = output.data.get("text/plain")
        if isinstance(text, str):
            self.text("stdout", f"{text}\n".encode())
        else:
            self.line(f"[{', '.join(output.data)}]")

    def _picture(self, data: bytes, name: str, suffix: str) -> None:
        if suffix == "png" and self._how != "none":
            drawn = shell_pictures.draw(data, self._how)
            if drawn:
                self._write("stdout", drawn)
        self._pictures += 1
        path = self._made() / f"{name}-{self._pictures}.{suffix}"
        path.unlink(missing_ok=True)  # a link there would be written through
        with open(path, "xb") as file:
            file.write(data)
        self.line(f"[picture: {path}]")

    def _made(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="belljar-shell-"))
        return self._folder

    def _progress(self, event: events.Progress) -> None:
        if "stderr" in self._terminals:
            text = harmless(event.message.replace("\n", " "))[:60]
            self._clear_status()
            self._write("stderr", f"\r{event.fraction:4.0%} {text}".encode())
            self._status = True

    # -- writing ---------------------------------------------------------------------------------

    def _clear_status(self) -> None:
        if self._status:
            self._status = False
            self._write("stderr", _CLEAR_LINE)
            self._at_margin = True

    def _write(self, stream: str, data: bytes) -> None:
        if not data:
            return
        self._clear_status()
        self._at_margin = data.endswith(b"\n")
        while data:
            try:
                data = data[os.write(DESCRIPTORS[stream], data) :]
            except BlockingIOError:  # whoever shares the terminal may have set it so
                select.select([], [DESCRIPTORS[stream]], [])
