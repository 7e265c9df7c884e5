"""SIGINT: KeyboardInterrupt in a run's code, and nowhere else.

It may come at any moment: between two runs, or while half a message is on its way to the agent.
Outside the code it is ignored, and in the middle of a message it waits for its end.
"""

from __future__ import annotations

import signal
import threading
import types


class Interrupts:
    """Also a context: what is done in it is not torn apart. Other threads never are."""

    def __init__(self) -> None:
        self.allowed = False
        self._expected = False
        self._own_frame: types.CodeType | None = None
        self._holding = 0
        self._waiting = False
        self._thread = 0
        self._handler = self._arrived

    def begin(self, own_frame: types.CodeType) -> None:
        """From now on none gets lost; they are raised when `allowed` is set.

        `own_frame`: a function of ours below the code, in which none is raised even then."""
        self._own_frame = own_frame
        self._thread = threading.get_ident()
        self._holding = 0
        self._waiting = False
        self._expected = True
        try:
            signal.signal(signal.SIGINT, self._handler)  # code may have put its own there
        except ValueError:  # not the main thread: signals go elsewhere
            pass

    def end(self) -> None:
        """After `allowed` was taken back."""
        self._expected = False

    def check(self) -> None:
        """Raises one that had to wait."""
        if self._waiting and self.allowed and not self._holding:
            self._waiting = False
            raise KeyboardInterrupt

    def _arrived(self, number: int, frame: types.FrameType | None) -> None:
        in_our_frame = frame is not None and frame.f_code is self._own_frame
        if self.allowed and not self._holding and not in_our_frame:
            raise KeyboardInterrupt
        self._waiting = self._expected

    def __enter__(self) -> None:
        if threading.get_ident() == self._thread:
            self._holding += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if threading.get_ident() != self._thread:
            return
        self._holding -= 1
        if error is None:
            self.check()
