"""For all tests."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from belljar.engines.linux import cgroups
from belljar.testing.served import Answer, Served

ALONE = ("test_crash_cleanup.py", "test_bombs_together.py")
"""They load or look at the whole machine; so does what is called `test_r3_nothing_is_left`."""


def pytest_configure() -> None:
    """A test run started in the background ignores these, and every process it starts would."""
    Served.on_answer = check_answer
    hypothesis.settings.register_profile("patient", deadline=None)  # whatever else the machine does
    hypothesis.settings.load_profile("patient")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def check_answer(method: str, path: str, answer: Answer) -> None:
    """A3: whatever a server answers any test with, its description says so of the route."""
    route = path.partition("?")[0]
    for pattern, said in statuses():
        if re.fullmatch(pattern, route) and method.lower() in said:
            assert str(answer.status) in said[method.lower()], f"{method} {route}: {answer}"
            return


@functools.cache
def statuses() -> list[tuple[str, dict[str, set[str]]]]:
    """Those that are described, by a pattern for the path and the method; fixed paths first."""
    from belljar.server.app import description

    paths = sorted(description()["paths"].items(), key=lambda one: "{" in one[0])
    return [
        (
            re.sub(r"{.*?}", "[^/]+", path),
            {name: set(one["responses"]) for name, one in ways.items()},
        )
        for path, ways in paths
    ]


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


@pytest.fixture
def cgroups_of_ours() -> None:
    if isinstance(cgroups.detect(), cgroups.Absent):
        pytest.skip("no cgroup of ours: what programs use beside a run is not seen")
