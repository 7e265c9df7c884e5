"""What runs in a cell: how many probes, which tests, and how long each may take.

Emulated, a guest is ten to thirty times slower than this machine. Tests that judge a duration, or
wait for a fixed few seconds, would fail for that alone: they are left out here, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

TEST_TIMEOUT_S = 900
"""For one test, in place of the 180 s of pyproject.toml."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    name: str
    tests: tuple[str, ...]
    deselected: tuple[str, ...] = ()
    """By a part of their names."""
    probes: tuple[str, ...] = ()
    """By id or boundary; empty: all."""
    prove_s: float
    tests_s: float


_JAIL = (
    "tests/conformance/test_jail.py",
    "tests/functional/test_run.py",
    "tests/functional/test_limits.py",
    "tests/functional/test_doctor.py",
    "tests/functional/test_kept.py",
    "tests/functional/test_kept_files.py",
    "tests/functional/test_kept_inputs.py",
    "tests/functional/test_branching.py",
    "tests/functional/test_python_behaviour.py",
)
_NETWORK = (
    "tests/functional/test_network.py",
    "tests/functional/test_network_jail.py",
    "tests/functional/test_network_strays.py",
)
_SECURITY = (
    "tests/security/test_cgroups_live.py",
    "tests/security/test_seccomp_live.py",
    "tests/security/test_kernel_objects.py",
    "tests/security/test_kept_hostile.py",
    "tests/security/test_probes_kept.py",
    "tests/security/test_probes_network.py",
)

SELECTIONS = {
    selection.name: selection
    for selection in (
        Selection(
            name="quick",
            tests=("tests/functional/test_limits.py", "tests/functional/test_kept.py"),
            prove_s=600,
            tests_s=420,
        ),
        Selection(
            name="full",
            tests=(*_JAIL, *_NETWORK, *_SECURITY),
            prove_s=3600,
            tests_s=4 * 3600,
        ),
    )
}


def prove_command(selection: Selection, belljar: str) -> str:
    only = f" --only {','.join(selection.probes)}" if selection.probes else ""
    return f"{belljar} prove --json{only}"


def pytest_command(selection: Selection, python: str) -> str:
    """One process: a guest has one or two slow cores."""
    options = ["-q", "-p no:cacheprovider", "--durations=15"]
    options += [f"-o timeout={TEST_TIMEOUT_S}", "-m 'not slow and not alone'"]
    if selection.deselected:
        words = " or ".join(selection.deselected)
        options.append(f"-k 'not ({words})'")
    return " ".join([python, "-m pytest", *options, *selection.tests])
