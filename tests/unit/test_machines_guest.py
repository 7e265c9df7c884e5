"""The host's side of a guest, against the real agent and processes that stand in for QEMU (K1)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.machines import guest
from tests.machines.errors import GuestLost, TimeUp
from tests.machines.guest import Booted, Hardware
from tests.machines.qemu import Qemu

CONNECT = """\
import os, re, socket, sys, time
words = " ".join(sys.argv)
open(re.search(r"id=console,path=(\\S+)", words)[1], "w").write("Booting\\nLogin:\\n")
port = socket.socket(socket.AF_UNIX)
port.connect(re.search(r"id=agent,path=(\\S+)", words)[1])
"""
AGENT = f"""{CONNECT}
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.machines.agent import serve
serve(port.fileno())
"""
MUTE = f"{CONNECT}time.sleep(600)\n"
CRASHES = f"{CONNECT}sys.exit('qemu: corrupt EFLAGS')\n"

Boot = Callable[[str], Booted]


@pytest.fixture
def boot(tmp_path: Path) -> Boot:
    def make(program: str) -> Booted:
        script = tmp_path / "qemu.py"
        script.write_text(program)
        nothing = tmp_path / "none"
        hardware = Hardware(kernel=nothing, initrd=nothing, root=nothing, layer=nothing)
        qemu = Qemu((sys.executable, str(script)), "tcg")
        return Booted(qemu, hardware, tmp_path / "logs/guest.console")

    return make


def test_commands_are_answered_with_status_and_output(boot: Boot, tmp_path: Path) -> None:
    with boot(AGENT) as booted, (tmp_path / "log").open("w") as log:
        assert booted.release
        first = booted.run("echo out; echo err >&2; exit 3", limit_s=60, log=log)
        second = booted.run("printf '\\377'; cat", limit_s=60, log=log)  # no input to wait for
    assert (first.status, first.printed) == (3, "out\nerr\n")
    assert (second.status, second.printed) == (0, "\ufffd")
    assert (tmp_path / "log").read_text() == "out\nerr\n\ufffd"


def test_output_of_any_size_comes_whole(boot: Boot) -> None:
    with boot(AGENT) as booted:
        answer = booted.run("head -c 3000000 /dev/zero | tr '\\0' x", limit_s=60)
    assert answer.printed == "x" * 3_000_000


def test_a_guest_that_hangs_is_killed_and_its_console_told(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest, "BOOT_S", 0.5)
    booted = boot(MUTE)
    with pytest.raises(GuestLost, match="did not boot") as caught, booted:
        pass
    assert caught.value.tail.endswith("Login:")
    assert booted.ended


def test_a_command_without_end_loses_the_guest(boot: Boot) -> None:
    with boot(AGENT) as booted:
        with pytest.raises(TimeUp, match="no end after") as caught:
            booted.run("echo so far; sleep 600", limit_s=2)
        assert booted.ended
    assert caught.value.printed == "so far\n"


def test_a_crash_of_qemu_is_told_with_its_words(boot: Boot) -> None:
    with pytest.raises(GuestLost, match="ended by itself") as caught, boot(CRASHES):
        pass
    assert "corrupt EFLAGS" in caught.value.tail
