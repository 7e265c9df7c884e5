"""States to go back to: one before each of the latest runs, with the files as they were."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .files import Refused
from .lines import Broken, Lines
from .snapshots import Snapshots
from .states import State, greeting

if TYPE_CHECKING:
    from .keeper import Keeper


class Checkpoints:
    def __init__(self, keeper: Keeper, snapshots: Snapshots) -> None:
        self._keeper = keeper
        self._snapshots = snapshots
        self._copies: dict[int, State] = {}
        self._unwanted = -1
        """The run whose files found no room, and which there is no way back to."""
        self.most = 0

    def known(self) -> list[int]:
        """Those that were promised; there may be one more, which goes when nobody waits."""
        return sorted(self._copies)[-self.most :] if self.most else []

    def get(self, run: int) -> State | None:
        return self._copies.get(run)

    def leave(self, run: int) -> None:
        """Now, while nobody waits, for the run that will come."""
        if self.most:
            self._keeper.runs.tell({"leave": run})

    def before(self, run: int) -> None:
        """The run begins: what its checkpoint needs of the files."""
        if self.most and not self._snapshots.take(run):
            self._unwanted = run

    def keep(self, run: int, control: int, current: State) -> None:
        """A copy of `current` waits, and listens at `control`."""
        try:
            copy = State(-1, Lines(control), current.stdout, current.stderr)
        except OSError as error:
            os.close(control)
            raise Broken("a checkpoint without a socket") from error
        if run in self._copies:
            self._drop(run)
        self._copies[run] = copy
        self._keeper.listen(control, lambda: self._from_copy(run))
        # The newest is for a run that has not begun: it comes on top of those that were promised.
        while len(self._copies) > self.most + 1:
            self._drop(min(self._copies))
        if run == self._unwanted:
            self._drop(run)

    def _from_copy(self, run: int) -> None:
        """Only its greeting is expected; one that the kernel killed for its memory has closed."""
        copy = self._copies[run]
        try:
            for line in copy.lines.fill(wait=False):
                pid = line.get("hello")
                if type(pid) is int and pid > 1:
                    copy.pid = pid
        except Broken:
            self._drop(run)

    def _drop(self, run: int) -> None:
        copy = self._copies.pop(run)
        self._keeper.ignore(copy.lines.descriptor)
        copy.lines.close()  # it exits when nobody is there any more
        self._snapshots.drop(run)

    def drop_older(self) -> None:
        """All but the latest."""
        for run in sorted(self._copies)[:-1]:
            self._drop(run)

    def latest_pid(self) -> int:
        """-1 if there is none, or it has not said."""
        return self._copies[max(self._copies)].pid if self._copies else -1

    def drop_all(self) -> None:
        for run in list(self._copies):
            self._drop(run)

    def ask_rollback(self, ask: dict) -> dict:  # type: ignore[type-arg]
        runs = self._keeper.runs
        runs.none_under_way()
        run = ask["run"]
        copy = self._copies.get(run)
        if copy is None:
            raise Refused("unknown", "there is no checkpoint before run %s" % run)
        if copy.pid < 0:
            try:
                copy.pid = greeting(copy.lines)
            except Broken:
                self._drop(run)
                raise Refused("unknown", "the checkpoint before run %s is gone" % run) from None
        runs.abandon()
        del self._copies[run]
        for later in [other for other in self._copies if other > run]:
            self._drop(later)
        self._keeper.ignore(copy.lines.descriptor)
        runs.attend(copy)
        self._keeper.found.tell()
        restored = self._snapshots.restore(run)
        runs.tell({"back": run})
        self.leave(ask["next_run"])
        return {"checkpoints": self.known(), "files": restored}
