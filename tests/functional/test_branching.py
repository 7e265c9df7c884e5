"""Going back and branching (S6): variables and files, in milliseconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

import belljar
from belljar.errors import InvalidRequest, SandboxEnded


@pytest.fixture
def box(jar: belljar.Belljar) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(jar, environment="base", max_runs=100) as box:
        yield box


def test_s6_rollback_brings_back_variables_and_files(box: belljar.Sandbox) -> None:
    box.run("import os\nx = [1]\nopen('kept', 'w').write('old')\nos.mkdir('folder')")
    spoilt = box.run(
        "x.append(2)\nopen('kept', 'w').write('new')\nopen('extra', 'w').close()\n"
        "open('folder/deep', 'w').close()\nopen('/tmp/t', 'w').close()\nos.symlink('kept', 'link')"
    )
    assert spoilt.run_id is not None
    box.rollback(spoilt.run_id)
    code = (
        "x, open('kept').read(), sorted(os.listdir('.')), os.listdir('folder'), os.listdir('/tmp')"
    )
    assert box.run(code).value == "([1], 'old', ['folder', 'kept'], [], [])"


def test_s6_a_deleted_file_comes_back_and_one_checkpoint_serves_twice(
    box: belljar.Sandbox,
) -> None:
    box.run("open('f', 'w').write('content'); import os")
    for _ in range(2):
        run_id = box.run("os.remove('f')").run_id
        assert run_id is not None
        box.rollback(run_id)
        assert box.run("open('f').read()").value == "'content'"


def test_s6_a_branch_can_go_back_and_on(box: belljar.Sandbox) -> None:
    box.run("x = 1")
    (branch,) = box.fork()
    branch.run("y = 2")
    spoilt = branch.run("x = None")
    branch.rollback(spoilt.run_id)
    result = branch.run("x, y")
    assert (result.status, result.value) == ("ok", "(1, 2)")
    lost = branch.run("import os; os._exit(1)")
    assert lost.state_kept is False
    branch.rollback(lost.run_id)
    assert branch.run("x, y").value == "(1, 2)"
    branch.close()


def test_s6_the_oldest_checkpoints_go_first_and_that_is_visible(jar: belljar.Belljar) -> None:
    with belljar.Sandbox(jar, environment="base", checkpoints=2) as box:
        for _ in range(4):
            box.run("1")
        assert box.checkpoints() == (3, 4)
        with pytest.raises(InvalidRequest, match="no checkpoint before run 1"):
            box.rollback(1)
    with belljar.Sandbox(jar, environment="base", checkpoints=0) as box:
        box.run("1")
        assert box.checkpoints() == ()


def test_s6_branches_are_independent_in_memory_files_randomness_and_processes(
    box: belljar.Sandbox,
) -> None:
    box.run("import os, random\nx = [0]\nopen('f', 'w').write('parent')\nrandom.seed(1)")
    left, right = box.fork(2)
    left.run("x.append('left'); open('f', 'w').write('left')")
    right.run("x.append('right')")
    assert left.run("x, open('f').read()").value == "([0, 'left'], 'left')"
    assert right.run("x, open('f').read()").value == "([0, 'right'], 'parent')"
    assert box.run("x, open('f').read()").value == "([0], 'parent')"
    drawn = {one.run("random.random()").value for one in (left, right)}
    assert len(drawn) == 2
    assert left.run("os.getuid(), os.uname().nodename").value == "(1000, 'belljar')"
    left.close()
    right.close()


def test_i1_a_branch_sees_no_process_but_its_own(jar: belljar.Belljar) -> None:
    with belljar.Sandbox(jar, environment="base", checkpoints=0) as box:
        left, right = box.fork(2)
        right.start(["sleep", "60"])
        seen = left.run(
            "import os; {int(p) for p in os.listdir('/proc') if p.isdigit()} - {1, os.getpid()}"
        )
        assert seen.value == "set()"
        left.close()
        right.close()


def test_s6_one_failed_child_does_not_lose_its_siblings(box: belljar.Sandbox) -> None:
    box.run("x = 5")
    dying, living = box.fork(2)
    assert dying.run("import os; os.kill(-1, 9); os.kill(os.getpid(), 9)").state_kept is False
    dying.close()
    assert living.run("x").value == "5"
    assert box.run("x").value == "5"
    living.close()


def test_s6_branches_outlive_their_parent_and_can_branch_themselves(jar: belljar.Belljar) -> None:
    parent = belljar.Sandbox(jar, environment="base")
    parent.run("x = 1")
    (child,) = parent.fork()
    parent.close()
    with pytest.raises(SandboxEnded):
        parent.run("x")
    child.run("x += 1")
    (grandchild,) = child.fork()
    assert grandchild.run("x += 1; x").value == "3"
    assert child.run("x").value == "2"
    child.close()
    grandchild.close()


def test_s6_a_branch_from_before_a_run(box: belljar.Sandbox) -> None:
    box.run("x = 'before'; open('f', 'w').write('1')")
    run_id = box.run("x = 'after'; open('f', 'w').write('2')").run_id
    (child,) = box.fork(at=run_id)
    assert child.run("x, open('f').read()").value == "('before', '1')"
    assert box.run("x, open('f').read()").value == "('after', '2')"
    child.close()


def test_s6_an_open_file_of_the_parent_is_not_written_by_the_child(box: belljar.Sandbox) -> None:
    box.run("f = open('log', 'w'); f.write('parent'); f.flush()")
    (child,) = box.fork()
    child.run("f.write(' child'); f.flush()")
    assert child.run("open('log').read()").value == "'parent child'"
    assert box.run("open('log').read()").value == "'parent'"
    child.close()


def test_s6_a_removed_file_that_is_open_is_not_written_by_the_child(box: belljar.Sandbox) -> None:
    box.run("g = open('gone', 'w+'); g.write('parent'); g.flush()\nimport os; os.remove('gone')")
    (child,) = box.fork()
    child.run("g.write(' child'); g.flush()")
    assert child.run("g.seek(0); g.read()").value == "'parent child'"
    assert box.run("g.seek(0); g.read()").value == "'parent'"
    child.close()


def test_s6_an_open_pipe_of_the_parent_is_nothing_to_the_child(box: belljar.Sandbox) -> None:
    """Opening it again would wait for somebody at its other end."""
    box.run("import os; os.mkfifo('pipe'); p = os.open('pipe', os.O_RDWR); os.write(p, b'mine')")
    (child,) = box.fork()
    written = child.run("os.write(p, b'other')")
    assert written.error and written.error.name == "BrokenPipeError"
    assert child.run("os.read(p, 10)").status == "error"
    assert box.run("os.read(p, 10)").value == "b'mine'"
    child.close()


def test_s6_open_files_wait_for_many_others(box: belljar.Sandbox) -> None:
    """The copy of the interpreter is there before all files are."""
    box.run("for n in range(400): open(f'many{n}', 'w').write('x' * 5000)")
    box.run("h = open('zzz', 'w'); h.write('parent'); h.flush()")
    (child,) = box.fork()
    child.run("h.write(' child'); h.flush()")
    assert child.run("open('zzz').read()").value == "'parent child'"
    assert box.run("open('zzz').read()").value == "'parent'"
    child.close()


def test_i1_a_branch_has_no_capability_and_no_way_up(box: belljar.Sandbox) -> None:
    """Joining its namespaces gave it every capability in them for a moment."""
    (child,) = box.fork()
    code = (
        "import os\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(*(status[name].strip() for name in"
        " ('CapPrm', 'CapEff', 'CapBnd', 'CapInh', 'CapAmb')))"
    )
    assert child.run(code).stdout.split() == ["0" * 16] * 5
    attempts = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def tried(result): return result == 0\n"
        "[tried(libc.unshare(0x10000000)), tried(libc.mount(b'x', b'/tmp', b'tmpfs', 0, None)),"
        " tried(libc.sethostname(b'x', 1)), tried(libc.chroot(b'/tmp')),"
        " tried(libc.setns(os.open('/proc/1/ns/user', os.O_RDONLY) if os.access('/proc/1/ns/user',"
        " os.R_OK) else 0, 0))]"
    )
    assert child.run(attempts).value == str([False] * 5)
    child.close()


DRAWN = """
import ctypes, os, random, sqlite3, ssl, tempfile, uuid
def drawn():
    return {
        "random": random.random(),
        "ssl": ssl.RAND_bytes(8).hex(),
        "sqlite": db.execute("select hex(randomblob(8))").fetchone()[0],
        "node": uuid.uuid1().node,
        "sequence and time": uuid.uuid1().hex,
        "uuid4": uuid.uuid4().hex,
        "name": os.path.basename(tempfile.mktemp()),
    }
db = sqlite3.connect(":memory:")
drawn()
"""


def test_s6_no_two_branches_draw_the_same_random_numbers(box: belljar.Sandbox) -> None:
    """Not even where a library has a state of its own that it seeded before the fork."""
    box.run(DRAWN)
    left, right = box.fork(2)
    (deep,) = left.fork()
    family = (box, left, right, deep)
    draws = [ast.literal_eval("".join(str(one.run("drawn()").value).split("\n"))) for one in family]
    alike = {name for name in draws[0] if len({draw[name] for draw in draws}) < len(draws)}
    assert alike == set()
    for one in (deep, left, right):
        one.close()


def test_s6_a_branch_has_no_pid_of_those_it_was_copied_from(box: belljar.Sandbox) -> None:
    """It is how libraries that hide their state notice the copy, and take a new seed."""
    family = [box]
    for _ in range(3):
        family += family[-1].fork()
    pids = [one.run("import os; os.getpid()").value for one in family]
    assert len(set(pids)) == len(pids)
    for one in reversed(family[1:]):
        one.close()


def test_s6_keys_drawn_after_a_rollback_are_new(box: belljar.Sandbox) -> None:
    box.run(DRAWN)
    draw = "ssl.RAND_bytes(8).hex(), db.execute('select hex(randomblob(8))').fetchone()[0]"
    first = box.run(draw)
    box.rollback(first.run_id)
    one, two = (ast.literal_eval(str(result.value)) for result in (first, box.run(draw)))
    assert one[0] != two[0] and one[1] != two[1]
