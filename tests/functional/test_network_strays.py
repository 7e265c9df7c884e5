"""N1, P2: what code dials or sends past the gateway reaches nothing, and is told all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar import Allow, Belljar, Result, Sandbox, Settings
from belljar.trail.trail import Trail

RULE = Allow("api.test")
STRAYS = """
import socket
def tried(kind, family, where):
    with socket.socket(family, kind) as stray:
        try:
            stray.connect(where)
            stray.send(b"x")
        except OSError:
            pass
for port in (53, 443):
    tried(socket.SOCK_STREAM, socket.AF_INET, ("198.51.100.1", port))
    tried(socket.SOCK_DGRAM, socket.AF_INET, ("198.51.100.1", port))
"""


def strays(result: Result) -> list[int]:
    assert all(one.verdict == "refused" and one.why for one in result.egress)
    return [one.count for one in result.egress if one.scheme == "direct"]


@pytest.mark.parametrize("ending", ["", "import time; time.sleep(100)", "import os; os.kill(0, 9)"])
def test_a_run_however_it_ends(jar: Belljar, ending: str) -> None:
    result = jar.run(STRAYS + ending, engine="jail", network=RULE, timeout_s=2)
    assert strays(result) == [4]


def test_code_that_stays_with_the_gateway_has_none(jar: Belljar) -> None:
    assert strays(jar.run("print(1)", engine="jail", network=RULE)) == []


def test_in_a_kept_sandbox_each_is_told_once(tmp_path: Path) -> None:
    trail = f"sqlite:///{tmp_path}/trail.db"
    with (
        Belljar(Settings(trail=trail)) as jar,
        Sandbox(jar, engine="jail", network=RULE) as sandbox,
    ):
        assert strays(sandbox.run(STRAYS)) == [4]
        assert strays(sandbox.run("1")) == []
        with sandbox.fork(1)[0] as copy:
            assert strays(copy.run(STRAYS)) == [4]
        assert strays(sandbox.run(STRAYS)) == [4]
    with Trail(trail) as written:
        assert [line["count"] for line in written.egress()] == [4, 4, 4]
