"""SIGINT: KeyboardInterrupt in a run's code, and nowhere else.

It may come at any moment: between two runs, or while half a message is on its way to the agent.
Outside the code it is ignored, and in the middle of a message it waits for its end.
"""

from __future__ import annotations

import signal
import types


class Interrupts:
    """Also a context: what is done in it is not torn apart."""

    def __init__(self) -> None:
        self.allowed = False
        self._own_frame: types.CodeType | None = None
        self._holding = 0
        self._waiting = False

    def begin(self, own_frame: types.CodeType) -> None:
        """`own_frame`: a function of ours below the code, in which none is raised either."""
        self._own_frame = own_frame
        self._holding = 0
        self._waiting = False
        self.allowed = True
        try:
            signal.signal(signal.SIGINT, self._arrived)  # code may have put its own there
        except ValueError:  # not the main thread: signals go elsewhere
            pass

    def check(self) -> None:
        """Raises one that had to wait."""
        if self._waiting and self.allowed and not self._holding:
            self._waiting = False
            raise KeyboardInterrupt

    def _arrived(self, number: int, frame: types.FrameType | None) -> None:
        if not self.allowed:
            return
        if self._holding or (frame is not None and frame.f_code is self._own_frame):
            self._waiting = True
            return
        raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._holding += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._holding -= 1
        if error is None:
            self.check()
