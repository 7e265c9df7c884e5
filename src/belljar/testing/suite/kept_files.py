"""Files of a kept sandbox, from outside and from inside (S2, L4)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from belljar.errors import SandboxFileError, SandboxFileMissing
from belljar.kept.sync import Sandbox
from belljar.testing.base import Suite

LARGE = 3 << 20


class KeptFiles(Suite):
    def test_s2_both_sides_see_and_change_the_same_files(self, box: Sandbox) -> None:
        box.files.write("data/in.csv", "a,b\n")
        assert box.run("open('/workspace/data/in.csv', 'a').write('1,2\\n')").value == "4"
        assert box.files.read("data/in.csv") == b"a,b\n1,2\n"
        box.run("open('/data/output/out', 'wb').write(b'made inside')")
        box.files.move("/data/output/out", "data/moved")
        assert box.files.read("data/moved") == b"made inside"
        found = {(info.name, info.kind, info.size) for info in box.files.list("data")}
        assert found == {("in.csv", "file", 8), ("moved", "file", 11)}
        box.files.mkdir("made/outside")
        emptied = box.run("import os, shutil\nos.rmdir('/workspace/made/outside')")
        assert emptied.status == "ok", emptied.stderr
        box.files.remove("data", recursive=True)
        assert not box.files.exists("data")
        with pytest.raises(SandboxFileMissing):
            box.files.stat("data/in.csv")

    def test_s2_large_files_go_in_and_out(self, box: Sandbox, tmp_path: Path) -> None:
        content = hashlib.shake_128(b"belljar").digest(LARGE)
        (tmp_path / "large").write_bytes(content)
        box.files.upload(tmp_path / "large", "large")
        seen = box.run(
            "import hashlib\nhashlib.sha256(open('/workspace/large', 'rb').read()).hexdigest()"
        )
        assert seen.value == repr(hashlib.sha256(content).hexdigest()), seen.stderr
        box.files.download("large", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == content
        box.files.remove("large")

    def test_i2_links_are_told_and_not_followed(self, box: Sandbox) -> None:
        made = box.run(
            "import os\nos.makedirs('/workspace/odd')\n"
            "os.symlink('/etc/passwd', '/workspace/odd/l')\n"
            "os.symlink('/etc', '/workspace/odd/folder')\nos.mkfifo('/workspace/odd/fifo')"
        )
        assert made.status == "ok", made.stderr
        kinds = {info.name: info.kind for info in box.files.list("odd")}
        assert kinds == {"l": "link", "folder": "link", "fifo": "fifo"}
        for path in ("odd/l", "odd/folder/passwd", "odd/fifo"):
            with pytest.raises(SandboxFileError):
                box.files.read(path)
        with pytest.raises(SandboxFileError):
            box.files.write("odd/folder/new", b"")
        box.files.remove("odd", recursive=True)

    def test_l4_the_disk_has_an_end_also_from_outside(self, box: Sandbox) -> None:
        content = bytes(8 << 20)
        with pytest.raises(SandboxFileError):
            for number in range(20):
                box.files.write(f"/tmp/filler-{number}", content)
        for info in box.files.list("/tmp"):
            box.files.remove(info.path, recursive=True)
        assert box.run("1 + 1").value == "2"
