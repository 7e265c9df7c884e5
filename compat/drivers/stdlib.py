"""Runs one module of CPython's own `test` package and writes down how each test ended.

The same file runs inside a sandbox and on the bare host; it needs nothing but the standard library.
"""

import importlib
import json
import os
import sys
import unittest

MODULE = os.environ["COMPAT_TARGET"]


def note(name, outcome, detail=""):
    # Opened each time: a crash leaves what was written, and children do not inherit the file.
    with open(os.environ["COMPAT_OUTCOMES"], "a") as record:
        print(json.dumps({"name": name, "outcome": outcome, "detail": detail[-4000:]}), file=record)


class Recorder(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.bad = set()

    def startTest(self, test):
        super().startTest(test)
        note(test.id(), "started")

    def addSuccess(self, test):
        if test.id() not in self.bad:
            note(test.id(), "passed")

    def addSkip(self, test, reason):
        note(test.id(), "skipped", reason)

    def addFailure(self, test, err):
        self.wrong(test, "failed", err)

    def addError(self, test, err):
        self.wrong(test, "failed", err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.wrong(test, "failed", err)

    def addExpectedFailure(self, test, err):
        note(test.id(), "passed")

    def addUnexpectedSuccess(self, test):
        self.wrong(test, "failed", None)

    def wrong(self, test, outcome, err):
        self.bad.add(test.id())
        note(test.id(), outcome, self._exc_info_to_string(err, test) if err else "succeeded")


def main():
    from test import support

    # Belljar turns bytecode off, so that it does not come back as files; much would be skipped.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Nothing that needs the outside world or very long, as in a plain test run.
    support.use_resources = os.environ.get("COMPAT_RESOURCES", "").split()
    try:
        beside = os.path.exists(MODULE + ".py")
        module = importlib.import_module(MODULE if beside else "test." + MODULE)
        suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    except unittest.SkipTest as skip:
        note(MODULE, "skipped", str(skip))
        return
    suite.run(Recorder())


if __name__ == "__main__":  # multiprocessing's spawn imports this file again
    sys.argv[1:] = []
    main()
    note("", "complete")
