"""Runs one package's tests with pytest and writes down how each test ended.

pytest itself lies beside this file: it is uploaded like any program's own modules.
"""

import importlib
import json
import os
import sys

RANK = {"passed": 0, "skipped": 1, "failed": 2}


def note(name, outcome, detail=""):
    # Opened each time: a crash leaves what was written, and children do not inherit the file.
    with open(os.environ["COMPAT_OUTCOMES"], "a") as record:
        print(json.dumps({"name": name, "outcome": outcome, "detail": detail[-4000:]}), file=record)


class Recorder:
    def __init__(self):
        self.worst = {}

    def pytest_runtest_logstart(self, nodeid, location):
        note(nodeid, "started")

    def pytest_runtest_logreport(self, report):
        now = "passed" if hasattr(report, "wasxfail") else report.outcome
        before = self.worst.get(report.nodeid, "passed")
        self.worst[report.nodeid] = max(before, now, key=RANK.__getitem__)
        if now == "failed":
            note(report.nodeid, "failed", str(report.longrepr))
        if report.when == "teardown":
            note(report.nodeid, self.worst.pop(report.nodeid))

    def pytest_collectreport(self, report):
        if report.failed:
            note("collecting " + report.nodeid, "failed", str(report.longrepr))


def main():
    sys.path.insert(0, os.path.abspath("tools"))
    import pytest

    first, *rest = os.environ["COMPAT_TARGET"].split(".")
    package = os.path.dirname(importlib.import_module(first).__file__)
    folder = os.path.join(package, *rest)
    arguments = [folder, "--rootdir", os.path.dirname(package), "-c", os.devnull, "-q"]
    arguments += ["-p", "no:cacheprovider", "-m", os.environ["COMPAT_MARKS"]]
    pytest.main(arguments, plugins=[Recorder()])


if __name__ == "__main__":
    main()
    note("", "complete")
