"""The table of system calls compiled into the kernel's filter, and its installation (I3).

The filter is classic BPF: check the architecture, find the number by bisection, then run that
call's rule. Calls that are allowed whatever their arguments never reach it: since Linux 5.11 the
kernel works out once, at installation, which those are. What installation costs grows with the
number of instructions, which the kernel compiles anew each time, so the compiler saves on them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from errno import ENOSYS

from . import kernel, syscalls
from .syscalls import ALLOW, LOW, PRETEND, Check, Clauses

AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
X32_BIT = 0x4000_0000
"""Set in the numbers of x86's third entry point: 64-bit code with 32-bit pointers."""

# Offsets into struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6].
_NR, _ARCH, _ARGS = 0, 4, 16

_LOAD, _AND, _RETURN, _JUMP = 0x20, 0x54, 0x06, 0x05  # LD|W|ABS, ALU|AND|K, RET|K, JMP|JA
_EQUAL, _AT_LEAST = 0x15, 0x35  # JMP|JEQ|K, JMP|JGE|K
_RET_ALLOW, _RET_ERRNO = 0x7FFF_0000, 0x0005_0000

_NR_SECCOMP = kernel.NUMBERS["seccomp"]
_SECCOMP_SET_MODE_FILTER = 1
_MOST_INSTRUCTIONS = 4096
_UNKNOWN: Clauses = ((ENOSYS, ()),)


class _Fprog(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


_fprogs: dict[bytes, _Fprog] = {}


def build(
    *,
    memfd: bool = True,
    affinity: bool = True,
    joining: bool = False,
    arch: str | None = None,
) -> bytes:
    """The filter for this machine, or for `arch`, as an array of struct sock_filter.

    `memfd=False` and `affinity=False` take away memory files and the choice of cores, for
    where no cgroup counts the memory or limits the share of a core. `joining=True` lets a process
    move into namespaces of a sandbox made for it, and give up capabilities there.
    """
    machine = arch or syscalls.this_machine()
    return assemble(
        {
            number: syscalls.clauses(name, memfd=memfd, affinity=affinity, joining=joining)
            for name, number in syscalls.numbers(machine).items()
        },
        machine,
    )


def assemble(rules: dict[int, Clauses], machine: str | None = None) -> bytes:
    """A filter from any table of rules; a number without one answers ENOSYS."""
    machine = machine or syscalls.this_machine()
    assembly = _Assembly()
    known = assembly.search(_spans(rules))
    unknown = assembly.verdict(ENOSYS)
    if machine == "x86_64":
        # Too large to be a known number anyway; said out loud because the bit is a trap.
        known = assembly.test(_AT_LEAST, X32_BIT, unknown, known)
    assembly.load(_NR, LOW, then=known)
    native = assembly.latest
    assembly.test(_EQUAL, AUDIT_ARCH[machine], native, assembly.verdict(ENOSYS))
    assembly.load(_ARCH, LOW, then=assembly.latest)
    program = assembly.finish()
    _fprog(program)
    return program


def only(calls: Mapping[str, str], ruled: Mapping[str, Clauses]) -> bytes:
    """A filter for this machine from names: `calls`, in groups by what they are for, whatever their
    arguments, and `ruled`. Others do not exist."""
    numbers = syscalls.numbers(syscalls.this_machine())
    rules: dict[int, Clauses] = {
        numbers[name]: ((ALLOW, ()),)
        for names in calls.values()
        for name in names.split()
        if name in numbers  # some are of one architecture only
    }
    rules.update({numbers[name]: rule for name, rule in ruled.items()})
    return assemble(rules)


def install(program: bytes) -> None:
    """Sets no-new-privileges and puts this thread, and all it will start, behind the filter."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    kernel.syscall(_NR_SECCOMP, _SECCOMP_SET_MODE_FILTER, 0, ctypes.addressof(_fprog(program)))


def _fprog(program: bytes) -> _Fprog:
    # Made when the filter is built: in a fresh fork a first ctypes object costs 50 µs, all of it
    # copying the pages of memory that it touches.
    if program not in _fprogs:
        _fprogs[program] = _Fprog(len(program) // 8, program)
    return _fprogs[program]


def _spans(rules: dict[int, Clauses]) -> list[tuple[int, Clauses]]:
    """Neighbouring numbers with the same rule as one span: (first number, rule).

    Covers every number there is; one without a rule is unknown.
    """
    spans: list[tuple[int, Clauses]] = []
    for number in range(max(rules) + 2):
        rule = rules.get(number, _UNKNOWN)
        if not spans or spans[-1][1] != rule:
            spans.append((number, rule))
    return spans


class _Assembly:
    """A BPF program written from its last instruction to its first.

    BPF jumps forwards only, so that way every target is known when a jump to it is written, and
    one that lies further than a jump reaches (255) is seen at once. A position counts from the end.
    """

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int]] = []
        self._verdicts: dict[int, int] = {}
        self._rules: dict[Clauses, int] = {}

    @property
    def latest(self) -> int:
        """The position of the instruction written last, the one the next falls through to."""
        return len(self._code) - 1

    def finish(self) -> bytes:
        if len(self._code) > _MOST_INSTRUCTIONS:
            raise ValueError(f"{len(self._code)} instructions, the kernel takes 4096")
        return b"".join(struct.pack("=HBBI", *step) for step in reversed(self._code))

    def search(self, spans: list[tuple[int, Clauses]]) -> int:
        """Bisect the spans by the number loaded, ending in the rule of its span."""
        if len(spans) == 1:
            return self.rule(spans[0][1])
        middle = len(spans) // 2
        above = self.search(spans[middle:])
        below = self.search(spans[:middle])
        return self.test(_AT_LEAST, spans[middle][0], above, below)

    def rule(self, rule: Clauses) -> int:
        """The first clause whose checks all hold decides; the last has none."""
        if rule not in self._rules or not rule[0][1]:
            position = -1
            for verdict, checks in reversed(rule):
                otherwise = position
                position = self.verdict(verdict)
                for check in reversed(checks):
                    position = self._check(check, position, otherwise)
            self._rules[rule] = position
        return self._rules[rule]

    def verdict(self, verdict: int) -> int:
        known = self._verdicts.get(verdict)
        if known is None or not self._in_reach(known):
            known = self._verdicts[verdict] = self._write(_RETURN, 0, 0, _action(verdict))
        return known

    def test(self, operation: int, operand: int, if_true: int, if_false: int) -> int:
        if_true, if_false = self._near(if_true), self._near(if_false)
        here = len(self._code)
        return self._write(operation, here - if_true - 1, here - if_false - 1, operand)

    def load(self, offset: int, mask: int, *, then: int) -> int:
        if then != self.latest:
            self._write(_JUMP, 0, 0, self.latest - then)
        if mask != LOW:
            self._write(_AND, 0, 0, mask)
        return self._write(_LOAD, 0, 0, offset)

    def _check(self, check: Check, if_true: int, if_false: int) -> int:
        argument, mask, values = check
        if max(values) > LOW:
            raise ValueError("a check for values of more than 32 bits")
        offset = _ARGS + 8 * argument  # little-endian: the low half comes first
        if mask > LOW:
            if_true = self.test(_EQUAL, 0, if_true, if_false)
            if_true = self.load(offset + 4, mask >> 32, then=if_true)
        otherwise = if_false
        for first, last in _runs(values):
            if last - first < 2:
                for value in range(first, last + 1):
                    otherwise = self.test(_EQUAL, value, if_true, otherwise)
            else:
                below = self.test(_AT_LEAST, last + 1, otherwise, if_true)
                otherwise = self.test(_AT_LEAST, first, below, otherwise)
        return self.load(offset, mask & LOW, then=otherwise)

    def _near(self, position: int) -> int:
        """The position, or a stepping stone to it."""
        if self._in_reach(position):
            return position
        return self._write(_JUMP, 0, 0, self.latest - position)

    def _in_reach(self, position: int) -> bool:
        return self.latest - position < 250  # leaves room for two stepping stones

    def _write(self, code: int, if_true: int, if_false: int, operand: int) -> int:
        self._code.append((code, if_true, if_false, operand))
        return self.latest


def _runs(values: tuple[int, ...]) -> list[tuple[int, int]]:
    """The values as (first, last) of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


def _action(verdict: int) -> int:
    if verdict == ALLOW:
        return _RET_ALLOW
    return _RET_ERRNO if verdict == PRETEND else _RET_ERRNO | verdict
