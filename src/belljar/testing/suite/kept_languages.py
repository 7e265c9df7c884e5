"""State of languages other than Python (S1, R2)."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from belljar.errors import Unsupported
from belljar.jar import Belljar
from belljar.kept.sync import Sandbox
from belljar.testing.base import Suite


class _Steps(NamedTuple):
    begin: str
    fail: str
    spin: str
    look: str
    """Prints what `begin` left and what it is given."""


_JAVASCRIPT = _Steps(
    begin="const x = [1]; process.chdir('/tmp')",
    fail="x.push(2); throw new Error('on purpose')",
    spin="while (true) {}",
    look="console.log(x.length, process.cwd(), require('fs').readFileSync(0, 'utf8').trim())",
)
STEPS = {
    "javascript": _JAVASCRIPT,
    "typescript": _JAVASCRIPT._replace(begin="const x: number[] = [1]; process.chdir('/tmp')"),
    "bash": _Steps(
        begin="x=1; two() { echo $x; }; cd /tmp",
        fail="x=2; set -e; false",
        spin="while :; do :; done",
        look='read given; echo "$(two) $PWD $given"',
    ),
}


class KeptLanguages(Suite):
    @pytest.mark.parametrize(
        "language", ["javascript", pytest.param("typescript", marks=pytest.mark.slow), "bash"]
    )
    def test_s1_other_languages_have_a_state_too(self, jar: Belljar, language: str) -> None:
        self.needs("kept")
        if self.can.languages is not None and language not in self.can.languages:
            pytest.skip(f"{self.engine} declares that it cannot run {language}")
        steps = STEPS[language]
        limit_s = min(120, self.seconds(20))
        with Sandbox(jar, engine=self.engine, language=language, timeout_s=limit_s) as box:
            begun = box.run(steps.begin)
            assert (begun.status, begun.state_kept) == ("ok", True), begun.stderr
            failed = box.run(steps.fail)
            assert (failed.status, failed.state_kept) == ("error", True), failed
            stopped = box.run(steps.spin, timeout_s=max(0.5, self.seconds(0.2)))
            assert stopped.status == "timeout"
            if self.time_scale > 2 and not stopped.state_kept:
                return  # it has two seconds to react, whatever it runs on
            assert stopped.state_kept
            seen = box.run(steps.look, stdin="given\n")
            assert seen.stdout == "2 /tmp given\n", seen.stderr
            with pytest.raises(Unsupported, match="Python"):
                box.rollback(1)
