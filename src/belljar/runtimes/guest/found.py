"""Where the packages of a kept sandbox are found, by the interpreter and by programs it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from .ways import Refused

if TYPE_CHECKING:
    from .keeper import Keeper


class Found:
    """The keeper's part of it."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def ask_install(self, ask: dict) -> dict:  # type: ignore[type-arg]
        self._keeper.set_up["package_path"] += ask["package_path"]
        try:
            self.tell()
        except Refused:
            pass  # the state is lost: whichever comes next is told
        return {}

    def tell(self) -> None:
        """For a state that may be older than the packages."""
        folders = self._keeper.set_up["package_path"]
        if folders:
            make_known(self._keeper.set_up["env"], folders)
            self._keeper.runs.tell({"packages": folders})


def make_known(env: MutableMapping[str, str], folders: list[str]) -> None:
    """Behind what is there already: packages that were added hide nothing."""
    if not folders:
        return
    for name, below in (("PYTHONPATH", ""), ("PATH", "/bin")):
        parts = [part for part in env.get(name, "").split(":") if part]
        env[name] = ":".join(parts + [f + below for f in folders if f + below not in parts])


def make_importable(folders: list[str]) -> None:
    """In the interpreter. Code may have put anything in the place of what is changed here."""
    try:
        sys.path += [folder for folder in folders if folder not in sys.path]
        make_known(os.environ, folders)
    except Exception:
        pass
