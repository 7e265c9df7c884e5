"""Files in and out (S2, I2, L4)."""

from __future__ import annotations

from hashlib import sha256

from belljar.jar import Belljar
from belljar.testing.base import Suite

TRY = """
def attempt(what, act):
    try:
        act()
        print(what, 'worked')
    except OSError as error:
        print(what, 'refused')
"""


class Files(Suite):
    def test_s2_files_go_in_and_come_out(self, jar: Belljar) -> None:
        self.needs("files")
        code = """
from pathlib import Path
text = Path('given.txt').read_text() + Path('below/deep/other.bin').read_bytes().hex()
Path('/data/output/sub').mkdir()
Path('/data/output/sub/made.txt').write_text(text)
Path('changed.txt').write_text('new')
Path('/workspace/empty').touch()
Path('/tmp/scratch').write_text('stays behind')
"""
        given: dict[str, str | bytes] = {
            "given.txt": "né",
            "below/deep/other.bin": b"\0\xff",
            "changed.txt": "old",
            "same.txt": "same",
        }
        result = jar.run(code, files=given, engine=self.engine)
        assert result.status == "ok", result.stderr
        assert {file.path: file.content for file in result.files} == {
            "/data/output/sub/made.txt": "né00ff".encode(),
            "/workspace/changed.txt": b"new",
            "/workspace/empty": b"",
        }

    def test_s2_modules_beside_the_code_can_be_imported(self, jar: Belljar) -> None:
        self.needs("files")
        files = {"beside.py": "answer = 42", "package/__init__.py": "from .part import name"}
        files["package/part.py"] = "name = 'part'"
        code = "import beside, package\nprint(beside.answer, package.name)"
        result = jar.run(code, files=files, engine=self.engine)
        assert result.stdout == "42 part\n", result.stderr

    def test_s2_inputs_can_be_read_and_not_changed(self, jar: Belljar) -> None:
        self.needs("files")
        code = f"""{TRY}
import os
print(open('/data/input/table.csv').read(), sorted(os.listdir('/data/input')))
print(open('/data/input/sub/x.bin', 'rb').read())
attempt('write', lambda: open('/data/input/table.csv', 'w'))
attempt('append', lambda: open('/data/input/sub/x.bin', 'ab').write(b'x'))
attempt('create', lambda: open('/data/input/new', 'w'))
attempt('create below', lambda: open('/data/input/sub/new', 'w'))
attempt('remove', lambda: os.remove('/data/input/table.csv'))
attempt('rename', lambda: os.rename('/data/input/table.csv', '/data/input/x'))
attempt('folder', lambda: os.mkdir('/data/input/folder'))
"""
        inputs: dict[str, str | bytes] = {"table.csv": "a,b", "sub/x.bin": b"\1\2"}
        result = jar.run(code, inputs=inputs, engine=self.engine)
        lines = result.stdout.splitlines()
        assert lines[:2] == ["a,b ['sub', 'table.csv']", r"b'\x01\x02'"], result.stderr
        assert [line.split()[-1] for line in lines[2:]] == ["refused"] * 7
        assert result.files == (), "inputs do not come back"

    def test_s2_a_large_input_arrives_whole(self, jar: Belljar) -> None:
        self.needs("files")
        content = bytes(range(256)) * 16 * 1024
        code = (
            "import hashlib\ndata = open('/data/input/big', 'rb').read()\n"
            "print(len(data), hashlib.sha256(data).hexdigest())"
        )
        result = jar.run(code, inputs={"big": content}, engine=self.engine, timeout_s=60)
        assert result.stdout == f"{len(content)} {sha256(content).hexdigest()}\n", result.stderr

    def test_i2_only_the_writable_places_are_writable(self, jar: Belljar) -> None:
        code = f"""{TRY}
for place in ('/workspace', '/tmp', '/data/output'):
    attempt(place, lambda: open(place + '/mine', 'w').write('x'))
for place in ('/', '/etc', '/usr', '/data', '/data/input', '/opt'):
    attempt(place, lambda: open(place + '/mine', 'w').write('x'))
"""
        result = jar.run(code, engine=self.engine)
        words = [line.split()[-1] for line in result.stdout.splitlines()]
        assert words == ["worked"] * 3 + ["refused"] * 6, result.stdout + result.stderr

    def test_s2_links_do_not_come_back(self, jar: Belljar) -> None:
        code = """
import os
open('/data/output/plain', 'w').write('plain')
try:
    os.symlink('/etc/passwd', '/data/output/link')
    os.symlink('/workspace/main.py', '/workspace/inside')
except OSError:
    pass
"""
        result = jar.run(code, engine=self.engine)
        assert result.status == "ok", result.stderr
        with_content = {file.name for file in result.files if file.content is not None}
        assert with_content == {"plain"}
        assert all(file.skipped for file in result.files if file.content is None)

    def test_l4_results_are_bounded(self, jar: Belljar) -> None:
        code = "for n in range(20):\n    open(f'/data/output/{n:02}', 'w').write('x' * 1000)"
        few = jar.run(code, result_files=3, engine=self.engine)
        assert len([file for file in few.files if file.content is not None]) == 3
        small = jar.run(code, result_bytes=5_500, engine=self.engine)
        assert len([file for file in small.files if file.content is not None]) == 5
        assert any(file.skipped for file in small.files)

    def test_s2_what_was_written_before_a_crash_comes_back(self, jar: Belljar) -> None:
        code = "open('/data/output/half', 'w').write('done so far')\nraise SystemExit(9)"
        result = jar.run(code, engine=self.engine)
        assert result.exit_code == 9
        assert [file.content for file in result.files] == [b"done so far"]
