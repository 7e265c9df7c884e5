"""A2, S1, S6: `belljar shell` as a person uses it, in a real terminal, and without one."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "belljar.cli.main", "shell"]
PROMPT = re.compile(r"(?:\w+ )?\[\d+\]> $")


class Terminal:
    """A shell in a pseudo-terminal; `say` types a line and waits for the next prompt."""

    def __init__(self, state: Path, *arguments: str, **variables: str) -> None:
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            environment = {**os.environ, "TERM": "dumb", "XDG_STATE_HOME": str(state), **variables}
            os.execve(COMMAND[0], [*COMMAND, *arguments], environment)

    def say(self, *lines: str) -> str:
        """What came after the lines, up to the prompt."""
        start = len(self.seen)
        for line in lines:
            self.type(line + "\n")
            if line is not lines[-1]:
                self.wait(re.compile(r"\.\.+ $"))
        self.wait(PROMPT, start=start)
        return self.seen[start:].replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait(self, wanted: re.Pattern[str], *, start: int = 0, within_s: float = 60.0) -> None:
        """Until it stands at the end of what was written since `start`, and nothing follows."""
        deadline = time.monotonic() + within_s
        while True:
            ready, _, _ = select.select([self.fd], [], [], 0.05)
            if ready:
                if not self._read():
                    raise AssertionError(f"the shell has ended: {self.seen[-2000:]!r}")
            elif wanted.search(self.seen[start:]):
                return
            assert time.monotonic() < deadline, self.seen[-2000:]

    def _read(self) -> bool:
        try:
            piece = os.read(self.fd, 65536)
        except OSError:  # how the end of a terminal reads
            return False
        self.seen += piece.decode("utf-8", "replace")
        return bool(piece)

    def leave(self) -> int:
        """Ctrl-D; returns the exit status."""
        self.type("\x04")
        return self.end()

    def end(self) -> int:
        while self._read():
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def shell(state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    pictures = tmp_path_factory.mktemp("pictures")
    terminal = Terminal(state, "--pictures", str(pictures), TERM_PROGRAM="iTerm.app")
    terminal.wait(PROMPT)
    terminal.say("import time; kept = 41")
    yield terminal
    assert terminal.leave() == 0
    history = state / "belljar" / "shell-python"
    assert "kept = 41" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_s1_variables_stay_and_values_are_shown(shell: Terminal) -> None:
    assert "\n42\n" in shell.say("kept + 1")
    shell.say("other = kept + 2")
    assert "\n43\n" in shell.say("other")


def test_a2_a_block_goes_on_until_an_empty_line(shell: Terminal) -> None:
    shell.say("def twice(x):", "    y = x", "    return 2 * y", "")
    assert "\n8\n" in shell.say("twice(4)")
    assert "\n6\n" in shell.say("sum([1,", "2, 3])")
    assert "\n[3, 4]\n" in shell.say("%%", "a = 3", "", "[a, a + 1]", "%%")


def test_a2_an_error_ends_the_line_and_not_the_shell(shell: Terminal) -> None:
    assert "ZeroDivisionError" in shell.say("1 / 0")
    assert "SyntaxError" in shell.say("x = = 1")
    assert "\n41\n" in shell.say("kept")


def test_a2_ctrl_c_interrupts_the_code_and_not_the_shell(shell: Terminal) -> None:
    start = len(shell.seen)
    shell.type("print('be' + 'gun', flush=True); time.sleep(600)\n")
    shell.wait(re.compile("begun\r\n$"), start=start)
    shell.type("\x03")
    shell.wait(PROMPT, start=start)
    assert "KeyboardInterrupt" in shell.seen[start:]
    assert "\n41\n" in shell.say("kept")
    shell.type("half a li")
    shell.wait(re.compile("half a li$"))
    shell.type("\x03")
    shell.wait(PROMPT)
    assert "\n41\n" in shell.say("kept")


def test_a2_output_comes_while_the_code_runs(shell: Terminal) -> None:
    start = len(shell.seen)
    shell.type("print('on' + 'ce', flush=True); time.sleep(0.5); print('twice')\n")
    shell.wait(re.compile("once\r\n$"), start=start)
    assert "twice\r" not in shell.seen[start:]
    shell.wait(PROMPT, start=start)
    assert "twice\r" in shell.seen[start:]


def test_s6_branches(shell: Terminal) -> None:
    shell.say("which = 'main'")
    assert "b1" in shell.say("%fork")
    assert "* main" in shell.say("%branches")
    shell.say("%switch b1")
    assert "'main'" in shell.say("which")
    shell.say("which = 'b1'")
    shell.say("%switch main")
    assert "'main'" in shell.say("which")
    assert "has ended" in shell.say("%close b1")
    assert "there is no branch 'b1'" in shell.say("%switch b1")


def test_s6_rollback(shell: Terminal) -> None:
    shell.say("precious = 1")
    shell.say("del precious; open('mess', 'w').close()")
    assert "mess" in shell.say("%files")
    assert "del precious" in shell.say("%checkpoints")
    assert "as before run" in shell.say("%rollback")
    assert "no files" in shell.say("%files")
    assert "\n1\n" in shell.say("precious")


def test_s2_files_go_in_and_out(shell: Terminal, tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("from outside")
    shell.say(f"%upload '{tmp_path}/a b.txt'")
    assert "'from outside'" in shell.say("open('/workspace/a b.txt').read()")
    assert "12 bytes" in shell.say("%files")
    shell.say("_ = open('back', 'w').write('from inside')")
    shell.say(f"%download /workspace/back {tmp_path}/back")
    assert (tmp_path / "back").read_text() == "from inside"
    said = shell.say("%download /etc/passwd")
    assert "belljar: " in said and not Path("passwd").exists()


def test_a2_what_the_code_prints_does_not_reach_the_terminal_as_commands(shell: Terminal) -> None:
    """On both streams, in a value, in the name of a file, in progress: colours pass, all else is
    shown."""
    hostile = r"\x1b]0;title\x07\x1b[2J"
    said = shell.say(f"print('{hostile}\\x1b[31mred')")
    said += shell.say(f"import sys; print('{hostile}', file=sys.stderr)")
    said += shell.say(f"class C: __repr__ = lambda self: '{hostile}'")
    said += shell.say("C()")
    said += shell.say(f"open('{hostile}', 'w').close()")
    said += shell.say("%files")
    said += shell.say(f"import belljar_guest; belljar_guest.progress(0.5, '{hostile}')")
    assert "\x1b]" not in said and "\x07" not in said and "\x1b[2J" not in said
    assert said.count("\\x1b]0;title\\x07") >= 5
    assert "\x1b[31mred" in said and "\x1b[0m" in said


def test_s3_a_picture_is_shown_and_put_into_a_file(shell: Terminal) -> None:
    from belljar.cli.shell_pictures import Picture, write_png

    picture = write_png(Picture(2, 1, b"\xff\0\0\0\xff\0"))
    shell.say(f"png = {picture!r}")
    said = shell.say("from IPython.display import Image, display; display(Image(data=png))")
    (path,) = re.findall(r"\[picture: (.*?)\]", said)
    assert Path(path).read_bytes() == picture
    assert "\x1b]1337;File=inline=1" in said
    hostile = shell.say("display(Image(data=png[:-30] + b'\\x1b]0;title\\x07', format='png'))")
    assert "\x1b]" not in hostile and "picture: " in hostile


def test_l1_a_time_out_is_told_and_keeps_variables(state: Path) -> None:
    terminal = Terminal(state, "--timeout", "0.5")
    terminal.wait(PROMPT)
    terminal.say("x = 3")
    assert "timed out" in terminal.say("while True: pass")
    assert "\n3\n" in terminal.say("x")
    lost = terminal.say("import os; os._exit(3)")
    assert "variables are lost" in lost
    assert "is lost" in terminal.say("x")
    terminal.say("%rollback")
    assert "\n3\n" in terminal.say("x")
    assert terminal.say("%help").count("%") > 10
    terminal.type("exit()\n")
    assert terminal.end() == 0


def test_a2_a_signal_ends_it_and_its_sandbox(state: Path) -> None:
    terminal = Terminal(state)
    terminal.wait(PROMPT)
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.end() == 128 + signal.SIGTERM


# -- without a terminal ----------------------------------------------------------------------------


def script(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], input=text, capture_output=True, text=True, timeout=60
    )


def test_a2_a_script_is_cut_at_commands_and_runs_to_its_end() -> None:
    done = script("x = 1\nif x:\n    x += 1\n\nx\n%fork 2\n%switch b2\n%%\nx = 5\nx\n")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "2" and lines[-1] == "5" and "in b2" in lines


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("1 / 0\n%%\nprint('never')", 1),
        ("import sys; sys.exit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)\n%%\nprint('never')", 137),
        ("%switch nowhere\nprint('never')", 125),
        ("", 0),
    ],
)
def test_a2_the_first_failure_ends_a_script(text: str, status: int) -> None:
    done = script(text)
    assert done.returncode == status and "never" not in done.stdout
    assert "Error" not in done.stderr or "ZeroDivisionError" in done.stderr


def test_a2_a_script_out_of_time() -> None:
    assert script("while True: pass", "--timeout", "0.3").returncode == 124


def test_a2_wrong_use_is_told() -> None:
    done = script("", "--images", "ascii")
    assert done.returncode == 125 and "sixel" in done.stderr
    done = script("", "--memory", "lots")
    assert done.returncode == 125 and "--memory" in done.stderr
