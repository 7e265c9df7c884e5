"""A kept sandbox while something goes on in it: events, interruptions, programs (L6, L7, S3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from belljar.errors import SandboxLost, Unsupported
from belljar.kept import events
from belljar.kept.sync import Sandbox
from belljar.model import Result
from belljar.testing.base import Suite


class KeptLive(Suite):
    def test_l6_l7_events_come_while_the_code_runs(self, box: Sandbox) -> None:
        busy_s = self.seconds(0.6)
        code = (
            "import time, sys, belljar_guest\n"
            "print('one', flush=True)\nbelljar_guest.progress(0.5, 'half')\n"
            f"end = time.monotonic() + {busy_s}\nwhile time.monotonic() < end: pass\n"
            "print('two', file=sys.stderr)\n'last'"
        )
        seen = [(event, time.monotonic()) for event in box.stream(code)]
        printed = [event for event, _ in seen if isinstance(event, events.Printed)]
        assert [(one.stream, one.data) for one in printed] == [
            ("stdout", b"one\n"),
            ("stderr", b"two\n"),
        ]
        (progress,) = (event for event, _ in seen if isinstance(event, events.Progress))
        assert (progress.fraction, progress.message) == (0.5, "half")
        assert any(isinstance(event, events.Shown) for event, _ in seen)
        used = [event.usage.cpu_ms for event, _ in seen if isinstance(event, events.Used)]
        assert used and used[-1] > 0
        last, ended = seen[-1]
        assert isinstance(last, events.Ended) and last.result.value == "'last'"
        assert last.result.usage.cpu_ms >= used[-1] * 0.9
        assert last.result.usage.peak_memory_bytes > 0
        first = next(when for event, when in seen if isinstance(event, events.Printed))
        assert ended - first > busy_s / 2, "the first line came only with the end"

    def test_l6_a_run_is_interrupted_from_outside(self, box: Sandbox) -> None:
        box.run("x = 3")
        result = self.cut_short(box, box.interrupt)
        assert result.error is not None and result.error.name == "KeyboardInterrupt"
        assert result.state_kept and box.run("x").value == "3"

    def test_l6_a_run_is_killed_from_outside(self, box: Sandbox) -> None:
        result = self.cut_short(box, box.kill)
        assert (result.status, result.state_kept) == ("killed", False)
        with pytest.raises(SandboxLost):
            box.run("1")
        assert result.run_id is not None
        box.rollback(result.run_id)

    def cut_short(self, box: Sandbox, how: Callable[[], None]) -> Result:
        """As soon as it has begun."""
        begun = threading.Event()

        def cut() -> None:
            if begun.wait(self.seconds(20)):
                how()

        threading.Thread(target=cut, daemon=True).start()
        return box.run(
            "import time\nprint('up', flush=True)\ntime.sleep(100)",
            on_event=lambda event: begun.set() if isinstance(event, events.Printed) else None,
        )

    def test_l6_a_run_asks_for_more_time(self, box: Sandbox) -> None:
        limit_s = max(1.0, self.seconds(0.25))
        code = f"import belljar_guest, time\nbelljar_guest.extend({limit_s * 10})\n"
        result = box.run(f"{code}time.sleep({limit_s * 1.5})\n'done'", timeout_s=limit_s)
        assert result.value == "'done'", result

    def test_l5_a_flood_is_cut_in_the_middle_and_counted(self, box: Sandbox) -> None:
        result = box.run("print('start'); print('x' * 3_000_000); print('end')")
        assert result.stdout.startswith("start\n") and result.stdout.endswith("end\n")
        assert result.dropped.stdout > 1_000_000 and len(result.stdout) < 1_200_000

    # -- programs --------------------------------------------------------------------------------

    def test_s3_programs_run_beside_the_interpreter(self, box: Sandbox) -> None:
        self.needs("processes")
        box.run("open('/workspace/lines', 'w').write('b\\na\\n')")
        assert box.exec("sort lines | head -n 1; exit 4", shell=True).exit_code == 4
        sorted_ = box.exec(["sort", "-"], stdin="2\n1\n", env={"LC_ALL": "C"})
        assert (sorted_.stdout, sorted_.status) == ("1\n2\n", "ok"), sorted_.stderr
        assert box.exec(["sleep", "100"], timeout_s=0.5).status == "timeout"
        assert box.exec(["no-such-program"]).exit_code == 127

    def test_s3_a_program_is_fed_watched_found_again_and_killed(self, box: Sandbox) -> None:
        self.needs("processes")
        process = box.start("while read line; do echo got $line; done", shell=True)
        process.write("one\n")
        assert next(process.output()).data == b"got one\n"
        assert [one.process_id for one in box.processes()] == [process.process_id]
        assert box.run("1 + 1").value == "2", "the interpreter does not wait for it"
        box.process(process.process_id).kill()
        assert process.wait(self.seconds(10)).signal == 9
        assert box.processes() == []

    def test_s3_an_interactive_program_gets_a_terminal(self, box: Sandbox) -> None:
        program = "test -t 0 && stty size && read typed && echo got $typed"
        if not self.can.terminals:
            with pytest.raises(Unsupported, match="terminal") as refusal:
                box.start(program, shell=True, terminal=True)
            assert self.engine in refusal.value.message and refusal.value.hint
            return
        process = box.start(f"sleep {self.seconds(0.2)}; {program}", shell=True, terminal=True)
        process.resize(33, 99)
        process.write("this\n")
        said = process.wait(self.seconds(20)).stdout.replace("\r", "")
        assert "33 99\n" in said and said.endswith("got this\n"), said
