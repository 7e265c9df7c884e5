"""What happens when the host itself runs short, or is told to stop: clear errors, nothing left."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

from belljar import Belljar, BelljarError, Closed, Settings

SHORT = """
import collections, glob, json, os, resource, threading, time
import belljar

resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
jar = belljar.Belljar(belljar.Settings(pool_size=0))
answers = collections.Counter()


def attempt():
    try:
        answers[jar.run("import time; time.sleep(0.3)").status] += 1
    except BaseException as error:
        answers[f"{isinstance(error, belljar.BelljarError)} {type(error).__name__}"] += 1


threads = [threading.Thread(target=attempt) for _ in range(40)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
after = jar.run("print('again')").stdout
jar.close()
groups = glob.glob(f"/sys/fs/cgroup/**/belljar-{os.getpid()}-*/*/", recursive=True)
print(json.dumps([dict(answers), after, len(os.listdir("/proc/self/fd")), groups]))
"""


def test_running_out_of_descriptors_costs_single_runs_and_leaks_nothing() -> None:
    """R3"""
    done = subprocess.run(
        [sys.executable, "-c", SHORT], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    answers, after, descriptors, groups = json.loads(done.stdout)
    assert sum(answers.values()) == 40
    assert set(answers) <= {"ok", "True EngineError"}
    assert answers.get("True EngineError", 0) > 0, "the limit was never reached: the test is void"
    assert after == "again\n"
    assert descriptors < 20
    assert groups == []


def test_a_host_without_core_files_runs_code() -> None:
    """I1: limits are lowered, never raised above what the host process has."""
    run = f"{sys.executable} -c \"import belljar; print(belljar.run('print(1)').stdout)\""
    done = subprocess.run(
        ["bash", "-c", f"ulimit -Hc 0; {run}"], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("1", "")


def test_closing_ends_every_run_under_way_with_closed() -> None:
    """R3"""
    jar = Belljar(Settings(pool_size=2))
    jar.run("print(1)")
    answers: list[str] = []

    def attempt(code: str) -> None:
        try:
            answers.append(jar.run(code).status)
        except Closed:
            answers.append("closed")

    threads = [
        threading.Thread(target=attempt, args=("import time; time.sleep(60)",)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    jar.close()
    for thread in threads:
        thread.join(timeout=30)
    assert answers == ["closed"] * 6
    with pytest.raises(Closed):
        jar.run("print(1)")


@pytest.mark.parametrize(
    "wrong",
    [{"concurrency": 0}, {"pool_size": -1}, {"pool_maximum": 1.5}, {"required": "memory"}],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    """R5"""
    with pytest.raises(BelljarError, match=f"settings.{next(iter(wrong))}"):
        Settings(**wrong)  # type: ignore[arg-type]
