"""What doctor says to type, typed (I8).

Where a setting belongs to a namespace the test makes one that lacks it. What would change the whole
machine is typed only where BELLJAR_CHANGE_MACHINE says that it may be: in a guest. Containers are
in test_docker_jail.py.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar.engines.jail.advice import APPARMOR, CLONE
from belljar.runtimes.interpreter import base_interpreter
from tests import same_ids

BELLJAR = [sys.executable, "-m", "belljar.cli.main"]
SETTING = Path("/etc/sysctl.d/zz-belljar-max_user_namespaces.conf")
# A user namespace whose root may change how many there may be below it, and an /etc/sysctl.d that
# is nobody else's. The last word of a line of the script is what the test is about.
OWN = (*same_ids.prefix(), "sh", "-c")
PREPARED = "mount -t tmpfs none /etc/sysctl.d && echo 0 > /proc/sys/user/max_user_namespaces && "


def need_own_place() -> None:
    for tool in ("unshare", "sysctl"):
        if not shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin"):
            pytest.skip(f"needs {tool}")
    if not SETTING.parent.is_dir():
        pytest.skip(f"needs {SETTING.parent}")
    if subprocess.run([*OWN, "true"], capture_output=True).returncode:
        pytest.skip("this user may make no user namespaces with unshare")


def own_place(script: str, *, prepared: str = PREPARED) -> subprocess.CompletedProcess[str]:
    """A shell script where user namespaces are switched off, `$belljar` being the command."""
    need_own_place()
    done = subprocess.run(
        [*OWN, prepared + script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "belljar": shlex.join(BELLJAR), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_namespaces_switched_off_are_switched_on_by_typing_the_hint() -> None:
    run = "$belljar run --engine jail -c 'print(6 * 7)'"
    told = own_place(run).stderr
    command = re.search(r"sysctl -w user\.max_user_namespaces=\d+", told)
    assert command, told
    done = own_place(f"{run}; {command[0]} >/dev/null && {run}")
    assert done.returncode == 0 and done.stdout == "42\n", done.stderr


def test_fix_shows_a_file_writes_it_and_tries_again() -> None:
    done = own_place(f"$belljar doctor --fix --yes && cat {SETTING} && sysctl -p {SETTING}")
    assert done.returncode == 0, done.stdout + done.stderr
    shown, _, rest = done.stdout.partition(f"Done: {SETTING}")
    assert f"{SETTING}:" in shown and "    user.max_user_namespaces = 31000" in shown
    assert "Every user of this machine" in shown
    assert "Sandboxes work here" in rest
    assert rest.endswith("user.max_user_namespaces = 31000\n")  # what a boot would make of it


def test_what_to_type_can_be_copied_from_a_narrow_terminal() -> None:
    """Each hint is one line of output, whole."""
    done = own_place("COLUMNS=80 $belljar doctor")
    command = r"^  \d\. .*: sysctl -w user\.max_user_namespaces=31000\. .*doctor --fix$"
    assert re.search(command, done.stdout, re.MULTILINE), done.stdout


def test_fix_says_when_a_boot_would_undo_it() -> None:
    """Which loads the files in the order of their names: the last one has the last word."""
    late = "echo user.max_user_namespaces = 0 > /etc/sysctl.d/zzz-hardening.conf && "
    boot = "for file in /etc/sysctl.d/*.conf; do sysctl -p $file; done"
    done = own_place(f"{late} $belljar doctor --fix --yes && {boot}")
    shown, _, rest = done.stdout.partition("Done: ")
    assert "only until the next boot" in shown and "zzz-hardening.conf may undo it" in shown
    assert rest.endswith("user.max_user_namespaces = 0\n"), done.stderr


@pytest.mark.parametrize("kind", ["mnt", "pid", "net", "ipc", "uts", "cgroup"])
def test_fix_raises_the_limit_that_is_too_low_and_no_other(kind: str) -> None:
    """Defect: user.max_user_namespaces was blamed for every kind, and lowered."""
    limits = "/proc/sys/user/max_user_namespaces", f"/proc/sys/user/max_{kind}_namespaces"
    prepared = f"mount -t tmpfs none /etc/sysctl.d && echo 127000 > {limits[0]} && "
    script = f"$belljar doctor --fix --yes && ls /etc/sysctl.d && cat {' '.join(limits)}"
    done = own_place(f"echo 0 > {limits[1]} && {script}", prepared=prepared)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Done: ") == 1
    written = f"zz-belljar-max_{kind}_namespaces.conf"
    assert done.stdout.endswith(f"{written}\n127000\n31000\n"), done.stdout


def test_a_run_names_the_limit_that_is_too_low() -> None:
    low = "mount -t tmpfs none /etc/sysctl.d && echo 0 > /proc/sys/user/max_uts_namespaces && "
    done = own_place("$belljar run --engine jail -c 'print(1)'", prepared=low)
    assert "sysctl -w user.max_uts_namespaces=31000" in done.stderr


MANY = """
import belljar
kept = []
try:
    for _ in range(12):
        kept.append(belljar.Sandbox())
        kept[-1].run("1")
except belljar.EngineError as error:
    print(error.hint)
for box in kept:
    box.close()
"""


def test_sandboxes_that_use_a_limit_up_name_it() -> None:
    script = (
        f"echo 9 > /proc/sys/user/max_uts_namespaces; {shlex.join([sys.executable, '-c', MANY])}"
    )
    done = own_place(script, prepared="")
    assert "user.max_uts_namespaces = 9 may be used up: sysctl -w" in done.stdout, done.stderr


def test_fix_finds_nothing_where_nothing_is_wrong() -> None:
    working = "mount -t tmpfs none /etc/sysctl.d && "
    done = own_place("$belljar doctor --fix --yes; ls /etc/sysctl.d", prepared=working)
    assert "Nothing that stops sandboxes here" in done.stdout
    assert "zz-belljar" not in done.stdout


# Root's trials all succeed. They cannot be made here: over a /proc with a mount in it only the
# machine's root may mount another.
AS_ROOT = """
from belljar.cli.fix import fix
from belljar.engines.jail import checks
checks._tried = list
fix(checks.obstacle, yes=True)
"""


@pytest.mark.parametrize("sudo", [True, False])
def test_fix_with_sudo_is_about_the_user_who_typed_it(sudo: bool) -> None:
    """Root's sandboxes work where Debian's setting keeps user namespaces from everybody else."""
    switch = f"/proc/sys/{CLONE.replace('.', '/')}"
    prepared = (
        "mount -t tmpfs none /etc/sysctl.d && mount -t tmpfs none /proc/sys/kernel &&"
        f" echo 0 > {switch} && "
    )
    who = "SUDO_UID=65534" if sudo else "-u SUDO_UID"
    script = f"env {who} {shlex.join([sys.executable, '-c', AS_ROOT])}; cat {switch}"
    done = own_place(script, prepared=prepared)
    assert done.stdout.endswith("\n1\n" if sudo else "\n0\n"), done.stdout + done.stderr
    assert ("run it as that user" in done.stdout) != sudo


def test_fix_writes_nothing_unasked() -> None:
    """Without a terminal there is nobody to ask."""
    done = own_place("$belljar doctor --fix; echo $?; ls /etc/sysctl.d")
    assert done.stdout == "125\n"
    assert "there is nobody to ask" in done.stderr and "--yes" in done.stderr


@pytest.mark.parametrize("option", ["--json", "--engine docker"])
def test_fix_is_for_people_and_for_the_jail(option: str) -> None:
    done = own_place(f"$belljar doctor --fix --yes {option} >/dev/null; echo $?; ls /etc/sysctl.d")
    assert done.stdout == "125\n" and "--fix" in done.stderr


def sysctl_that_does(script: str) -> str:
    """A part of a script: another program in its place, which sets nothing."""
    program = shlex.quote(f"#!/bin/sh\n{script}\n")
    return (
        f"mount -t tmpfs none /mnt && printf %s {program} > /mnt/sysctl &&"
        " chmod +x /mnt/sysctl && mount --bind /mnt/sysctl $(which sysctl) && "
    )


def sysctl_that_ends_with(status: int) -> str:
    return sysctl_that_does(f"exit {status}")


def test_what_cannot_be_loaded_is_taken_back() -> None:
    """Nothing is left half-done: neither a new file nor another content of one that was there."""
    failing = f"$belljar doctor --fix --yes >/dev/null; echo $?; cat {SETTING} 2>/dev/null"
    done = own_place(sysctl_that_ends_with(1) + failing)
    assert done.stdout == "125\n" and "sysctl -p" in done.stderr, done.stderr
    done = own_place(f"echo '# mine' > {SETTING}; {sysctl_that_ends_with(1)} {failing}")
    assert done.stdout == "125\n# mine\n"


def test_what_was_there_is_put_back_byte_by_byte() -> None:
    """Also where it is no text, and with its mode."""
    there = f"printf '\\377\\n' > {SETTING}; chmod 600 {SETTING}; "
    failing = f"$belljar doctor --fix --yes >/dev/null; stat -c %a {SETTING}; od -An -tx1 {SETTING}"
    done = own_place(there + sysctl_that_ends_with(1) + failing)
    assert done.stdout == "600\n ff 0a\n", done.stderr


def test_a_link_is_not_replaced() -> None:
    place = f"echo mine > /etc/sysctl.d/there; ln -s there {SETTING}; "
    done = own_place(
        place + f"$belljar doctor --fix --yes; echo $?; cat {SETTING}; ls /etc/sysctl.d"
    )
    assert done.stdout.endswith(f"125\nmine\nthere\n{SETTING.name}\n"), done.stdout
    assert "is not a plain file" in done.stderr


def test_what_cannot_be_taken_back_is_said_after_what_failed_first() -> None:
    """Loading fails, and by then /etc/sysctl.d is read-only."""
    failing = "echo no good >&2; mount -o remount,ro /etc/sysctl.d; exit 1"
    script = f"$belljar doctor --fix --yes >/dev/null; ls {SETTING}"
    done = own_place(sysctl_that_does(failing) + script)
    first, hint = done.stderr.splitlines()[:2]
    assert first == f"belljar: sysctl -p {SETTING}: no good"
    assert f"{SETTING} could not be taken back (rm" in hint and "Read-only" in hint
    assert done.stdout == f"{SETTING}\n"


def test_what_stays_in_force_is_said() -> None:
    """It does not help, and cannot be unloaded either."""
    script = f"$belljar doctor --fix --yes >/dev/null; echo $?; ls {SETTING}"
    done = own_place(sysctl_that_does('test "$1" = -p') + script)
    assert done.stdout == "125\n" and "did not help" in done.stderr, done.stdout
    assert "what it set is still in force (sysctl -w" in done.stderr
    assert "could not be taken back" not in done.stderr


def test_what_does_not_help_is_taken_back() -> None:
    """Loaded without an error, and without an effect: some versions of sysctl end so."""
    done = own_place(sysctl_that_ends_with(0) + f"$belljar doctor --fix --yes; ls {SETTING}")
    assert "That did not help" in done.stdout and "Done:" not in done.stdout
    assert "No such file" in done.stderr or "cannot access" in done.stderr


# Ubuntu's restriction on a kernel without it: the file of the setting is one of ours, and only that
# decides what `look` finds. The argument is what loads profiles, if anything does.
RESTRICTED = """
import sys
from pathlib import Path
from belljar.cli.fix import fix
from belljar.engines.jail import advice
from belljar.engines.jail.advice import APPARMOR, Facts

switch, parser = Path("/proc/sys", *APPARMOR.split(".")), sys.argv[1]
def look():
    if switch.read_text().strip() == "0":
        return None
    facts = Facts(uid=1000, release=(6, 8), sysctls={APPARMOR: "1"}, restricted=True,
        interpreter="/usr/bin/python3.12", apparmor_parser=parser)
    return advice.obstacle_for(1, facts)
fix(look, yes=True)
"""
SETTINGS_OF_OUR_OWN = (
    "mount -t tmpfs none /etc/sysctl.d && mount -t tmpfs none /etc/apparmor.d &&"
    " mount -t tmpfs none /proc/sys/kernel &&"
    f" echo 1 > /proc/sys/{APPARMOR.replace('.', '/')} && "
)


@pytest.mark.parametrize("parser", ["/bin/true", ""])
def test_yes_never_switches_a_protection_off(parser: str) -> None:
    """Neither where a profile does not help nor where none can be loaded."""
    if not Path("/etc/apparmor.d").is_dir():
        pytest.skip("needs /etc/apparmor.d")
    script = shlex.join([sys.executable, "-c", RESTRICTED, parser])
    left = f"cat /proc/sys/{APPARMOR.replace('.', '/')}; ls /etc/sysctl.d /etc/apparmor.d"
    done = own_place(f"{script}; {left}", prepared=SETTINGS_OF_OUR_OWN)
    assert "--yes does not agree to this" in done.stdout, done.stdout + done.stderr
    assert ("That did not help" in done.stdout) == bool(parser)
    assert done.stdout.endswith("\n1\n/etc/apparmor.d:\n\n/etc/sysctl.d:\n"), done.stdout


@pytest.mark.parametrize(("answer", "written"), [("n", False), ("y", True), ("", False)])
def test_fix_asks_after_it_has_shown(answer: str, written: bool) -> None:
    need_own_place()
    script = PREPARED + f"$belljar doctor --fix; ls {SETTING} && echo written"
    told = at_a_terminal([*OWN, script], [answer])
    before, _, after = told.partition("Write this file? [y/N]")
    assert "user.max_user_namespaces = 31000" in before, told
    assert ("\r\nwritten" in after) == written
    assert ("Sandboxes work here" in after) == written


def at_a_terminal(command: list[str], answers: list[str]) -> str:
    """All that it prints; a question is answered as soon as it is asked."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "belljar": shlex.join(BELLJAR), "TERM": "dumb"},
    )
    os.close(theirs)
    told = b""
    try:
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            told += piece
            if told.count(b"[y/N]") > told.count(b"answered") and answers:
                os.write(ours, answers.pop(0).encode() + b"\n")
                told = told.replace(b"[y/N]", b"[y/N] answered")
    finally:
        process.wait(60)
        os.close(ours)
    return told.decode("utf-8", "replace").replace("[y/N] answered", "[y/N]")


# -- in a guest: what changes the whole machine ----------------------------------------------------


def sysctl(name: str) -> str:
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return ""


def as_root(command: str) -> None:
    words = ["sh", "-c", command.replace("sudo ", "")]
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    subprocess.run([*sudo, *words], check=True, stdin=subprocess.DEVNULL, capture_output=True)


@pytest.fixture
def changeable() -> None:
    if not os.environ.get("BELLJAR_CHANGE_MACHINE"):
        pytest.skip("changes this machine's settings: for a guest, with BELLJAR_CHANGE_MACHINE=1")
    try:
        as_root("true")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs root, or sudo without a password")


def belljar(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As an ordinary user, also where the tests are root's."""
    prefix = []
    if os.geteuid() == 0:
        prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
    done = subprocess.run(
        [*prefix, "env", "BELLJAR_HOME=/tmp/belljar-nobody", *BELLJAR, *arguments]
        if prefix
        else [*BELLJAR, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def works() -> bool:
    done = belljar("run", "--engine", "jail", "-c", "print(6 * 7)")
    return done.stdout == "42\n"


def lines() -> dict[str, dict[str, Any]]:
    found = json.loads(belljar("doctor", "--json").stdout)
    return {one["name"]: one for one in reversed(found["controls"])}


@pytest.fixture
def restricted(changeable: None) -> Iterator[None]:
    """Ubuntu as it is installed, and as it was afterwards."""
    if sysctl(APPARMOR) in ("", "0"):
        pytest.skip("AppArmor does not restrict user namespaces here")
    if os.geteuid() == 0:
        pytest.skip("for an ordinary user with sudo: --fix is theirs")
    if works():
        pytest.skip("this interpreter has a profile already")
    yield
    name = f"belljar.{base_interpreter().strip('/').replace('/', '.')}"
    profile = f"/etc/apparmor.d/{name}"
    as_root(f"test ! -e {profile} || {{ apparmor_parser -R {profile}; rm {profile}; }}")
    as_root(f"rm -f /etc/sysctl.d/zz-belljar-*.conf; sysctl -w {APPARMOR}=1")


def test_apparmor_is_mended_by_a_profile_of_the_interpreter(restricted: None) -> None:
    """K1: every line agrees before and after; what a boot does loads it again."""
    before = lines()
    refused = ("user_namespaces", "filesystem", "processes_hidden", "sandbox")
    assert not any(before[name]["works"] for name in refused)
    assert "belljar doctor --fix" in before["user_namespaces"]["hint"]
    assert f"with {base_interpreter()}: every program" in before["sandbox"]["hint"]
    fixed = belljar("doctor", "--fix", "--yes")
    assert fixed.returncode == 0, fixed.stdout + fixed.stderr
    assert f'"{base_interpreter()}" flags=(unconfined)' in fixed.stdout.partition("Done:")[0]
    assert sysctl(APPARMOR) == "1"
    after = lines()
    assert all(after[name]["works"] for name in refused)
    assert works()
    path = re.search(r"Done: (\S+)", fixed.stdout)
    assert path
    as_root(f"apparmor_parser -R {path[1]}")
    assert not works()
    as_root("systemctl reload apparmor")
    assert works()
    undo = re.search(r"# To undo: (.*), then delete", fixed.stdout)
    assert undo
    as_root(f"{undo[1]}; rm {path[1]}")
    assert not works()


def test_apparmor_is_mended_by_the_coarser_choice(restricted: None) -> None:
    """Whoever declines the profile is shown the setting, and what it means."""
    told = at_a_terminal([*BELLJAR, "doctor", "--fix"], ["n", "y"])
    first, second, *_ = told.split("Write this file? [y/N]")
    assert "/etc/apparmor.d/" in first and "/etc/sysctl.d/" not in first
    assert "switches the protection" in second and f"{APPARMOR} = 0" in second
    assert "Sandboxes work here" in told and sysctl(APPARMOR) == "0"
    assert works()


def test_declining_everything_changes_nothing(restricted: None) -> None:
    told = at_a_terminal([*BELLJAR, "doctor", "--fix"], ["n", "n"])
    assert "Left as it is" in told and "does not work here" in told
    assert sysctl(APPARMOR) == "1" and not works()


def test_namespaces_for_root_only_are_opened_by_typing_the_hint(changeable: None) -> None:
    """Debian's own setting."""
    if not sysctl(CLONE):
        pytest.skip(f"this kernel has no {CLONE}")
    if not works():
        pytest.skip("something else stops sandboxes here")
    as_root(f"sysctl -w {CLONE}=0")
    try:
        hint = lines()["user_namespaces"]["hint"]
        command = re.search(r"sudo (sysctl -w \S+=1)", hint)
        assert command, hint
        as_root(command[1])
        assert works()
    finally:
        as_root(f"sysctl -w {CLONE}=1")


def test_swap_is_turned_off_by_typing_the_hint(changeable: None) -> None:
    as_root(
        "test -e /swap-for-belljar || (dd if=/dev/zero of=/swap-for-belljar bs=1M count=16 &&"
        " chmod 600 /swap-for-belljar && mkswap /swap-for-belljar); swapon /swap-for-belljar"
    )
    try:
        swap = lines()["swap"]
        if swap["works"]:
            pytest.skip("a cgroup keeps swap out here")
        assert "sudo swapoff -a" in swap["hint"]
        as_root("swapoff -a")
        assert lines()["swap"]["works"]
    finally:
        as_root("swapoff -a; rm -f /swap-for-belljar")
