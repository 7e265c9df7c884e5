"""Every known difference, with the reason why it is meant to be so.

The first pattern that fits explains a difference. One that no pattern fits makes the run fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from compat.accounts import Difference


@dataclass(frozen=True, kw_only=True)
class Known:
    suite: str
    tests: str
    """Names of tests, with * and ?"""
    saying: str = ""
    """What the test's message must contain as well."""
    reason: str


_NO_NETLINK = (
    "No netlink sockets (L2): what waits in them is in no memory limit."
    " The interfaces cannot be listed."
)

KNOWN = (
    Known(suite="go", tests="net TestInterface*", reason=_NO_NETLINK),
    Known(
        suite="stdlib",
        tests="test.test_fcntl.*",
        saying="Permission denied",
        reason="Nobody may ask to be told who uses a folder (F_NOTIFY): the system's folders are"
        " the host's own (I2).",
    ),
    Known(
        suite="stdlib",
        tests="test.test_os.TestInvalidFD.test_f*sync",
        reason="What can be written is memory, so fsync and fdatasync do nothing and always"
        " succeed: all they could reach is the host's disk (I2).",
    ),
    Known(
        suite="stdlib",
        tests="*",
        saying="extended attribute support",
        reason="Attributes and access lists cannot be written (L2): tmpfs keeps them in memory"
        " that no limit counts.",
    ),
    Known(
        suite="stdlib",
        tests="test.test_socket.*",
        saying="Address family not supported",
        reason=_NO_NETLINK,
    ),
    Known(
        suite="stdlib",
        tests="*",
        saying="Read-only file system: '",
        reason="The root is read-only (I2). These tests unlink a file that is not there beside the"
        " standard library, and the kernel says EROFS before it looks for the file.",
    ),
    Known(
        suite="stdlib",
        tests="test.test_socket.*UDPLITE*",
        reason="Only TCP and UDP (I3): for rare protocols the kernel loads modules on demand.",
    ),
    Known(
        suite="stdlib",
        tests="test.test_subprocess.POSIXProcessTestCase.test_[gu]*",
        saying="Invalid argument",
        reason="Only one user exists inside (I1). To become another is EINVAL, not EPERM.",
    ),
    Known(
        suite="stdlib",
        tests="test.test_os.ChownFileTests.test_chown_without_permission",
        reason="Only one user exists inside (I1). To give a file to another is EINVAL, not EPERM.",
    ),
    Known(
        suite="stdlib",
        tests="test.test_resource.ResourceTest.test_prlimit",
        saying="Operation not permitted",
        reason="Limits of oneself only, given as process 0 (I3): a filter sees numbers, and another"
        " number could be the agent's.",
    ),
    Known(
        suite="stdlib",
        tests="test.test_os.ProgramPriorityTests.test_set_get_priority",
        saying="Operation not permitted",
        reason="The priority of oneself only, given as process 0 (I3), for the same reason.",
    ),
    Known(
        suite="stdlib",
        tests="test.test_uuid.TestInternals*_getnode",
        reason="No network (I4): there is no interface with a hardware address to find.",
    ),
    Known(
        suite="stdlib",
        tests="test.test_tracemalloc.TestTracemallocEnabled.test_snapshot",
        reason="Counts the frames on the stack. Inside there are more (Belljar's own, below the"
        " code); on the bare host there are too few for this test when it is not run by regrtest.",
    ),
    Known(
        suite="go",
        tests="syscall TestPrlimit*",
        saying="operation not permitted",
        reason="Limits of oneself only, given as process 0 (I3), as above.",
    ),
    *(
        Known(
            suite="go",
            tests=tests,
            reason="PR_SET_KEEPCAPS is EPERM: there is no capability to keep, and the bits that"
            " would bring one back are locked (I1).",
        )
        for tests in ("os/signal", "os/signal TestAllThreadsSyscallSignals", "syscall TestAll*")
    ),
    Known(
        suite="go",
        tests="syscall TestPidFDClone3",
        saying="function not implemented",
        reason="clone3 answers ENOSYS (I3): a filter cannot see its flags. Callers fall back.",
    ),
    *(
        Known(
            suite="go",
            tests=f"syscall Test{name}*",
            saying="operation not permitted",
            reason="No namespace can be made inside (I1): a nested user namespace would give back"
            " every capability.",
        )
        for name in ("Clone", "EmptyCred", "Unshare", "PidFDWithUserNS", "AmbientCapsUserns")
    ),
    Known(
        suite="go",
        tests="net TestMultiPathTCP",
        saying="Cannot create MPTCP sockets",
        reason="Only TCP and UDP (I3), as above.",
    ),
    Known(
        suite="go",
        tests="net/http TestLinuxSendfile",
        saying="failed to run strace",
        reason="No process may trace another (I3).",
    ),
)


def explain(suite: str, differences: Iterable[Difference]) -> list[Difference]:
    return [replace(item, reason=_reason(suite, item)) for item in differences]


def _reason(suite: str, item: Difference) -> str:
    for known in KNOWN:
        fits = known.suite == suite and fnmatchcase(item.name, known.tests)
        if fits and known.saying in item.detail:
            return known.reason
    return ""
