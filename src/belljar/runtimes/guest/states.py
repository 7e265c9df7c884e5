"""Processes that hold the state of a kept sandbox, as the keeper knows them."""

from __future__ import annotations

import select

from .lines import Broken, Lines

GREETING_S = 10.0
SETTLING_S = 30.0
"""A branch copies memory and files that it shared with its parent."""


class State:
    """The current interpreter, or a copy of it that waits: a checkpoint."""

    def __init__(self, pid: int, lines: Lines, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.lines = lines
        self.stdout = stdout
        self.stderr = stderr


def greeting(lines: Lines) -> int:
    """The pid of a copy. It runs what the code made of our own functions, so it may keep silent."""
    pid = _told(lines, "hello", GREETING_S)
    if type(pid) is not int or pid <= 1:
        raise Broken("no greeting")
    return pid


def settled(lines: Lines) -> str:
    """Why a copy cannot go on in a branch; empty if it can."""
    why = _told(lines, "settled", SETTLING_S)
    return why[:500] if isinstance(why, str) else "it does not say why"


def _told(lines: Lines, what: str, within_s: float) -> object:
    while True:
        if not select.select([lines.descriptor], [], [], within_s)[0]:
            raise Broken("no %s" % what)
        for line in lines.fill(wait=False):
            return line.get(what)
