"""What a model is told: results as text and pictures, errors with what to do about them (pure).

Everything that code printed, named or drew is the guest's word. It stands in blocks of its own
behind the verdict, without characters that would be obeyed or hidden where it is shown.
"""

from __future__ import annotations

import base64
import signal
from collections.abc import Iterable

from mcp.types import CallToolResult, ContentBlock, ImageContent, TextContent

from belljar.errors import (
    BelljarError,
    SandboxEnded,
    SandboxFileError,
    SandboxLost,
)
from belljar.mcp import pictures
from belljar.model import MIB, Limits, OutputFile, Result

MOST_CHARACTERS = 10_000
"""Of each stream and value: a table of a million rows must not cost a million tokens."""
MOST_TEXT = 25_000
"""Of all of them together."""
MOST_PICTURES = 8
"""That are looked at, good or bad."""
MOST_SHOWN = 20
"""Values that were displayed."""
MOST_FILES = 20

_HIDDEN = (
    *range(0x202A, 0x202F),  # turn text around
    *range(0x2066, 0x206A),
    *range(0xE0000, 0xE0080),  # say something that people do not see
)
_ESCAPES: dict[int, str] = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)},
    **{code: f"\\u{code:04x}" for code in _HIDDEN},
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}


def plain(text: str) -> str:
    """The text without what a terminal obeys, and without what is there and not seen."""
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_ESCAPES)


def clip(text: str, most: int = MOST_CHARACTERS) -> str:
    """Head and tail; what is missing is counted."""
    if len(text) <= most:
        return text
    half = most // 2
    left_out = f"[… {len(text) - 2 * half:,} characters left out …]"
    return f"{text[:half]}\n{left_out}\n{text[-half:]}"


def text(words: str) -> TextContent:
    return TextContent(type="text", text=words)


def said(words: str, structured: object = None) -> CallToolResult:
    return CallToolResult(content=[text(words)], structured_content=structured)


def picture(content: bytes) -> ImageContent:
    return ImageContent(
        type="image", data=base64.b64encode(content).decode(), mime_type="image/png"
    )


# -- results ---------------------------------------------------------------------------------------


def told(
    result: Result, *, limits: Limits, most_s: float, checkpoints: Iterable[int] = ()
) -> CallToolResult:
    """How a run ended, what it printed, showed and left. Slow: it unpacks pictures."""
    blocks: list[ContentBlock] = [text(_verdict(result, limits, most_s, tuple(checkpoints)))]
    shown, album = _shown(result), _Album()
    room = MOST_TEXT
    for title, content in (
        ("stdout", result.stdout),
        ("stderr", result.stderr),
        ("value", result.value or ""),
        *(("shown", words) for words in shown),
    ):
        if content.strip():
            words = clip(plain(content.rstrip()), min(MOST_CHARACTERS, max(room, 100)))
            room -= len(words)
            blocks.append(text(f"{title}:\n{words}"))
    for output in result.outputs:
        if isinstance(drawn := output.data.get("image/png"), bytes):
            album.add(drawn)
    for file in result.files:
        if file.content is not None and file.path.lower().endswith(".png"):
            album.add(file.content)
    if result.files:
        blocks.append(text(_files(result.files)))
    if notes := [*result.warnings, *album.notes()]:
        blocks.append(text("notes:\n" + "\n".join(plain(note)[:500] for note in notes[:20])))
    return CallToolResult(content=[*blocks, *album.pictures], is_error=not result.success)


class _Album:
    """Pictures of one answer, each once."""

    def __init__(self) -> None:
        self.pictures: list[ImageContent] = []
        self._seen: set[bytes] = set()
        self._bytes = 0
        self._looked = 0
        self._left: list[str] = []

    def add(self, content: bytes) -> None:
        if content in self._seen:
            return
        self._seen.add(content)
        # What looking costs is bounded first: the guest made them, broken ones too.
        if self._looked >= MOST_PICTURES or (
            len(content) <= pictures.MOST_BYTES < self._bytes + len(content)
        ):
            self._left.append("too many, or too large together: draw them with a smaller dpi")
            return
        self._looked += 1
        if why := pictures.why_not(content):
            self._left.append(why)
        else:
            self._bytes += len(content)
            self.pictures.append(picture(content))

    def notes(self) -> list[str]:
        if not self._left:
            return []
        return [f"pictures left out: {len(self._left)} ({', '.join(sorted(set(self._left)))})"]


def _verdict(result: Result, limits: Limits, most_s: float, checkpoints: tuple[int, ...]) -> str:
    run = f"run {result.run_id}: " if result.run_id is not None else ""
    words = f"{run}{result.status} after {result.duration_ms / 1000:.2f} s"
    if result.status == "error":
        words += f", exit code {result.exit_code}"
    elif result.status == "timeout":
        words += f": its time was up. Do less, or ask for a longer timeout_s ({most_s:g} at most)"
    elif result.status == "out_of_memory":
        words += f": it needed more than its {limits.memory_bytes // MIB} MiB. Use less at once"
    elif result.status == "killed":
        words += f", killed by {_signal(result.signal)}"
    if result.state_kept is False and result.run_id is not None:
        words += (
            f"\nThe variables of this sandbox are lost, its files are not. {_back(checkpoints)}"
        )
    return words


def _back(checkpoints: tuple[int, ...]) -> str:
    if not checkpoints:
        return "open_sandbox makes a new one."
    return f"rollback_sandbox brings back the state before run {checkpoints[-1]}."


def _signal(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _shown(result: Result) -> list[str]:
    """What was displayed, as text; the last expression's value is told apart."""
    found = []
    for output in result.outputs:
        words = output.data.get("text/plain")
        if output.kind == "display" and isinstance(words, str) and "image/png" not in output.data:
            found.append(words)
    if len(found) > MOST_SHOWN:
        found[MOST_SHOWN:] = [f"[{len(found) - MOST_SHOWN} more left out]"]
    return found


def _files(files: tuple[OutputFile, ...]) -> str:
    lines = [f"{plain(file.path)[:200]} ({file.size:,} bytes)" for file in files[:MOST_FILES]]
    if len(files) > MOST_FILES:
        lines.append(f"[{len(files) - MOST_FILES} more]")
    head = "files it left, gone with its sandbox (open_sandbox keeps files):"
    return "\n".join([head, *lines])


# -- errors ----------------------------------------------------------------------------------------

_HINTS: tuple[tuple[type[BelljarError], str], ...] = (
    (SandboxEnded, "open_sandbox makes a new one"),
    (SandboxLost, "rollback_sandbox goes back to before a run, open_sandbox makes a new one"),
)
"""What to do in the words of these tools, where an error speaks of the library's."""
_FILES = {
    "too_large": "read a part of it, with code or with offset",
    "not_empty": "name what is in it",
    "missing": "list_files says what there is",
}


def refused(error: BelljarError) -> CallToolResult:
    hint = next((hint for kind, hint in _HINTS if isinstance(error, kind)), error.hint)
    if isinstance(error, SandboxFileError):
        hint = _FILES.get(error.kind, hint)
    return failed(f"{type(error).__name__}: {error.message}", hint)


def failed(message: str, hint: str = "") -> CallToolResult:
    words = plain(message)[:2000] + (f"\nhint: {plain(hint)[:1000]}" if hint else "")
    return CallToolResult(content=[text(words)], is_error=True)
