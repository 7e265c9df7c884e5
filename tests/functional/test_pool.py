"""F1, A1: sandboxes that wait, never used twice; and the life of the jar that keeps them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar import Belljar, Settings

Eventually = Callable[..., None]

PLANT = """
import builtins, json, os, sys, threading
places = ['/tmp/planted', '/workspace/planted', '/dev/shm/planted', '/data/output/planted']
print([hasattr(builtins, 'planted'), hasattr(json, 'planted'), 'planted' in sys.modules,
       'PLANTED' in os.environ, *map(os.path.exists, places)])
builtins.planted = json.planted = sys.modules['planted'] = 1
os.environ['PLANTED'] = '1'
for place in places: open(place, 'w').write('x')
sys.path.append('/planted'); sys.argv.append('planted'); print(sys.path.count('/planted'))
"""


def test_no_sandbox_is_handed_out_twice(jar: Belljar) -> None:
    """F1, R3: what one run plants, none of the next fifty finds."""
    clean = f"{[False] * 8}\n1\n"
    assert [jar.run(PLANT).stdout for _ in range(51)] == [clean] * 51


def test_the_pool_refills(traces: Any, eventually: Eventually) -> None:
    """F1: in the background, to its size and not beyond."""
    with Belljar(Settings(pool_size=3, pool_maximum=3)) as jar:
        assert traces.sandboxes() == set()
        used: set[int] = set()
        for _ in range(5):
            jar.run("pass")
            eventually(lambda: len(traces.sandboxes()), 3)
            used |= traces.sandboxes()
        assert len(used) >= 7


def test_a_pool_of_none(traces: Any, eventually: Eventually) -> None:
    """F1: pool_size=0 keeps nothing waiting; every run makes its own."""
    with Belljar(Settings(pool_size=0)) as jar:
        for _ in range(3):
            assert jar.run(PLANT).stdout == f"{[False] * 8}\n1\n"
        eventually(lambda: len(traces.sandboxes()), 0)
        assert len(traces.zygotes()) == 1


def test_the_pool_grows_with_demand_and_shrinks_when_idle(
    traces: Any, eventually: Eventually
) -> None:
    """F1: twenty callers at once, then nobody."""
    with Belljar(Settings(pool_size=2, pool_maximum=12, pool_idle_s=1.5)) as jar:
        jar.run("pass")
        threads = [
            threading.Thread(target=lambda: [jar.run("print(1)") for _ in range(5)])
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: 2 < len(traces.sandboxes()) <= 12, True, within_s=1.4)
        eventually(lambda: len(traces.sandboxes()), 2, within_s=6)


@pytest.mark.parametrize("name", ["base", "python", "bash"])
def test_warming_ahead(traces: Any, name: str) -> None:
    """F1: when it returns they wait; an environment's name or a language's."""
    with Belljar(Settings(pool_size=1, pool_maximum=6)) as jar:
        jar.warm(name, 5)
        assert len(traces.sandboxes()) == 5
        jar.warm(name, 3)
        assert len(traces.sandboxes()) == 5
        jar.warm(name, 100)
        assert len(traces.sandboxes()) == 6


def test_the_size_of_the_disk_is_not_the_pools(jar: Belljar) -> None:
    """L4, F1: a run that asks for another size gets one of its own making."""
    code = (
        "import os; s = os.statvfs('/workspace'); print(s.f_frsize * s.f_blocks >> 20, s.f_files)"
    )
    assert jar.run(code).stdout == "100 10000\n"
    assert jar.run(code, disk_bytes=7 << 20, disk_files=500).stdout == "7 500\n"
    assert jar.run(code).stdout == "100 10000\n"


def test_many_threads_share_one_jar(jar: Belljar) -> None:
    """F2: fifty callers, two hundred runs, every answer its own."""
    answers: dict[tuple[int, int], str] = {}

    def caller(number: int) -> None:
        for turn in range(4):
            answers[number, turn] = jar.run(
                "import sys; print(int(sys.stdin.read()) * 3)", stdin=str(number * 10 + turn)
            ).stdout

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {
        (number, turn): f"{(number * 10 + turn) * 3}\n" for number in range(50) for turn in range(4)
    }


def test_concurrency_is_bounded(traces: Any) -> None:
    """F2: further callers wait for their turn; none is refused."""
    with Belljar(Settings(pool_size=1, pool_maximum=1, concurrency=3)) as jar:
        futures = [jar.submit("import time; time.sleep(0.3); print(1)") for _ in range(9)]
        most = 0
        while not all(future.done() for future in futures):
            most = max(most, len(traces.sandboxes()))
            time.sleep(0.01)
        assert [future.result().stdout for future in futures] == ["1\n"] * 9
        assert most <= 3 + 1


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_killed_zygote_is_replaced(traces: Any, eventually: Eventually) -> None:
    """F1, R3: the machine's out-of-memory killer may take it; the next run works, nothing leaks."""
    with Belljar(Settings(pool_size=2, pool_maximum=2)) as jar:
        jar.run("pass")
        eventually(lambda: len(traces.sandboxes()), 2)
        descriptors, groups = traces.descriptors(), len(traces.groups())
        for _ in range(3):
            (zygote,) = traces.zygotes()
            started = threading.Event()
            running = jar.submit(
                "import time; print(1, flush=True); time.sleep(60)",
                on_output=lambda *_, started=started: started.set(),
            )
            assert started.wait(10)
            os.kill(zygote, signal.SIGKILL)
            assert running.result(timeout=10).status == "killed"
            eventually(lambda pid=zygote: gone(pid), True)
            assert jar.run("print('again')").stdout == "again\n"
            assert traces.zygotes() - {zygote}
        eventually(lambda: len(traces.sandboxes()), 2)
        eventually(lambda: len(traces.groups()), groups)
        eventually(lambda: traces.descriptors() <= descriptors, True)


def test_a_dead_sandbox_is_not_handed_out(traces: Any, eventually: Eventually) -> None:
    """F1: those that died while they waited are left out, and leave nothing behind."""
    with Belljar(Settings(pool_size=3, pool_maximum=3)) as jar:
        jar.run("pass")
        eventually(lambda: len(traces.sandboxes()), 3)
        descriptors, groups = traces.descriptors(), len(traces.groups())
        doomed = traces.sandboxes()
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        for pid in doomed:
            eventually(lambda pid=pid: gone(pid), True)
        time.sleep(0.1)
        for _ in range(4):
            assert jar.run("print('again')").stdout == "again\n"
        eventually(lambda: len(traces.sandboxes()), 3)
        eventually(lambda: len(traces.groups()), groups)
        eventually(lambda: traces.descriptors() <= descriptors, True)


def test_an_interrupted_caller_ends_its_run() -> None:
    """A1, R3: Ctrl-C in a program that waits for a run; the sandbox goes with it."""
    code = (
        "import belljar\n"
        "try:\n"
        "    belljar.run('import time\\nprint(1, flush=True)\\ntime.sleep(60)',"
        " on_output=lambda *_: print('started', flush=True))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "    print(belljar.run('print(2)').stdout, end='')\n"
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert program.stdout
    assert program.stdout.readline() == "started\n"
    program.send_signal(signal.SIGINT)
    rest, _ = program.communicate(timeout=20)
    assert (rest, program.returncode) == ("interrupted\n2\n", 0)


def test_a_forked_program_has_a_jar_of_its_own() -> None:
    """A1: `belljar.run` before and after os.fork, in parent and child."""
    code = (
        "import belljar, os, sys\n"
        "print(belljar.run('print(1)').stdout, end='', flush=True)\n"
        "pid = os.fork()\n"
        "print(belljar.run('print(2)').stdout, end='', flush=True)\n"
        "if pid:\n    assert os.waitpid(pid, 0)[1] == 0\n"
        "    print(belljar.run('print(3)').stdout, end='', flush=True)\n"
    )
    # Since Python 3.12 a fork beside threads warns, and a Belljar has one.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n2\n2\n3\n", "", 0)


# -- the life of a jar -----------------------------------------------------------------------------


def test_a_closed_belljar_says_so() -> None:
    """A1: whether it was ever used or not; closing again is harmless."""
    used, unused = Belljar(), Belljar()
    used.run("pass")
    for jar in (used, unused):
        jar.close()
        jar.close()
        with pytest.raises(belljar.Closed):
            jar.run("pass")
        with pytest.raises(belljar.Closed):
            jar.warm("base", 1)


def test_closing_ends_runs_that_are_under_way(traces: Any) -> None:
    """R3: neither the closing thread nor the waiting one hangs."""
    jar = Belljar()
    jar.run("pass")
    future = jar.submit("import time; time.sleep(60)")
    time.sleep(0.3)
    started = time.monotonic()
    jar.close()
    try:
        assert future.result(timeout=10).status == "killed"
    except belljar.Closed:
        pass
    assert time.monotonic() - started < 8
    assert traces.zygotes() == traces.processes() == set()


def test_the_shared_jar_cleans_up_at_exit(eventually: Callable[..., None]) -> None:
    """R3, A1: `belljar.run` alone, in a program that does nothing else."""
    code = (
        "import belljar, pathlib\n"
        "print(belljar.run('print(6 * 7)').stdout, end='')\n"
        "for i in pathlib.Path('/proc/self/fdinfo').iterdir():\n"
        "    try: text = i.read_text()\n"
        "    except OSError: continue\n"
        "    print(*[l.split()[1] for l in text.splitlines() if l.startswith('Pid:')], end=' ')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    answer, _, pids = done.stdout.partition("\n")
    assert (answer, done.stderr) == ("42", "")
    assert pids.split()

    def alive() -> list[str]:
        """Zombies are dead: the machine's first process may take its time to reap."""
        states = {pid: state_of(pid) for pid in pids.split()}
        return [pid for pid, state in states.items() if state not in ("", "Z")]

    eventually(alive, [], within_s=3)


def state_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
