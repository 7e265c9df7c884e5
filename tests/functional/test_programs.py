"""R2, I3: programs that nobody here wrote run inside as they do on the bare host.

A small part of `make compat`, chosen to touch what a wall could break: files, processes, threads,
signals, terminals, sockets, shared memory, foreign functions. docs/compatibility.md has the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from compat import sides, suites
from compat.compare import compare

from belljar import Belljar

STDLIB = (
    "test_ctypes test_fcntl test_glob test_httpservers test_json test_mmap test_os test_pathlib "
    "test_posix test_pty test_resource test_select test_shutil test_sqlite3 test_tempfile "
    "test_thread test_urllib2_localnet"
)


@pytest.fixture(scope="module")
def roomy() -> Iterator[Belljar]:
    """A Belljar whose operator allows what test suites need."""
    with Belljar(sides.settings()) as jar:
        yield jar


def _job(suite: str, target: str) -> sides.Job:
    return next(job for job in suites.SUITES[suite]() if job.target == target)


def _explained(roomy: Belljar, job: sides.Job, *, least: int) -> None:
    comparison = compare(roomy, job)
    assert not comparison.unexplained, comparison.unexplained
    assert comparison.same >= least, comparison.inside.ended


@pytest.mark.parametrize("module", STDLIB.split())
def test_standard_library_module_passes_as_on_the_bare_host_i3(roomy: Belljar, module: str) -> None:
    """I3: CPython's own tests of what programs use most."""
    pytest.importorskip(f"test.{module}", reason="this interpreter came without its tests")
    _explained(roomy, _job("stdlib", module), least=3)


def test_numpy_passes_as_on_the_bare_host_i3(roomy: Belljar) -> None:
    """I3: numpy's own tests of its Fourier transforms, which use threads."""
    _explained(roomy, _job("numpy", "numpy.fft.tests"), least=100)


@pytest.mark.slow
def test_go_standard_library_packages_pass_r2(roomy: Belljar) -> None:
    """R2: Go's own tests of packages, built inside from their sources."""
    job = dataclasses.replace(_job("go", "system"), env={"COMPAT_PACKAGES": "path/filepath sort"})
    account = sides.inside(roomy, job)
    failed = [name for name, outcome in account.outcomes.items() if outcome == "failed"]
    assert not account.ended, account.ended
    assert not failed, [account.details[name] for name in failed]
    assert sum(outcome == "passed" for outcome in account.outcomes.values()) > 50


def test_the_comparison_would_notice(roomy: Belljar) -> None:
    """A suite that fails inside only is reported: the tests above can fail."""
    pytest.importorskip("test.test_glob", reason="this interpreter came without its tests")
    job = _job("stdlib", "test_glob")
    poisoned = dataclasses.replace(job, inside_env={"COMPAT_TARGET": "test_no_such_module"})
    found = compare(roomy, poisoned)
    assert [item.name for item in found.unexplained] == ["(the whole run)"]
