"""Processes that hold the state of a kept sandbox, as the keeper knows them."""

from __future__ import annotations

import select

from .lines import Broken, Lines

GREETING_S = 10.0


class State:
    """The current interpreter, or a copy of it that waits: a checkpoint."""

    def __init__(self, pid: int, lines: Lines, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.lines = lines
        self.stdout = stdout
        self.stderr = stderr


def greeting(lines: Lines) -> int:
    """The pid of a copy. It runs what the code made of our own functions, so it may keep silent."""
    while True:
        if not select.select([lines.descriptor], [], [], GREETING_S)[0]:
            raise Broken("no greeting")
        for line in lines.fill(wait=False):
            pid = line.get("hello")
            if type(pid) is not int or pid <= 1:
                raise Broken("no greeting")
            return pid
