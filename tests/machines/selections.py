"""What runs in a cell: which probes, which tests, and how long each may take.

Emulated, a guest is ten to thirty times slower than its host. Probes measure that and wait longer;
so do most tests. What judges a duration all the same is named in `UNFAIR`, with the reason, and
left out: it would say something about the emulation, not about Belljar.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

UNFAIR = {
    "tests/functional/test_limits.py::test_time_is_up_for_everyone": (
        "eight sandboxes must each print within one second of wall time"
    ),
    "tests/functional/test_limits.py::test_a_flood_of_gigabytes_costs_the_host_little": (
        "expects 50 MiB of output from a run of a fixed time"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Selection:
    name: str
    tests: tuple[str, ...]
    prove_s: float
    """For all probes; 0: none runs."""
    tests_s: float
    test_s: int = 900
    """For one test, in place of the 180 s of pyproject.toml."""

    @property
    def is_evidence(self) -> bool:
        return self.prove_s > 0 or bool(self.tests)


_KEPT = (
    "tests/functional/test_kept.py",
    "tests/functional/test_kept_files.py",
    "tests/functional/test_kept_inputs.py",
    "tests/functional/test_branching.py",
)
_JAIL = (
    "tests/conformance/test_jail.py",
    "tests/functional/test_run.py",
    "tests/functional/test_limits.py",
    "tests/functional/test_doctor.py",
    "tests/functional/test_python_behaviour.py",
)
_NETWORK = (
    "tests/functional/test_network.py",
    "tests/functional/test_network_jail.py",
    "tests/functional/test_network_strays.py",
    "tests/security/test_probes_network.py",
)
_LIMITS = tuple(
    f"tests/functional/test_limits.py::{name}"
    for name in (
        "test_what_was_said_and_used_before_the_time_out_is_told",
        "test_a_memory_bomb_gets_its_verdict[one piece]",
        "test_a_memory_bomb_gets_its_verdict[in a child]",
        "test_files_in_memory_count_as_memory",
        "test_threads_stop_at_the_limit",
        "test_disk_bytes_are_one_quota_for_all_places",
    )
)
_MACHINE = (
    "tests/functional/test_systemd_scope.py",
    "tests/functional/test_doctor_advice.py",
    "tests/functional/test_docker_jail.py",
)
"""Where the machine itself makes the difference."""
_SECURITY = (
    "tests/security/test_cgroups_live.py",
    "tests/security/test_seccomp_live.py",
    "tests/security/test_kernel_objects.py",
    "tests/security/test_kept_hostile.py",
    "tests/security/test_probes_kept.py",
    "tests/security/test_shadow_modules.py",
)

_FEW = (
    "tests/functional/test_systemd_scope.py",
    *_LIMITS,
    f"{_KEPT[0]}::test_s1_a_number_of_runs_an_idle_time_and_a_life_time",
    f"{_KEPT[0]}::test_l1_a_run_can_be_interrupted_killed_and_extended_from_outside",
    f"{_NETWORK[1]}::test_n1_code_reaches_the_gateway_by_its_three_doors",
    f"{_NETWORK[1]}::test_n1_names_can_be_read_and_not_written",
)

SELECTIONS = {
    selection.name: selection
    for selection in (
        # A look at all machines within the hour: no row of the table comes from it.
        Selection(name="doctor", tests=(), prove_s=0, tests_s=0),
        # Whether the walls stand, and nothing else: five minutes for a cell.
        Selection(name="probes", tests=(), prove_s=3600, tests_s=0),
        # Whether sandboxes start with the limits they should have: two minutes.
        Selection(name="short", tests=_FEW, prove_s=0, tests_s=1800, test_s=240),
        # What CI runs within a quarter of an hour from boot: every probe, for they are the promise,
        # then a handful of tests of what differs most from machine to machine.
        Selection(
            name="quick",
            tests=_FEW,
            prove_s=1800,
            tests_s=1800,
            test_s=240,
        ),
        Selection(
            name="full",
            tests=(*_JAIL, *_KEPT, *_NETWORK, *_SECURITY, *_MACHINE),
            prove_s=3600,
            tests_s=4 * 3600,
        ),
    )
}
ADVICE = "tests/functional/test_doctor_advice.py"
"""What doctor says to type, typed: also where the machine refuses every sandbox until then."""


def prove_command(python: str, only: tuple[str, ...] = ()) -> str:
    return shlex.join([python, "-m", "tests.machines.proving", *only])


def pytest_command(selection: Selection, python: str, tests: tuple[str, ...] = ()) -> str:
    """One process: a guest has one or two slow processors. A line for each test tells how far it
    came, should the time be up."""
    tests = tests or selection.tests
    options = ["-v", "-p", "no:cacheprovider", "--durations=15", "--tb=short"]
    options += ["-o", f"timeout={selection.test_s}", "-m", "not slow and not alone"]
    options += [f"--deselect={test}" for test in UNFAIR if test.startswith(tests)]
    return shlex.join([python, "-m", "pytest", *options, *tests])
