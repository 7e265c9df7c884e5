"""For all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

ALONE = ("test_crash_cleanup.py", "test_bombs_together.py")
"""They load or look at the whole machine; so does what is called `test_r3_nothing_is_left`."""


def pytest_configure() -> None:
    """A test run started in the background ignores these, and every process it starts would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if item.path.name in ALONE or item.name == "test_r3_nothing_is_left":
            item.add_marker(pytest.mark.alone)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Together(config, log)


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Who may run beside whom: a file's tests share sandboxes, so one process has them all; what
    looks at Docker's daemon is in one process, too."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if "docker" in nodeid.lower():
            return "docker"
        if file.endswith("test_probes_engines.py"):
            return f"{file} {test.partition('[')[2].partition('-')[0]}"
        return file
