"""Sandboxes that live from run to run: what stays, what comes back, how they end (S1, S3)."""

from __future__ import annotations

import time

import pytest

from belljar.errors import SandboxEnded, SandboxLost
from belljar.jar import Belljar
from belljar.kept.sync import Sandbox
from belljar.testing.base import Suite

STUBBORN = """
import time
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pass
"""
PICTURE = b"\x89PNG\r\n\x1a\n not much of one"
SHOW = f"""
class Shown:
    def __repr__(self): return 'a thing'
    def _repr_html_(self): return '<b>thing</b>'
    def _repr_png_(self): return {PICTURE!r}
display(Shown())
print('between')
Shown()
"""


class Kept(Suite):
    def test_s1_state_stays(self, box: Sandbox) -> None:
        box.run("import os, math\nx = 41\nos.makedirs('deep')\nos.chdir('deep')")
        box.run("open('note', 'w').write('kept')\nos.environ['MINE'] = os.environ['GIVEN']")
        result = box.run("x + 1, math.pi > 3, os.getcwd(), open('note').read(), os.environ['MINE']")
        assert result.value == "(42, True, '/workspace/deep', 'kept', 'yes')", result.stderr
        assert (result.status, result.state_kept, result.engine) == ("ok", True, self.engine)
        box.run("os.chdir('/workspace')")

    def test_s1_a_run_that_fails_ends_only_itself(self, box: Sandbox) -> None:
        box.run("x = 1")
        failed = box.run("print('before')\nx = 2\n1 / 0")
        assert (failed.status, failed.exit_code, failed.stdout) == ("error", 1, "before\n")
        assert failed.error is not None and failed.error.name == "ZeroDivisionError"
        left = box.run("import sys\nx += 1\nsys.exit(7)")
        assert (left.status, left.exit_code, left.state_kept) == ("error", 7, True)
        assert box.run("x").value == "3"

    def test_s3_values_and_outputs(self, box: Sandbox) -> None:
        result = box.run(SHOW)
        assert (result.value, result.stdout) == ("a thing", "between\n"), result.stderr
        shown, last = result.outputs
        assert (shown.kind, last.kind) == ("display", "result")
        for output in (shown, last):
            assert output.data["text/html"] == "<b>thing</b>"
            assert output.data["image/png"] == PICTURE

    @pytest.mark.slow
    def test_s3_figures_come_without_being_saved(self, jar: Belljar) -> None:
        """A picture of the right size, and a table as a page and as records."""
        self.needs("kept")
        environments = self.can.environments
        if environments is not None and "data" not in environments:
            pytest.skip(f"{self.engine} declares that it has no data environment")
        with self.keep(jar, environment="data", timeout_s=120) as box:
            plot = "import matplotlib.pyplot as plt\nplt.figure(figsize=(3, 2), dpi=100)"
            (picture,) = box.run(f"{plot}\nplt.plot([1, 4, 2]); None").outputs
            content = picture.data["image/png"]
            assert isinstance(content, bytes) and content.startswith(b"\x89PNG")
            width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
            assert 150 < width <= 320 and 100 < height <= 220
            table = box.run("import pandas as pd\npd.DataFrame({'a': [1, 2]})").outputs[-1]
            assert "<table" in str(table.data["text/html"])

    def test_r4_standard_input_files_and_inputs(self, box: Sandbox) -> None:
        result = box.run("input(), input()", stdin="one\ntwo\n")
        assert result.value == "('one', 'two')", result.stderr
        seen = box.run(
            "open('/workspace/given/file.txt').read(), open('/data/input/given/input.txt').read()"
        )
        assert seen.value == "('a file', 'an input')", seen.stderr

    def test_s2_inputs_can_only_be_read(self, box: Sandbox) -> None:
        code = """
import os
for what in ("open('/data/input/given/input.txt', 'a')", "open('/data/input/new', 'w')",
             "os.remove('/data/input/given/input.txt')", "os.rmdir('/data/input/given')"):
    try:
        eval(what)
        print(what, 'worked')
    except OSError:
        print('refused')
"""
        assert box.run(code).stdout == "refused\n" * 4

    def test_l1_a_time_out_interrupts_and_keeps_the_state(self, box: Sandbox) -> None:
        """On an overloaded machine the interruption may come too late: it has three chances."""
        box.run("x = 7")
        for _ in range(3):
            result = box.run("while True: pass", timeout_s=0.5)
            assert result.status == "timeout"
            if result.state_kept:
                break
            assert result.run_id is not None
            box.rollback(result.run_id)
        assert result.state_kept
        assert box.run("x").value == "7"

    def test_l1_code_that_resists_is_ended_and_can_be_undone(self, box: Sandbox) -> None:
        box.run("x = 8")
        result = box.run(STUBBORN, timeout_s=0.5)
        assert (result.status, result.state_kept) == ("timeout", False)
        with pytest.raises(SandboxLost, match="time-out") as lost:
            box.run("x")
        assert "rollback" in lost.value.hint
        assert result.run_id is not None
        box.rollback(result.run_id)
        assert box.run("x").value == "8"

    def test_r1_code_that_ends_its_process_is_told(self, box: Sandbox) -> None:
        result = box.run("import os; os._exit(5)")
        assert (result.status, result.exit_code, result.state_kept) == ("error", 5, False)
        with pytest.raises(SandboxLost, match="the code ended it"):
            box.run("1")
        assert result.run_id is not None
        box.rollback(result.run_id)
        assert box.run("1 + 1").value == "2"

    def test_l2_a_state_lost_to_memory_is_told(self, jar: Belljar) -> None:
        self.needs("kept")
        with self.keep(jar, memory_bytes=self.small_memory_bytes) as box:
            box.run("x = 9")
            result = box.run("hoard = []\nwhile True: hoard.append(bytearray(4 << 20))")
            assert result.status == "out_of_memory", result
            if result.state_kept:  # it was refused the memory, and goes on
                box.run("del hoard")
            else:
                with pytest.raises(SandboxLost, match="memory"):
                    box.run("x")
                if not box.checkpoints():
                    return
                box.rollback(box.checkpoints()[-1])
            assert box.run("x").value == "9"

    def test_s1_a_number_of_runs_and_an_idle_time(self, jar: Belljar, box: Sandbox) -> None:
        """And two sandboxes do not meet: neither files nor random numbers are the same."""
        draw = "import os, random, uuid\nrandom.random(), uuid.uuid4(), os.urandom(8)"
        others = box.run(draw).value
        box.files.write("/tmp/mine", b"")
        with self.keep(jar, max_runs=2, idle_s=max(2, self.seconds(0.5))) as other:
            drawn = other.run(draw).value
            assert drawn and others and not set(drawn.split(", ")) & set(others.split(", "))
            assert other.run("os.path.exists('/tmp/mine')").value == "False"
            with pytest.raises(SandboxEnded, match="2 runs"):
                other.run("3")
            deadline = time.monotonic() + self.seconds(20)
            with pytest.raises(SandboxEnded, match="nothing was asked"):
                while time.monotonic() < deadline:
                    time.sleep(0.2)
                    other.processes()
                    other.files  # noqa: B018 - raises once it has ended

    def keep(self, jar: Belljar, **options: object) -> Sandbox:
        return Sandbox(jar, engine=self.engine, **{"environment": "base", **options})
