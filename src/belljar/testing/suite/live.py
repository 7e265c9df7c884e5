"""What can be seen and given while the code runs (L6, L7)."""

from __future__ import annotations

import os
import threading
import time

import pytest

from belljar.jar import Belljar
from belljar.model import Usage
from belljar.testing.base import Suite


class Live(Suite):
    def test_output_comes_while_the_code_runs(self, jar: Belljar) -> None:
        pause_s = self.seconds(1)
        code = f"import time\nprint('first', flush=True)\ntime.sleep({pause_s})\nprint('second')"
        seen: list[tuple[float, str, bytes]] = []
        result = jar.run(
            code,
            engine=self.engine,
            timeout_s=min(120, self.seconds(20)),
            on_output=lambda stream, data: seen.append((time.monotonic(), stream, data)),
        )
        ended = time.monotonic()
        assert result.stdout == "first\nsecond\n", result.stderr
        assert (
            b"".join(data for _, stream, data in seen if stream == "stdout") == b"first\nsecond\n"
        )
        assert ended - seen[0][0] > pause_s / 2, "the first line came only with the end"

    def test_standard_input_comes_while_the_code_runs(self, jar: Belljar) -> None:
        """Each line is written after the answer to the last one was seen: a conversation."""
        self.needs("live_stdin")
        reading, writing = os.pipe()
        answers = threading.Semaphore(0)
        code = "import sys\nfor line in sys.stdin:\n    print('got', line.strip(), flush=True)"
        try:
            future = jar.submit(
                code,
                engine=self.engine,
                stdin_descriptor=reading,
                timeout_s=min(120, self.seconds(20)),
                on_output=lambda stream, data: answers.release(),
            )
            for word in (b"one\n", b"two\n"):
                os.write(writing, word)
                assert answers.acquire(timeout=self.seconds(20)), f"no answer to {word!r}"
        finally:
            os.close(writing)
        result = future.result(self.seconds(30))
        os.close(reading)
        assert (result.status, result.stdout) == ("ok", "got one\ngot two\n"), result.stderr

    def test_l7_usage_is_reported_while_the_code_runs(self, jar: Belljar) -> None:
        seen: list[Usage] = []
        busy_s = self.seconds(1)
        jar.run(
            f"import time\nend = time.monotonic() + {busy_s}\nwhile time.monotonic() < end: pass",
            engine=self.engine,
            timeout_s=min(120, self.seconds(20)),
            on_usage=seen.append,
        )
        assert seen, "never told"
        assert seen[-1].cpu_ms > 0

    def test_a_callback_that_raises_ends_the_run(self, jar: Belljar) -> None:
        def objects(stream: str, data: bytes) -> None:
            raise ZeroDivisionError("the caller's own")

        started = time.monotonic()
        with pytest.raises(ZeroDivisionError, match="the caller's own"):
            jar.run(
                f"import time\nprint(1, flush=True)\ntime.sleep({self.seconds(30)})",
                engine=self.engine,
                timeout_s=min(120, self.seconds(40)),
                on_output=objects,
            )
        assert time.monotonic() - started < self.seconds(20)
