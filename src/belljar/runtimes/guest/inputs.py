"""Files for /data/input, which only pid 1 of a sandbox can write."""

from __future__ import annotations

import os

from . import places
from .forking import write_all


class Inputs:
    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._placing: dict[int, int] = {}
        self._misplaced: dict[int, OSError] = {}

    def ask_place(self, ask: dict) -> dict:  # type: ignore[type-arg]
        """A file whose content comes on the question's channel."""
        self._placing[ask["id"]] = places.create(self._folder, ask["path"], 0o644)
        return {}

    def ask_placed(self, ask: dict) -> dict:  # type: ignore[type-arg]
        error = self._misplaced.pop(ask["channel"], None)
        if error:
            raise error
        return {}

    def content(self, channel: int, data: bytes) -> bool:
        """False when no file has that channel."""
        file = self._placing.get(channel)
        if file is None:
            return False
        try:
            write_all(file, data)
        except OSError as error:
            self._misplaced[channel] = error
            data = b""
        if not data:
            os.close(file)
            del self._placing[channel]
        return True
