"""Going back and branching (S6)."""

from __future__ import annotations

import pytest

from belljar.errors import InvalidRequest, Unsupported
from belljar.kept.sync import Sandbox
from belljar.testing.base import Suite


class KeptCopies(Suite):
    def test_s6_variables_and_files_go_back_together(self, box: Sandbox) -> None:
        box.run(
            "import os\nos.makedirs('/workspace/state/folder')\nx = [1]\n"
            "open('/workspace/state/kept', 'w').write('old')"
        )
        spoilt = box.run(
            "x.append(2)\nopen('/workspace/state/kept', 'w').write('new')\n"
            "open('/workspace/state/folder/extra', 'w').close()\nopen('/tmp/extra', 'w').close()"
        )
        assert spoilt.run_id is not None and spoilt.run_id in box.checkpoints()
        box.rollback(spoilt.run_id)
        seen = box.run(
            "x, open('/workspace/state/kept').read(), os.listdir('/workspace/state/folder'),"
            " os.path.exists('/tmp/extra')"
        )
        assert seen.value == "([1], 'old', [], False)", seen.stderr
        again = box.run("open('/workspace/state/kept', 'a').write('er'); x.append(3); x")
        assert again.value == "[1, 3]", "the code may change what came back"

    def test_s6_old_checkpoints_go_and_that_is_visible(self, box: Sandbox) -> None:
        for _ in range(10):
            last = box.run("1")
        assert last.run_id is not None
        assert box.checkpoints() == tuple(range(last.run_id - 7, last.run_id + 1))
        with pytest.raises(InvalidRequest, match="no checkpoint"):
            box.rollback(1)

    def test_s6_branches_are_independent_or_refused(self, box: Sandbox) -> None:
        box.run("x = [1]\nopen('/workspace/branched', 'w').write('both')")
        if not self.can.branches:
            with pytest.raises(Unsupported, match="branch") as refusal:
                box.fork()
            assert self.engine in refusal.value.message and "jail" in refusal.value.hint
            assert box.run("x").value == "[1]"
            return
        draw = "import os, random\nrandom.random(), os.urandom(8)"
        left, right = box.fork(2)
        with left, right:
            left.run("x.append(2)\nopen('/workspace/branched', 'a').write(' left')")
            assert left.run("x, open('/workspace/branched').read()").value == (
                "([1, 2], 'both left')"
            )
            assert right.run("x, open('/workspace/branched').read()").value == "([1], 'both')"
            assert len({one.run(draw).value for one in (box, left, right)}) == 3
        assert box.run("x, open('/workspace/branched').read()").value == "([1], 'both')"

    def test_i5_packages_are_refused_where_nothing_can_be_mounted(self, box: Sandbox) -> None:
        if self.can.mounts:
            pytest.skip(f"{self.engine} can mount packages")
        with pytest.raises(Unsupported, match="package") as refusal:
            box.install("humanize")
        assert self.engine in refusal.value.message and refusal.value.hint
