"""For all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A test run started in the background ignores these, and every process it starts would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
