"""Files of one run: taken from the host before it, sent to the host after it."""

from __future__ import annotations

import os

from . import places, protocol
from .outgoing import Outgoing


class Transfer:
    def __init__(
        self, roots: dict[str, int], owner: tuple[int, int] | None, outgoing: Outgoing
    ) -> None:
        """`roots`: folder descriptors by name. `owner`: who the code is, if not we."""
        self._roots = roots
        self._owner = owner
        self._outgoing = outgoing
        self._file: tuple[int, int, str] | None = None
        self._placed: dict[str, tuple[int, int, int]] = {}

    # -- in --------------------------------------------------------------------------------------

    def put(self, order: dict) -> None:  # type: ignore[type-arg]
        """A file whose content comes next."""
        path = order["path"]
        try:
            owner = None if order["root"] == "input" else self._owner
            file = places.create(self._roots[order["root"]], path, order["mode"], owner)
        except OSError as error:
            self._outgoing.fault("files", "%s: %s" % (path, error.strerror), "")
            return
        self._file = (file, order["size"], order["root"] + "/" + path)
        if not order["size"]:
            self.store(b"")

    def store(self, data: bytes) -> None:
        if self._file is None:  # what follows a PUT that failed
            return
        file, left, path = self._file
        try:
            while data:
                written = os.write(file, data)
                data = data[written:]
                left -= written
        except OSError as error:
            os.close(file)
            self._file = None
            text = "%s: %s" % (path, error.strerror)
            self._outgoing.fault("files", text, "raise disk_bytes")
            return
        self._file = (file, left, path)
        if left <= 0:
            self._placed[path] = places.stamp(os.fstat(file))
            os.close(file)
            self._file = None

    def forget(self) -> None:
        """As if nothing had been put here."""
        self._placed.clear()

    # -- out -------------------------------------------------------------------------------------

    def send_all(self, *, most_files: int, most_bytes: int) -> int:
        """All that the run left, but for what came in and is unchanged. Returns how many files
        were not even named: a million names would be a flood of their own."""
        files_left, bytes_left = most_files, most_bytes
        for name, prefix in (("workspace", "/workspace/"), ("output", "/data/output/")):
            for path, status, skipped in places.scan(self._roots[name], prefix):
                relative = path[len(prefix) :]
                if self._placed.get(name + "/" + relative) == places.stamp(status):
                    continue
                files_left -= 1
                if files_left < -protocol.NAMES_BEYOND:
                    continue
                if len(path) > protocol.MAX_PATH:
                    path, skipped = path[: protocol.MAX_PATH], "a name of %d characters" % len(path)
                elif files_left < 0:
                    skipped = "more than %d files" % most_files
                elif not skipped and status.st_size > bytes_left:
                    skipped = "more than %d bytes in all" % most_bytes
                file = -1
                if not skipped:
                    try:
                        file = places.read(self._roots[name], relative)
                    except OSError as error:
                        skipped = "cannot be read: %s" % (error.strerror or error)
                size = status.st_size
                described = {"path": path, "size": size, "skipped": skipped}
                self._outgoing.send(protocol.message(protocol.FILE, described))
                if file >= 0:
                    bytes_left -= size
                    self._send(file, size)
        return max(0, -files_left - protocol.NAMES_BEYOND)

    def _send(self, file: int, size: int) -> None:
        # Exactly `size` bytes, as announced: everything that could change the file is dead.
        while size > 0:
            data = os.read(file, min(size, protocol.CHUNK))
            if not data:
                data = bytes(min(size, protocol.CHUNK))
            size -= len(data)
            self._outgoing.send(protocol.frame(protocol.DATA, data))
        os.close(file)
