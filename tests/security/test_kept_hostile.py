"""Code that attacks the kept sandbox around it: its keeper, its host, its branches (S1, S6, I1).

It may reach the socket to its keeper and speak in its interpreter's place; it can then lie about
its own run and lose its own state. What it must not do is looked at from outside here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import belljar
from belljar.engines.linux import cgroups
from belljar.errors import BelljarError, InvalidRequest, SandboxFileError, SandboxLost, Unsupported
from belljar.kept import events, outputs
from belljar.probes import host, load
from belljar.probes.fixtures import Fixtures

Make = Callable[..., belljar.Sandbox]

KEEPER = """
import array, os, socket
keeper = socket.socket(fileno=os.dup(3))
def send(data, *descriptors):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    keeper.sendmsg([data], rights if descriptors else [])
"""
DAEMON = """
import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    ctypes.CDLL(None).prctl(15, b"MARK", 0, 0, 0)
    time.sleep(120)
    os._exit(0)
time.sleep(0.2)
"""
FULL = """
import subprocess
started = []
try:
    while len(started) < 200:
        started.append(subprocess.Popen(["sleep", "60"]))
except OSError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def jar() -> Iterator[belljar.Belljar]:
    with belljar.Belljar() as jar:
        yield jar


@pytest.fixture
def make(jar: belljar.Belljar) -> Iterator[Make]:
    made: list[belljar.Sandbox] = []

    def make(**options: Any) -> belljar.Sandbox:
        box = belljar.Sandbox(jar, environment="base", timeout_s=10, **options)
        made.append(box)
        box.run("x = 41")
        return box

    yield make
    for box in made:
        box.close()


@pytest.fixture(scope="module")
def neighbour(jar: belljar.Belljar) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(jar, environment="base", max_runs=1000) as box:
        yield box


def eventually(look: Callable[[], object], wanted: object, within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while (seen := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert seen == wanted


# -- the keeper's socket -------------------------------------------------------------------------


def test_s1_a_forged_end_is_not_the_end_of_another_run(make: Make) -> None:
    """The code lies about its own run; the end that it did not forge must not be the next one's."""
    box = make()
    forged = b'{"done": {"status": "ok", "exit_code": 0, "value": "forged"}}\n'
    lie = box.run(KEEPER + f"send({forged!r})\nraise SystemExit(3)")
    assert lie.value == "forged", "who holds the state reports on it"
    with pytest.raises(SandboxLost):
        time.sleep(0.2)
        box.run("x")
    box.rollback(2)
    assert box.run("x + 1").value == "42"


@pytest.mark.parametrize(
    "attack",
    [
        "send(b'no json\\n')",
        "send(b'[]\\n')",
        "send(b'[' * 100_000 + b'\\n')",
        "send(b'{\"done\": 7}\\n')",
        'send(b\'{"checkpoint": "x"}\\n\')',
        "send(b'{\"checkpoint\": 9}\\n')",
        "send(b'{\"checkpoint\": 9}\\n', os.pipe()[0])",
        "send(b'{\"checkpoint\": 1e999}\\n', os.dup(3))",
        "[send(b'{}\\n', *[0] * 8) for _ in range(8)]",
        "[keeper.sendall(b'x' * (1 << 20)) for _ in range(40)]",
    ],
)
def test_s1_nonsense_ends_the_state_and_nothing_else(
    make: Make, neighbour: belljar.Sandbox, attack: str
) -> None:
    box = make()
    result = box.run(KEEPER + f"{attack}\nimport time\ntime.sleep(1)")
    assert (result.status, result.state_kept) == ("killed", False)
    with pytest.raises(SandboxLost):
        box.run("x")
    box.rollback(2)
    assert box.run("x + 1").value == "42", "what was before is still there"
    assert neighbour.run("1 + 1").value == "2"


def test_s1_a_shell_that_talks_nonsense_is_ended_and_can_begin_anew(
    jar: belljar.Belljar, neighbour: belljar.Sandbox
) -> None:
    with belljar.Sandbox(jar, language="bash") as box:
        result = box.run("head -c 300000 /dev/zero >&101; echo >&101; sleep 5")
        assert (result.status, result.state_kept) == ("killed", False)
        box.restart()
        assert box.run("echo again").stdout == "again\n"
    assert neighbour.run("1 + 1").value == "2"


@pytest.mark.slow
def test_s6_a_checkpoint_that_never_greets_is_refused(make: Make) -> None:
    box = make()
    line = "send(b'{\"checkpoint\": 2}\\n', ours.fileno())"
    box.run(KEEPER + "ours, theirs = socket.socketpair()\n" + line)
    with pytest.raises((InvalidRequest, SandboxLost)):
        box.rollback(2)


def test_l7_a_flood_of_news_reaches_nobody(make: Make) -> None:
    """The host hears a bounded number, whatever is sent in the interpreter's place."""
    heard: list[events.Event] = []
    line = b'{"progress": {"fraction": 0.5, "message": "x"}}\n' * 100
    code = KEEPER + f"import time\nend = time.time() + 1\nwhile time.time() < end: send({line!r})"
    result = make().run(code, on_event=heard.append)
    progress = sum(isinstance(event, events.Progress) for event in heard)
    assert 0 < progress <= 1000 + 100 * (result.duration_ms / 1000 + 1)
    assert "too many" in result.warnings[0]


# -- what is shown -------------------------------------------------------------------------------

HOSTILE_OUTPUTS: dict[str, str] = {
    "not a number": '{"kind": "display", "data": {"text/plain": "a"}, "metadata": {"x": NaN}}',
    "no text": '{"kind": "display", "data": {"text/plain": 7}}',
    "no type": '{"kind": "display", "data": {"../../etc/passwd": "a"}}',
    "no kind": '{"kind": "stream", "data": {}}',
    "no base64": '{"kind": "display", "data": {"image/png": {"base64": "?"}}}',
    "a lone surrogate": '{"kind": "display", "data": {"text/html": "\\\\ud800"}}',
    "deep": '{"kind": "display", "data": {}, "metadata": {"x": ' + "[" * 900 + "]" * 900 + "}}",
    "a list": "[]",
    "nothing": "null",
    "large": '{"kind": "display", "data": {"text/html": "' + "x" * (9 << 20) + '"}}',
}


def test_s3_hostile_outputs_are_bounded_inert_or_dropped(make: Make) -> None:
    told = json.dumps(list(HOSTILE_OUTPUTS.values()))
    box = make(memory_bytes=1 << 30)
    box.files.write("told.json", told)
    result = box.run(
        KEEPER + "import json\nfor told in json.load(open('told.json')):\n"
        "    keeper.sendall(b'{\"output\": ' + told.encode() + b'}\\n')\n"
        "class Page:\n    def _repr_html_(self): return '<script>alert(1)</script>'\nPage()"
    )
    assert result.status == "ok"
    text = result.to_json()
    json.loads(text, parse_constant=pytest.fail)
    assert len(text) < outputs.ALL_BYTES
    assert result.outputs[-1].data["text/html"] == "<script>alert(1)</script>", "text, as it came"
    for output in result.outputs:
        assert all(isinstance(piece, str | bytes) for piece in output.data.values())


def test_s1_a_value_is_always_text_that_can_be_printed(make: Make) -> None:
    forged = b'{"done": {"status": "ok", "value": "\\ud800", "error": {"name": ["x"]}}}\n'
    result = make().run(KEEPER + f"send({forged!r})\nimport time; time.sleep(1)")
    assert result.value and result.value.encode()


# -- the caller's own callback -------------------------------------------------------------------


def test_l6_what_a_callback_raises_is_the_callers_and_the_state_stays(make: Make) -> None:
    box = make()

    def full(event: events.Event) -> None:
        raise OSError("the caller's disk is full")

    started = time.monotonic()
    with pytest.raises(OSError, match="caller's disk"):
        box.run("print('much')\nimport time\ntime.sleep(60)", timeout_s=30, on_event=full)
    assert time.monotonic() - started < 25, "the run was interrupted"
    assert box.run("x + 1").value == "42"


# -- what one run leaves for the next ------------------------------------------------------------


def test_l3_a_full_table_of_processes_costs_neither_state_nor_sandbox(make: Make) -> None:
    box = make(processes=32)
    assert "unavailable" in box.run(FULL).stdout
    assert box.run("x + 1").value == "42"
    with pytest.raises(BelljarError):
        box.fork(1)
    box.run("for one in started:\n    one.kill(); one.wait()")
    (branch,) = box.fork(1)
    assert branch.run("x + 1").value == "42"
    branch.close()


def test_l5_all_descriptors_taken_cost_neither_state_nor_sandbox(make: Make) -> None:
    box = make(open_files=64)
    take = "try:\n    while True: taken.append(open('/dev/null'))\nexcept OSError: pass"
    taken = box.run("taken = []\n" + take)
    assert taken.state_kept
    assert box.run("len(taken) > 10").value == "True"
    box.run("taken.clear()")
    assert box.run("input()", stdin="again\n").value == "'again'"


def test_l2_memory_taken_between_runs_is_the_sandboxes_own(
    make: Make, neighbour: belljar.Sandbox
) -> None:
    box = make(memory_bytes=160 << 20)
    box.run(
        "import os, time\nif os.fork() == 0:\n    time.sleep(0.3)\n"
        "    held = [bytearray(16 << 20) for _ in range(100)]\n    os._exit(0)"
    )
    time.sleep(1.5)
    assert neighbour.run("sum(range(10))").value == "45"
    try:
        assert box.run("x + 1").value == "42"
    except SandboxLost as lost:
        # Without a cgroup the watch ends it, and nobody is left who says why.
        assert "memory" in str(lost) or isinstance(cgroups.detect(), cgroups.Absent)


def test_r3_a_flood_between_runs_is_neither_kept_nor_in_the_way(make: Make) -> None:
    box = make()
    box.run("import subprocess\nflood = subprocess.Popen(['yes'])")
    time.sleep(0.5)
    before = host.resident_bytes()
    result = box.run("x + 1")
    assert (result.status, result.value) == ("ok", "42")
    assert len(result.stdout) < 4 << 20 and host.resident_bytes() - before < 64 << 20
    assert box.exec("setsid yes & echo done", shell=True).status == "ok"
    assert box.run("flood.kill()\nx").status == "ok"


def test_s1_a_terminal_that_never_stops_printing(make: Make) -> None:
    box = make()
    before = host.resident_bytes()
    process = box.start("printf '\\033]0;owned\\007'; yes", shell=True, terminal=True)
    time.sleep(0.7)
    assert box.run("x + 1").value == "42"
    process.kill()
    assert process.wait(10).signal == 9
    assert host.resident_bytes() - before < 64 << 20


# -- files and going back ------------------------------------------------------------------------


def test_s2_names_that_change_while_files_are_read_lead_nowhere(make: Make) -> None:
    box = make()
    box.run(
        "import os, threading\n"
        "def swap():\n"
        "    while not os.path.exists('stop'):\n"
        "        for make in (lambda: open('swap', 'w').write('plain'),\n"
        "                     lambda: os.symlink('/etc/ssl/openssl.cnf', 'swap'),\n"
        "                     lambda: os.mkfifo('swap'), lambda: os.mkdir('swap')):\n"
        "            try: make()\n            except OSError: pass\n"
        "            try: os.unlink('swap')\n            except OSError:\n"
        "                try: os.rmdir('swap')\n                except OSError: pass\n"
        "threading.Thread(target=swap, daemon=True).start()"
    )
    seen: set[bytes] = set()
    deadline = time.monotonic() + 60
    reads = 0
    while reads < 150 or (len(seen) == 1 and time.monotonic() < deadline):
        reads += 1
        try:
            seen.add(box.files.read("swap"))
        except SandboxFileError as refused:
            seen.add(refused.kind.encode())
    kinds = {b"plain", b"", b"missing", b"link", b"not_a_file", b"not_a_folder", b"os"}
    assert seen <= kinds, seen - kinds
    assert len(seen) > 1, "it did change"
    box.rollback(2)  # the files are put back while the old ones still change
    assert box.run("x + 1").value == "42"


# -- branches ------------------------------------------------------------------------------------


def test_s6_what_a_closed_sandbox_left_running_ends_though_its_family_lives(make: Make) -> None:
    """R3: also for a parent, whose walls its branches still need."""
    parent = make()
    child, other = parent.fork(2)
    marks = {box: host.new_mark() for box in (parent, child, other)}
    for box, mark in marks.items():
        box.run(DAEMON.replace("MARK", mark))
        assert host.named(mark)
    child.close()
    eventually(lambda: host.named(marks[child]), [])
    assert host.named(marks[parent]) and host.named(marks[other])
    parent.close()
    eventually(lambda: host.named(marks[parent]), [])
    assert other.run("x + 1").value == "42" and host.named(marks[other])
    other.close()
    eventually(lambda: host.named(marks[other]), [])


def test_s6_a_branch_sees_neither_parent_nor_siblings(make: Make) -> None:
    parent = make()
    parent.run("import subprocess\nmine = subprocess.Popen(['sleep', '60'])")
    one, two = parent.fork(2)
    two.run("import subprocess\nmine = subprocess.Popen(['sleep', '61'])")
    look = (
        "import os\nfound = []\nfor pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try: found.append(open(f'/proc/{pid}/cmdline').read())\n    except OSError: pass\n"
        "[line for line in found if 'sleep' in line]"
    )
    assert one.run(look).value == "[]"
    for box in (one, two):
        box.close()


LIAR = """
import json, os, sys
frame = sys._getframe()
while type(frame.f_locals.get("self")).__name__ != "_Interpreter":
    frame = frame.f_back
theirs = type(frame.f_locals["self"])._fork.__globals__
drop = theirs["_drop_capabilities"]

def attack():
    for name, code in json.load(open("/workspace/probes.json")).items():
        if os.fork() == 0:
            out = os.open(f"/workspace/{name}", os.O_CREAT | os.O_WRONLY, 0o644)
            os.dup2(out, 1), os.dup2(out, 2)
            sys.stdout = sys.stderr = open(out, "w", buffering=1)
            try:
                exec(compile(code, name, "exec"), {"__name__": "__main__"})
            except BaseException as error:
                print("ENDED", repr(error), flush=True)
            os._exit(0)
        os.wait()
    open("/workspace/finished", "w").write(open("/proc/self/status").read())
    os._exit(0)

def keep_them():
    if os.fork():
        attack()
    drop()

theirs["_drop_capabilities"] = keep_them
"""
SEE_THEM = {
    *("PV-01", "PV-04", "PV-59"),  # say that there are capabilities, and so there are
    *("PV-11", "PV-56"),  # join namespaces: with them one may, and is where one was
    "PV-60",  # may change what limits capabilities, of which there are none to be had
    "FS-16",  # may write file capabilities: without effect on a nosuid mount, and with no-new-privs
}
NOT_HERE = {"FS-04", "FS-24", "FS-54", "FS-55", "FS-62", "FS-64"}
"""About streams that the test redirects, inputs it does not give, and how full a disk gets."""


def _attacked(parent: belljar.Sandbox) -> belljar.Sandbox:
    """A branch in which the liar came to an end. One whose liar did not has no verdict."""
    for _ in range(3):
        (branch,) = parent.fork(1)
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            if branch.files.exists("finished"):
                return branch
            time.sleep(0.05)
        branch.close()
    raise AssertionError("the liar never came to an end")


def test_i1_a_copy_that_keeps_its_capabilities_gains_nothing(make: Make, planted: Fixtures) -> None:
    """ADR 11: whoever moves into a branch has every capability there, until it drops them. This one
    does not, and lies to the keeper that looks: the filter of system calls leaves them no use."""
    probes = {
        probe.id: probe.render(planted.values)
        for probe in load()
        if probe.judge == "inside"
        and probe.language == "python"
        and probe.boundary in ("filesystem", "network", "privilege")
        and not probe.needs
        and "kept" not in probe.not_behind
        and probe.runs == 1
        and probe.id not in SEE_THEM | NOT_HERE
    }
    assert len(probes) > 35
    parent = make(disk_bytes=24 << 20, network=[planted.values["ALLOWED_HOST"]])
    parent.files.write("probes.json", json.dumps(probes))
    parent.run(LIAR)
    branch = _attacked(parent)
    status = branch.files.read_text("finished")
    assert "CapEff:\t" in status and "CapEff:\t0000000000000000" not in status
    said = {name: branch.files.read_text(name) for name in probes}
    branch.close()
    broken = {name: text for name, text in said.items() if f"PROBE {name} HELD" not in text}
    assert not broken, "\n".join(f"{k}: {v}" for k, v in broken.items())


# -- nothing is left out silently ----------------------------------------------------------------


@pytest.mark.parametrize(
    "option", [{"filter": "deny"}, {"language_level": "restricted"}, {"fresh_exec": True}]
)
def test_p1_a_control_that_a_kept_sandbox_lacks_is_refused(
    jar: belljar.Belljar, option: dict[str, Any]
) -> None:
    with pytest.raises(Unsupported), belljar.Sandbox(jar, **option) as box:
        box.run("1")
