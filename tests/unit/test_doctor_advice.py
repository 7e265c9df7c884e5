"""What doctor says to type, on machines that are invented (I8)."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from belljar.engines.jail import advice, available, checks, remedies, trials
from belljar.engines.jail.advice import APPARMOR, CLONE, Facts

USERS, *OTHERS = available.LIMITS
PLENTY = dict.fromkeys(available.LIMITS, "96349")
ORDINARY = Facts(uid=1000, release=(6, 8))
ROOT = Facts(uid=0, release=(6, 8), privileged=True)
UBUNTU = Facts(
    uid=1000,
    release=(6, 8),
    sysctls={APPARMOR: "1"},
    restricted=True,
    interpreter="/usr/bin/python3.12",
    apparmor_parser="/usr/sbin/apparmor_parser",
    distribution=("ubuntu", "24.04"),
)


def facts(base: Facts, **changes: Any) -> Facts:
    return dataclasses.replace(base, **changes)


OPTIONS = "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined"


@pytest.mark.parametrize(
    ("code", "known", "words"),
    [
        (0, facts(ORDINARY, sysctls={USERS: "0"}), f"sudo sysctl -w {USERS}=31000"),
        (0, facts(ROOT, sysctls={USERS: "0"}), f": sysctl -w {USERS}=31000.*doctor --fix"),
        (errno.ENOSPC, facts(ROOT, sysctls=PLENTY), f"sysctl -w {USERS}=192698"),
        (errno.ENOSPC, ORDINARY, "outside this user namespace.*of the host"),
        (
            errno.EPERM,
            facts(ORDINARY, sysctls={CLONE: "0"}),
            "sudo sysctl -w kernel.unprivileged_userns_clone=1.*doctor --fix",
        ),
        (
            errno.EPERM,
            facts(ORDINARY, sysctls={CLONE: "0"}, container="docker"),
            "on the host, not in this container: sudo sysctl -w",
        ),
        (errno.EPERM, UBUNTU, "doctor --fix .*profile for /usr/bin/python3.12.*Every user"),
        (errno.EPERM, facts(UBUNTU, apparmor_parser=""), "install apparmor_parser.*whole machine"),
        (errno.EPERM, facts(ROOT, container="docker", filtered=True), OPTIONS),
        (errno.EPERM, facts(ROOT, container="podman"), "podman run.*--security-opt unmask=ALL"),
        (errno.ENOSYS, facts(ORDINARY, filtered=True), "RestrictNamespaces=.*seccomp=unconfined"),
        (errno.ENOENT, facts(ORDINARY, filtered=True), "^its own$"),
        (errno.ENOENT, facts(ROOT, container="docker"), "^its own$"),
        (errno.EAGAIN, facts(ROOT, container="docker"), "ulimit -u"),
        (errno.EMFILE, facts(ORDINARY, filtered=True), "ulimit -n"),
        (errno.EPERM, facts(ROOT, container="kubernetes"), "Unconfined.*procMount"),
        (
            errno.EPERM,
            Facts(uid=0, release=(6, 8), stuck=True, container="docker"),
            "--user 1000:1000 .*--cap-add SETUID --cap-add SETGID",
        ),
        (
            errno.EPERM,
            facts(UBUNTU, uid=0, container="docker"),
            "apparmor=belljar-container.*on the host, not in this container: printf",
        ),
        (
            errno.EPERM,
            facts(UBUNTU, container="kubernetes"),
            "Localhost with localhostProfile belljar-container.*on the host",
        ),
        (errno.EPERM, ORDINARY, "its own"),
    ],
)
def test_the_hint_says_what_to_type(code: int, known: Facts, words: str) -> None:
    assert re.search(words, advice.hint(code, known, own="its own")), advice.hint(code, known)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.ENOSPC, errno.EINVAL, 0])
@pytest.mark.parametrize(
    ("distribution", "words"),
    [
        (("debian", "11"), "apt install -t bullseye-backports linux-image-amd64"),
        (("ubuntu", "20.04"), "apt install linux-generic-hwe-20.04"),
        (("gentoo", ""), "install a newer one"),
    ],
)
def test_a_kernel_that_is_too_old_is_always_said(
    code: int, distribution: tuple[str, str], words: str
) -> None:
    """Whatever the kernel answered, and wherever it runs: nothing else would help."""
    for known in (ORDINARY, UBUNTU, facts(ROOT, container="docker", filtered=True)):
        old = facts(known, release=(5, 10), distribution=distribution)
        told = advice.hint(code, old, own="its own")
        assert words in told and "reboot" in told and "engine='docker'" in told
        assert f"{available.OLDEST[0]}.{available.OLDEST[1]}" in told
        assert advice.obstacle_for(code, old) is None


def test_on_an_old_kernel_the_jail_is_refused_with_that_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Defect seen on 5.10: a clear message and nothing to do about it."""
    from belljar import Settings

    here = os.uname()
    old = os.uname_result((here[0], here[1], "5.10.0-33-amd64", here[3], here[4]))
    monkeypatch.setattr(os, "uname", lambda: old)
    missing = available.why_not(Settings())
    assert missing and "5.10.0-33-amd64 is too old" in missing.why
    assert "install" in missing.hint and "engine='docker'" in missing.hint


def test_switched_off_comes_before_what_it_hides() -> None:
    """One obstacle at a time: after the first is gone doctor looks again."""
    both = facts(UBUNTU, sysctls={APPARMOR: "1", USERS: "0"})
    assert "max_user_namespaces=31000" in advice.hint(errno.ENOSPC, both)
    found = advice.obstacle_for(errno.ENOSPC, both)
    assert found and [one.path for one in found.remedies] == [
        "/etc/sysctl.d/zz-belljar-max_user_namespaces.conf"
    ]


@pytest.mark.parametrize("limit", OTHERS)
@pytest.mark.parametrize("value", [0, 40])
def test_the_limit_that_is_too_low_is_named_whatever_its_kind(limit: str, value: int) -> None:
    """The kernel answers ENOSPC for each of them."""
    low = facts(ORDINARY, sysctls={**PLENTY, limit: str(value)})
    assert f"sysctl -w {limit}=31000" in advice.hint(errno.ENOSPC, low)
    found = advice.obstacle_for(errno.ENOSPC, low)
    assert found and found.name == limit
    assert found.remedies[0].unload == ("sysctl", "-w", f"{limit}={value}")


@pytest.mark.parametrize("value", [1, 30_999, 31_000, 127_000, 1 << 30, (1 << 31) - 1])
def test_no_limit_is_ever_lowered(value: int) -> None:
    same = facts(ROOT, sysctls=dict.fromkeys(available.LIMITS, str(value)))
    found = advice.obstacle_for(errno.ENOSPC, same)
    if found is None:
        assert value >= 1 << 30
        return
    written = re.search(r"^user.* = (\d+)$", found.remedies[0].content, re.MULTILINE)
    assert written and int(written[1]) > value


def test_inside_a_container_no_file_is_offered() -> None:
    """It would be the container's, and what is in the way is the host's."""
    for container in ("docker", "podman", "kubernetes"):
        assert advice.obstacle_for(errno.EPERM, facts(UBUNTU, container=container)) is None


def test_the_profile_comes_first_and_says_what_it_gives_away() -> None:
    found = advice.obstacle_for(errno.EPERM, UBUNTU)
    assert found
    profile, coarse = found.remedies
    assert profile.path == "/etc/apparmor.d/belljar.usr.bin.python3.12"
    assert 'belljar.usr.bin.python3.12 "/usr/bin/python3.12" flags=(unconfined)' in profile.content
    assert re.search(
        "Every user .* with /usr/bin/python3.12: .*programs start", profile.consequence
    )
    assert "whole machine" in coarse.consequence
    assert f"{APPARMOR} = 0" in coarse.content
    assert coarse.coarse and not profile.coarse
    assert coarse.unload == ("sysctl", "-w", f"{APPARMOR}=1")


def test_an_interpreter_that_others_can_replace_is_pointed_out() -> None:
    own = facts(UBUNTU, interpreter="/home/a/.local/bin/python3.13", replaceable="/home/a")
    found = advice.obstacle_for(errno.EPERM, own)
    assert found and "Users other than root can change /home/a:" in found.remedies[0].consequence


def test_every_folder_above_the_interpreter_counts(tmp_path: Path) -> None:
    """Root's interpreter in root's folder, below one that is another's, or anybody's."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to give files away")
    interpreter = tmp_path / "a" / "b" / "python3"
    interpreter.parent.mkdir(parents=True)
    interpreter.touch()
    for path in (interpreter, *interpreter.parents):
        if path == tmp_path.parent:
            break
        path.chmod(0o755)
    before = advice._replaceable(str(interpreter))
    assert before == "" or Path(before) in tmp_path.parents
    folder = interpreter.parent.parent
    for uid, mode in ((65534, 0o755), (0, 0o777), (0, 0o775)):
        os.chown(folder, uid, 0)
        folder.chmod(mode)
        assert advice._replaceable(str(interpreter)) == str(folder)
    os.chown(folder, 0, 0)
    folder.chmod(0o1777)  # nobody can rename what is another's there
    assert advice._replaceable(str(interpreter)) == before


ODD = ["/opt/my python/bin/python3", "/opt/{a,b}*/[x]^?/py\\thon", "/opt/ü/python3", '/o"p/python']


@pytest.mark.parametrize("interpreter", ["/usr/bin/python3.12", *ODD])
def test_the_profile_is_one_for_apparmor(interpreter: str, tmp_path: Path) -> None:
    """Read by the parser itself, where there is one: the name and the exact path."""
    profile = remedies.apparmor_profile(interpreter, parser="", replaceable="")
    assert profile and re.fullmatch(r"/etc/apparmor\.d/[A-Za-z0-9._-]+", profile.path)
    parser = shutil.which("apparmor_parser", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if not parser:
        pytest.skip("needs apparmor_parser (apparmor)")
    if not Path("/etc/apparmor.d/abi/4.0").exists():
        pytest.skip("AppArmor here is older than its rule for user namespaces")
    file = tmp_path / "profile"
    file.write_text(profile.content)
    read = subprocess.run([parser, "-Q", "-K", "-N", file], capture_output=True, text=True)
    assert read.returncode == 0, read.stderr
    assert read.stdout.split() == [Path(profile.path).name]


def test_two_interpreters_never_share_a_profile() -> None:
    paths = ["/a/b_c", "/a_b/c", "/a/b/c", "/a b/c", "/a.b/c", *ODD]
    found = [remedies.apparmor_profile(path, parser="", replaceable="") for path in paths]
    names = [one.path for one in found if one]
    assert len(set(names)) == len(paths)


def test_a_path_with_a_line_break_gets_no_profile() -> None:
    bad = "/opt/x\nprofile everything /** flags=(unconfined) { userns, }\n"
    assert remedies.apparmor_profile(bad, parser="", replaceable="") is None


def test_settings_that_others_made_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hardening = tmp_path / "99-hardening.conf"
    hardening.write_text("# no\nuser/max_user_namespaces=0\n")
    (tmp_path / "10-other.conf").write_text("kernel.dmesg_restrict = 1\n")
    monkeypatch.setattr(remedies, "_SETTINGS", (str(tmp_path),))
    remedy = remedies.sysctl_file(USERS, "31000", old="0")
    assert f"It overrides {hardening}." in remedy.consequence and remedy.lasts
    assert Path(remedy.path).name > hardening.name  # files are read in this order
    for late in (tmp_path / "zzz-last.conf", tmp_path / "sysctl.conf"):
        late.write_text("user.max_user_namespaces = 0\n")
        monkeypatch.setattr(remedies, "_LAST", str(tmp_path / "sysctl.conf"))
        remedy = remedies.sysctl_file(USERS, "31000", old="0")
        assert f"It overrides {hardening}. {late} may undo it" in remedy.consequence
        assert not remedy.lasts
        late.unlink()


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("6.8.0-45-generic", (6, 8)),
        ("6.12+x", (6, 12)),
        ("5.15.0", (5, 15)),
        ("6.1-rc3", (6, 1)),
        ("7", (7, 0)),
        ("odd", (0, 0)),
    ],
)
def test_kernel_releases(text: str, release: tuple[int, int]) -> None:
    assert available.parse_release(text) == release


def test_a_failed_trial_becomes_a_line_with_its_stand_in() -> None:
    trial = trials.Trial("landlock", "Landlock", stand_in="the root alone", advice="lsm=landlock")
    failure = {"works": False, "errno": errno.ENOSYS, "detail": "none here"}
    control = checks.judge(trial, failure, ORDINARY)
    assert not control.works and not control.essential
    assert "the root alone" in control.mechanism
    assert "ENOSYS" in control.hint and "lsm=landlock" in control.hint


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("huge_pages", errno.EINVAL, "needs Linux 6.1"),
        ("huge_pages", errno.ENOMEM, "no memory left"),
        ("sockets", errno.ENOENT, "Linux 6.8 or newer"),
        ("sockets", errno.ENOSPC, "sysctl -w user.max_net_namespaces=31000"),
    ],
)
def test_a_trials_own_advice_is_about_its_own_error(name: str, code: int, words: str) -> None:
    (trial,) = [one for one in trials.TRIALS if one.name == name]
    low = facts(ORDINARY, sysctls={**PLENTY, "user.max_net_namespaces": "9"})
    control = checks.judge(trial, {"works": False, "errno": code, "detail": "no"}, low)
    assert words in control.hint
    assert (trial.advice in control.hint) == (code == trial.advised)


@pytest.mark.parametrize(
    ("marks", "kind"),
    [(["docker"], ""), (["docker", "podman"], "podman"), (["kubernetes"], "kubernetes"), ([], "")],
)
def test_one_mark_of_a_container_does_not_hide_another(
    marks: list[str], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's is also where no container is: it counts only with what Docker mounts."""
    if any(
        f" /etc/{name} " in Path("/proc/self/mountinfo").read_text()
        for name in ("hostname", "hosts")
    ):
        pytest.skip("this is a container")
    kinds = ("docker", "podman", "kubernetes")
    monkeypatch.setattr(advice, "_CONTAINERS", {str(tmp_path / one): one for one in kinds})
    for mark in marks:
        (tmp_path / mark).touch()
    assert advice._container() == kind


def test_a_failed_trial_without_stand_in_is_essential() -> None:
    failure = {"works": False, "errno": errno.EPERM, "detail": "no"}
    assert checks.judge(trials.Trial("x", "y"), failure, ORDINARY).essential
