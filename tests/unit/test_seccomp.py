"""The filter says what the table says (I3): its program, interpreted here as the kernel would.

Nothing is installed; tests/security/test_seccomp_live.py does that.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
from collections import Counter
from collections.abc import Iterator
from errno import (
    EAFNOSUPPORT,
    EINVAL,
    ENOPROTOOPT,
    ENOSYS,
    ENOTTY,
    EOPNOTSUPP,
    EPERM,
    EPROTONOSUPPORT,
)
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from belljar.engines.linux import seccomp, syscalls
from belljar.engines.linux.syscalls import ALLOW, ALLOWED, PRETEND, REFUSED, RULED

X86, ARM = "x86_64", "aarch64"
ARCH = {X86: 0xC000003E, ARM: 0xC00000B7}
I386 = 0x40000003

PROGRAMS = {
    (machine, memfd, affinity): seccomp.build(arch=machine, memfd=memfd, affinity=affinity)
    for machine in (X86, ARM)
    for memfd in (True, False)
    for affinity in (True, False)
}
NUMBERS = {machine: syscalls.numbers(machine) for machine in (X86, ARM)}
NAMES = {machine: {nr: name for name, nr in NUMBERS[machine].items()} for machine in (X86, ARM)}

Instruction = tuple[int, int, int, int]


@functools.cache
def decode(program: bytes) -> list[Instruction]:
    return list(struct.iter_unpack("=HBBI", program))


class ArgumentRead(Exception):
    """The program looked at an argument, so the kernel cannot answer from its cache."""


def interpret(
    program: bytes, nr: int, args: tuple[int, ...] = (), *, arch: int, arguments: bool = True
) -> int:
    """ALLOW or an errno. Raises on anything else the program might return."""
    data = struct.pack("=iIQ6Q", _signed(nr), arch, 0, *(*args, *[0] * 6)[:6])
    code, at, accumulator = decode(program), 0, 0
    while True:
        operation, if_true, if_false, k = code[at]
        at += 1
        if operation == 0x20:  # LD W ABS
            assert k % 4 == 0
            if k >= 8 and not arguments:
                raise ArgumentRead
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif operation == 0x54:  # AND
            accumulator &= k
        elif operation == 0x05:  # JA
            at += k
        elif operation == 0x15:  # JEQ
            at += if_true if accumulator == k else if_false
        elif operation == 0x35:  # JGE
            at += if_true if accumulator >= k else if_false
        elif operation == 0x06:  # RET
            if k == 0x7FFF0000:
                return ALLOW
            if k == 0x00050000:
                return PRETEND
            assert k & 0xFFFF0000 == 0x00050000, f"a verdict that is no errno: {k:#x}"
            assert 0 < k & 0xFFFF < 4096
            return k & 0xFFFF
        else:
            raise AssertionError(f"an operation that seccomp does not know: {operation:#x}")


def _signed(nr: int) -> int:
    return nr - (1 << 32) if nr >= 1 << 31 else nr


def verdict(name: str, *args: int, machine: str = X86, **options: bool) -> int:
    program = PROGRAMS[machine, options.get("memfd", True), options.get("affinity", True)]
    return interpret(program, NUMBERS[machine][name], args, arch=ARCH[machine])


def names_of(groups: dict[str, str]) -> Iterator[str]:
    for names in groups.values():
        yield from names.split()


ALWAYS = {name for groups in ALLOWED.values() for name in names_of(groups)}
NEVER = {name: code for code, groups in REFUSED.items() for name in names_of(groups)}


def table(machine: str, nr: int, args: tuple[int, ...], *, memfd: bool, affinity: bool) -> int:
    """What the table says, read here a second time and without the compiler's code."""
    name = NAMES[machine].get(nr)
    if name is None:
        return ENOSYS
    if name in ALWAYS:
        return ALLOW
    if name in NEVER:
        return NEVER[name]
    if name == "memfd_create" and not memfd:
        return ENOSYS
    if name == "sched_setaffinity" and not affinity:
        return EPERM
    for result, checks in RULED[name][1]:
        if all(args[index] & mask in values for index, mask, values in checks):
            return result
    raise AssertionError(f"the rule of {name} has no last clause")


# -- the table -------------------------------------------------------------------------------------


def test_every_call_is_in_exactly_one_table() -> None:
    """I3: nothing is allowed by being forgotten, nothing has two verdicts."""
    listed = Counter([*ALWAYS, *NEVER, *RULED])
    listed.update(
        Counter(name for groups in ALLOWED.values() for name in names_of(groups)) - Counter(ALWAYS)
    )
    assert [name for name, times in listed.items() if times > 1] == []
    assert set(listed) == NUMBERS[X86].keys() | NUMBERS[ARM].keys()


OPEN_ENDED = {"getsockopt", "fadvise64"}
"""Rules that refuse a few uses and allow the rest: questions and hints, which keep no memory."""


def test_every_entry_has_a_reason_and_every_rule_an_end() -> None:
    for groups in (*ALLOWED.values(), *REFUSED.values()):
        assert all(len(why) > 3 for why in groups)
    for name, (why, clauses) in RULED.items():
        assert why, name
        assert clauses[-1][1] == (), f"{name} has no verdict for the rest"
        assert all(checks for _, checks in clauses[:-1]), f"{name} has clauses never reached"
        assert clauses[-1][0] != ALLOW or name in OPEN_ENDED, f"{name} allows what is not named"
        for _, checks in clauses:
            for index, mask, values in checks:
                assert 0 <= index < 6
                assert all(value & mask == value for value in values), f"{name} can never match"


HEADERS = {
    X86: Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    ARM: Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", [X86, ARM])
def test_numbers_are_those_of_the_kernel_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("no kernel headers here")
    text = HEADERS[machine].read_text()
    found = {
        name: int(number)
        for name, number in re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", text, re.M)
    }
    names = NUMBERS[machine]
    if machine == ARM:  # the generic header lists 32-bit variants and aliases as well
        found["newfstatat"] = found.pop("fstatat")
        found = {name: number for name, number in found.items() if name in names}
    assert len(found) > 300
    assert {name: names.get(name) for name in found} == found


# -- the program -----------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS.values())
def test_the_kernel_would_take_the_program(program: bytes) -> None:
    """What bpf_check_classic and seccomp_check_filter insist on: known steps, jumps inside."""
    code = decode(program)
    assert 0 < len(code) <= 4096
    assert code[-1][0] == 0x06
    for at, (operation, if_true, if_false, k) in enumerate(code):
        assert operation in (0x20, 0x54, 0x05, 0x15, 0x35, 0x06)
        if operation in (0x15, 0x35):
            assert at + 1 + max(if_true, if_false) < len(code)
        if operation == 0x05:
            assert at + 1 + k < len(code)
        if operation == 0x20:
            assert k < 64


def test_the_program_is_small() -> None:
    """Each instruction adds to what starting a sandbox costs (F1)."""
    assert len(PROGRAMS[X86, True, True]) // 8 < 450


INTERESTING = sorted(
    {value for _, clauses in RULED.values() for _, cs in clauses for _, _, vs in cs for value in vs}
    | {1 << bit for bit in range(64)}
    | {mask for _, clauses in RULED.values() for _, checks in clauses for _, mask, _ in checks}
)
a_value = st.sampled_from(INTERESTING) | st.integers(0, 2**64 - 1)
# Any value, also with something in the half that the kernel does not read.
an_argument = st.builds(lambda low, high: low | high << 32, a_value, st.just(0) | a_value).map(
    lambda value: value & 2**64 - 1
)
six_arguments = st.tuples(*[an_argument] * 6)
a_number = (
    st.sampled_from(sorted({NUMBERS[X86][name] for name in RULED}))
    | st.integers(0, 600)
    | st.integers(0, 2**32 - 1)
)


@given(
    machine=st.sampled_from([X86, ARM]),
    nr=a_number,
    args=six_arguments,
    memfd=st.booleans(),
    affinity=st.booleans(),
)
@settings(max_examples=1000, deadline=None)
def test_the_filter_says_what_the_table_says(
    machine: str, nr: int, args: tuple[int, ...], memfd: bool, affinity: bool
) -> None:
    """I3: for any number and any arguments."""
    said = interpret(PROGRAMS[machine, memfd, affinity], nr, args, arch=ARCH[machine])
    assert said == table(machine, nr, args, memfd=memfd, affinity=affinity)


@pytest.mark.parametrize("machine", [X86, ARM])
@given(args=six_arguments)
@settings(max_examples=20, deadline=None)
def test_every_number_there_is(machine: str, args: tuple[int, ...]) -> None:
    """Each known number and each gap between, not only those that chance picks."""
    program = PROGRAMS[machine, True, True]
    for nr in range(620):
        expected = table(machine, nr, args, memfd=True, affinity=True)
        assert interpret(program, nr, args, arch=ARCH[machine]) == expected, nr


@pytest.mark.parametrize("machine", [X86, ARM])
@pytest.mark.parametrize("name", RULED)
def test_each_rule_at_its_edges(machine: str, name: str) -> None:
    """Every value a rule names, the ones beside it, and the same with the upper half in use."""
    if name not in NUMBERS[machine]:
        return
    checks = [check for _, checks in RULED[name][1] for check in checks]
    choices = []
    for index in range(6):
        named = {value for at, _, values in checks if at == index for value in values}
        near = {value + step & 2**64 - 1 for value in named for step in (-1, 0, 1)}
        choices.append(sorted(near | {value | 1 << 40 for value in named}) or [0])
    program, nr = PROGRAMS[machine, True, True], NUMBERS[machine][name]
    for args in itertools.product(*choices):
        expected = table(machine, nr, args, memfd=True, affinity=True)
        assert interpret(program, nr, args, arch=ARCH[machine]) == expected, args


@given(nr=st.integers(0, 2**32 - 1), args=six_arguments, arch=st.integers(0, 2**32 - 1))
@example(nr=20, args=(0,) * 6, arch=I386)
@example(nr=0, args=(0,) * 6, arch=0xC00000B7)
@settings(deadline=None)
def test_another_architecture_is_refused(nr: int, args: tuple[int, ...], arch: int) -> None:
    """I3, PV-22: numbers mean something else behind int 0x80."""
    if arch != ARCH[X86]:
        assert interpret(PROGRAMS[X86, True, True], nr, args, arch=arch) == ENOSYS


@given(nr=st.integers(0, 2**30 - 1) | st.integers(0, 600), args=six_arguments)
@settings(deadline=None)
def test_x32_is_refused(nr: int, args: tuple[int, ...]) -> None:
    for bits in (0x40000000, 0x80000000, 0xC0000000):
        assert interpret(PROGRAMS[X86, True, True], nr | bits, args, arch=ARCH[X86]) == ENOSYS


@pytest.mark.parametrize("machine", [X86, ARM])
def test_what_is_always_allowed_reads_no_argument(machine: str) -> None:
    """Such calls the kernel answers from a bitmap, at no cost: worth keeping."""
    for name in ALWAYS & NUMBERS[machine].keys():
        program, nr = PROGRAMS[machine, True, True], NUMBERS[machine][name]
        assert interpret(program, nr, arch=ARCH[machine], arguments=False) == ALLOW


# -- the promises, written out ---------------------------------------------------------------------

# fmt: off
FORBIDDEN = [
    "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise",
    "mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick",
    "move_mount", "open_tree", "mount_setattr", "setns", "unshare", "bpf", "perf_event_open",
    "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "keyctl", "add_key",
    "request_key", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
    "reboot", "swapon", "swapoff", "quotactl", "quotactl_fd", "acct", "settimeofday",
    "clock_settime", "adjtimex", "clock_adjtime", "iopl", "ioperm", "modify_ldt",
    "open_by_handle_at", "name_to_handle_at", "lookup_dcookie", "fanotify_init", "fanotify_mark",
    "mq_open", "shmget", "semget", "msgget", "vhangup", "syslog", "set_mempolicy", "mbind",
    "move_pages", "migrate_pages", "nfsservctl", "ioprio_set", "memfd_secret", "statmount",
    "listmount", "cachestat", "sethostname", "setdomainname", "seccomp", "clone3",
]
# fmt: on


@pytest.mark.parametrize("machine", [X86, ARM])
@given(args=six_arguments)
@settings(max_examples=30, deadline=None)
def test_forbidden_whatever_the_arguments(machine: str, args: tuple[int, ...]) -> None:
    """I3, PV-09 to PV-21: this list is not derived from the table."""
    for name in FORBIDDEN:
        if name in NUMBERS[machine]:
            assert verdict(name, *args, machine=machine) in (EPERM, ENOSYS), name


@given(args=six_arguments)
@settings(deadline=None)
def test_clone3_falls_back(args: tuple[int, ...]) -> None:
    """PV-08: libc tries clone only after ENOSYS."""
    assert verdict("clone3", *args) == ENOSYS


NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)


@given(
    machine=st.sampled_from([X86, ARM]),
    flag=st.sampled_from(NAMESPACES),
    others=st.integers(0, 2**64 - 1),
    args=six_arguments,
)
@settings(max_examples=500, deadline=None)
def test_no_clone_makes_a_namespace(
    machine: str, flag: int, others: int, args: tuple[int, ...]
) -> None:
    """I1, PV-08, PV-25."""
    assert verdict("clone", flag | others, *args[1:], machine=machine) == EPERM


@pytest.mark.parametrize(
    ("flags", "who"),
    [(0x1200011, "fork in glibc"), (0x3D0F00, "a thread"), (0x4111, "vfork"), (17, "fork")],
)
def test_clone_makes_processes_and_threads(flags: int, who: str) -> None:
    assert verdict("clone", flags) == ALLOW, who


@pytest.mark.parametrize("kind", [0x2000, 0x6000, 0x3000, 0x7000])
@pytest.mark.parametrize("junk", [0, 0xFFFF_FFFF_0000_0000, 0o666, 0xDEAD_0000])
def test_no_device_nodes(kind: int, junk: int) -> None:
    """I2, FS-10: whatever else is in the register."""
    assert verdict("mknod", 0, kind | junk, 0) == EPERM
    assert verdict("mknodat", 0, 0, kind | junk, 0) == EPERM
    assert verdict("mknodat", 0, 0, 0x1000 | 0o644, 0) == ALLOW


@pytest.mark.parametrize("family", [*range(3, 10), *range(11, 16), *range(17, 46), 2**31])
def test_other_socket_families(family: int) -> None:
    """I4, NW-08, NW-09: vsock and packet sockets among them."""
    for kind in range(16):
        for high in (0, 1 << 32):
            assert verdict("socket", family | high, kind, 0) == EAFNOSUPPORT
            assert verdict("socketpair", family | high, kind, 0) == EAFNOSUPPORT


@pytest.mark.parametrize("family", [2, 10])
def test_internet_sockets_are_tcp_and_udp(family: int) -> None:
    """I4, NW-06: no raw socket, no rare protocol whose module would be loaded."""
    cloexec, nonblock = 0o2000000, 0o4000
    assert verdict("socket", family, 1 | cloexec | nonblock, 0) == ALLOW
    assert verdict("socket", family, 1, 6) == ALLOW
    assert verdict("socket", family, 2 | nonblock, 17) == ALLOW
    assert verdict("socket", family, 3, 1) == EPERM
    assert verdict("socket", family, 3 | cloexec, 255) == EPERM
    assert verdict("socket", family, 10, 0x300) == EPERM
    for kind, protocol in ((1, 132), (1, 262), (2, 1), (2, 136), (5, 132), (6, 33), (4, 0)):
        assert verdict("socket", family, kind, protocol) == EPROTONOSUPPORT


@pytest.mark.parametrize("protocol", [*range(23), 1 << 31])
def test_netlink_is_refused(protocol: int) -> None:
    """NW-07; also the harmless protocol: what waits in its sockets is in no memory limit."""
    assert verdict("socket", 16, 3, protocol) == EAFNOSUPPORT
    assert verdict("socket", 16, 3 | 0o2000000, protocol) == EAFNOSUPPORT


@pytest.mark.parametrize("option", [7, 8, 32, 33])
def test_socket_buffers_keep_their_size_without_an_error(option: int) -> None:
    """L2"""
    assert verdict("setsockopt", 3, 1, option, 0, 4) == PRETEND
    assert verdict("getsockopt", 3, 1, option, 0, 4) == ALLOW


# Not derived from the table. Level, option, and what keeping it would cost.
UNCOUNTED_OPTIONS = [
    (0, 4, "source routes"),
    (0, 17, "IPsec policies"),
    (0, 21, "a minimum TTL: patches the kernel's code"),
    (0, 35, "a multicast group"),
    (0, 64, "packet filter tables"),
    (1, 26, "a filter"),
    (1, 29, "time stamps: patches the kernel's code"),
    (1, 37, "time stamps"),
    (1, 60, "pages of the sender, pinned"),
    (1, 73, "memory held back for a socket"),
    (6, 13, "a module for congestion control"),
    (6, 14, "keys, 190 bytes each"),
    (6, 23, "keys for fast open"),
    (6, 31, "a module for TLS"),
    (6, 38, "keys"),
    (17, 100, "encapsulation: patches the kernel's code"),
    (17, 104, "the same"),
    (41, 6, "64 KB of extension headers"),
    (41, 32, "flow labels, which outlive the socket"),
    (41, 57, "a routing header"),
    (41, 59, "destination options"),
    (41, 73, "a minimum hop count"),
    (282, 1, "a level that nobody has heard of"),
]


@pytest.mark.parametrize(("level", "option", "why"), UNCOUNTED_OPTIONS)
def test_socket_options_that_keep_memory_do_not_exist(level: int, option: int, why: str) -> None:
    """L2: no cgroup counts what they keep."""
    for high in (0, 1 << 32):
        assert verdict("setsockopt", 3, level | high, option | high, 0, 4) == ENOPROTOOPT, why


ORDINARY_OPTIONS = [
    (0, 1), (0, 8), (0, 10), (0, 11), (1, 2), (1, 6), (1, 9), (1, 13), (1, 15), (1, 16), (1, 20),
    (1, 21), (6, 1), (6, 3), (6, 4), (6, 5), (6, 6), (6, 12), (6, 18), (6, 36), (41, 25), (41, 26),
    (41, 49), (41, 67),
]  # fmt: skip


@pytest.mark.parametrize(("level", "option"), ORDINARY_OPTIONS)
def test_socket_options_of_ordinary_programs(level: int, option: int) -> None:
    assert verdict("setsockopt", 3, level, option, 0, 4) == ALLOW


def test_received_pages_are_not_mapped() -> None:
    """L2: the socket would get back what it was charged for them."""
    assert verdict("getsockopt", 3, 6, 35) == ENOPROTOOPT
    assert verdict("getsockopt", 3, 6, 11) == ALLOW


@pytest.mark.parametrize("name", ["setxattr", "lsetxattr", "fsetxattr", "setxattrat"])
def test_no_attributes_and_access_lists(name: str) -> None:
    """L2: tmpfs keeps 64 KB for each file, uncounted."""
    assert verdict(name, 1, 2, 3, 4, 5) == EOPNOTSUPP


def test_nothing_reaches_the_disk_below_the_read_only_folders() -> None:
    """Said to be done: what can be written is memory."""
    for name in ("fsync", "fdatasync", "sync_file_range"):
        assert verdict(name, 3, 0, 0, 7) == PRETEND
    assert verdict("msync", 0, 4096, 4) == verdict("msync", 0, 4096, 6) == PRETEND
    assert verdict("msync", 4097, 4096, 4) == EINVAL
    assert verdict("msync", 0, 4096, 1) == ALLOW  # libunwind asks so whether memory is there


def test_the_hosts_pages_stay_in_memory() -> None:
    assert verdict("fadvise64", 3, 0, 0, 4) == PRETEND
    assert verdict("fadvise64", 3, 0, 0, 2) == ALLOW
    for advice in (12, 20, 21, 26, 104, 2**31):
        assert verdict("madvise", 0, 4096, advice) == EINVAL
    for advice in (0, 4, 8, 9, 14, 15, 16, 18, 23, 25, 102):
        assert verdict("madvise", 0, 4096, advice) == ALLOW


def test_pipes_grow_no_larger_than_they_are() -> None:
    """RS-50: the pages of all pipes of one user have one limit."""
    for size in (0, 4096, 65535, 65536):
        assert verdict("fcntl", 3, 1031, size) == ALLOW
    for size in (65537, 131072, 1 << 20, 1 << 31):
        assert verdict("fcntl", 3, 1031, size) == EPERM


def test_locks_belong_to_a_process() -> None:
    """L2: the host counts them by process."""
    for command in (5, 6, 7, 36):
        assert verdict("fcntl", 3, command) == ALLOW
    for command in (37, 38, 1040, 2**31):
        assert verdict("fcntl", 3, command) == EINVAL


@pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFF_FFFF << 32])
def test_ioctl_ignores_what_the_kernel_ignores(high: int) -> None:
    """PV-19, FS-15: TIOCSTI and the immutable flag, also dressed up with high bits."""
    for request in (0x5412, 0x541C, 0x541D, 0x5423, 0x40086602, 0x401C5820):
        assert verdict("ioctl", 0, request | high, 0) == EPERM
    assert verdict("ioctl", 0, 0x5401 | high, 0) == ALLOW
    assert verdict("ioctl", 0, 0xC0045877 | high, 0) == ENOTTY


@given(pid=st.integers(1, 2**32 - 1), rest=six_arguments)
@settings(deadline=None)
def test_others_are_left_alone(pid: int, rest: tuple[int, ...]) -> None:
    """PR-06, PR-19: limits and scheduling of oneself only."""
    for name in ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setattr"):
        assert verdict(name, pid, *rest[1:]) == EPERM
        assert verdict(name, 0, *rest[1:]) == ALLOW
    assert verdict("setpriority", 0, pid) == EPERM


@given(option=st.integers(0, 100) | st.integers(0, 2**32 - 1), rest=six_arguments)
@settings(deadline=None)
def test_prctl_allows_only_its_list(option: int, rest: tuple[int, ...]) -> None:
    allowed = verdict("prctl", option, *rest[1:]) == ALLOW
    assert not allowed or option in {*syscalls.PRCTLS.values(), 47, 0x53564D41}


def test_prctl_by_hand() -> None:
    assert verdict("prctl", 35) == EPERM  # PR_SET_MM
    assert verdict("prctl", 0x59616D61) == EPERM  # PR_SET_PTRACER
    assert verdict("prctl", 22, 2) != ALLOW  # PR_SET_SECCOMP
    assert verdict("prctl", 47, 1, 0) == ALLOW  # PR_CAP_AMBIENT_IS_SET
    assert verdict("prctl", 47, 2, 0) == EPERM  # PR_CAP_AMBIENT_RAISE
    assert verdict("prctl", 47, 1 | 1 << 32, 0) == EPERM  # which the kernel reads in full
    assert verdict("prctl", 0x53564D41, 0) == EINVAL  # names of mappings are kept uncounted
    assert verdict("prctl", 0x53564D41, 1) != ALLOW


@given(persona=st.integers(0, 2**64 - 1))
@example(persona=0x0040000)
@settings(deadline=None)
def test_address_randomisation_stays_on(persona: int) -> None:
    """PV-18."""
    asked = persona & 0xFFFFFFFF in (0, 0xFFFFFFFF)
    assert verdict("personality", persona) == (ALLOW if asked else EPERM)


def test_memory_that_nobody_counts() -> None:
    """L2: reserved huge pages are outside the memory limit; memory files can be switched off."""
    assert verdict("mmap", 0, 4096, 3, 0x22) == ALLOW
    assert verdict("mmap", 0, 4096, 3, 0x40022) != ALLOW
    assert verdict("memfd_create", 0, 1) == ALLOW
    assert verdict("memfd_create", 0, 4) != ALLOW
    assert verdict("memfd_create", 0, 1, memfd=False) == ENOSYS


def test_affinity_can_be_switched_off() -> None:
    """L1: where the share of a core is given by pinning, the pin must hold."""
    assert verdict("sched_setaffinity", 0) == ALLOW
    assert verdict("sched_setaffinity", 0, affinity=False) == EPERM
    assert verdict("sched_getaffinity", 0, affinity=False) == ALLOW


def test_an_unknown_machine_is_an_error() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.build(arch="riscv64")
