"""Files of the system's configuration that let the jail be built, and what else they change."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from .available import LIMITS

APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
_LAST = "/etc/sysctl.conf"
_SETTINGS = (_LAST, "/etc/sysctl.d", "/run/sysctl.d", "/usr/lib/sysctl.d")
_CONSEQUENCES = {
    **dict.fromkeys(LIMITS, "Every user of this machine may then have that many."),
    "user.max_user_namespaces": "Every user of this machine may then make user namespaces.",
    "kernel.unprivileged_userns_clone": "Every user of this machine may then make them.",
    APPARMOR: (
        "Every program of every user may then make user namespaces: this switches the protection"
        " off for the whole machine."
    ),
}


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One file, and how it takes effect."""

    what: str
    path: str
    content: str
    load: tuple[str, ...]
    """The command that makes it take effect now."""
    unload: tuple[str, ...]
    """Undoes `load`, while the file is still there."""
    consequence: str
    """What changes for others than Belljar."""
    lasts: bool = True
    """From the next boot on the system loads it, and no other file after it."""
    coarse: bool = False
    """It switches a protection off for the whole machine: only a person may agree to that."""


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """What stops sandboxes here, and alternatives to mend it for good, the best first."""

    name: str
    """Tells it from others, whatever it is said to be: `what` may have a value in it."""
    what: str
    remedies: tuple[Remedy, ...]


def apparmor_profile(interpreter: str, *, parser: str, replaceable: str) -> Remedy | None:
    """Confines nothing and allows user namespaces, as Ubuntu has it for browsers. It is tied to
    the path of the interpreter: AppArmor looks at what the zygote executes, and neither at the
    console script nor at a virtual environment's link to the interpreter. None if its path cannot
    be written into a profile."""
    if not interpreter.isprintable():
        return None
    attached = re.sub(r'([\\*?\[\]{}^"])', r"\\\1", interpreter)
    name = _profile_name(interpreter)
    path = f"/etc/apparmor.d/{name}"
    consequence = (
        f"Every user of this machine may then make them with {interpreter}: every program that it"
        " runs, not only Belljar, and whatever those programs start."
    )
    if replaceable:
        consequence += (
            f" Users other than root can change {replaceable}: they can give it to any program."
        )
    return Remedy(
        what=f"an AppArmor profile for {interpreter}",
        path=path,
        content=f"""\
# Lets Belljar build sandboxes for users who are not root; written by "belljar doctor --fix".
# Every user may then make user namespaces with this interpreter: every program that it runs, not
# only Belljar, and whatever those programs start.
# To undo: apparmor_parser -R {path}, then delete this file.
abi <abi/4.0>,
include <tunables/global>

profile {name} "{attached}" flags=(unconfined) {{
  userns,
}}
""",
        load=(parser, "-r", path),
        unload=(parser, "-R", path),
        consequence=consequence,
    )


def _profile_name(interpreter: str) -> str:
    """As files of profiles are usually named; with a digest where that says too little."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", interpreter.strip("/").replace("/", "."))
    if not re.fullmatch(r"/usr/(local/)?bin/python[0-9.]*", interpreter):
        plain += "-" + hashlib.sha256(interpreter.encode()).hexdigest()[:8]
    return f"belljar.{plain}"


def sysctl_file(name: str, value: str, *, old: str) -> Remedy:
    """Files are read in the order of their names, wherever they are, and by some systems
    /etc/sysctl.conf last; so this one comes after most that set it now."""
    path = f"/etc/sysctl.d/zz-belljar-{name.rpartition('.')[2]}.conf"
    consequence = _CONSEQUENCES[name]
    others = [other for other in _files_that_set(name) if other != path]
    later = [other for other in others if other == _LAST or Path(other).name > Path(path).name]
    if earlier := [other for other in others if other not in later]:
        consequence += f" It overrides {', '.join(earlier)}."
    if later:
        consequence += f" {', '.join(later)} may undo it at the next boot: change that, too."
    return Remedy(
        what=f"a setting of the kernel, {name} = {value}",
        path=path,
        content=f"""\
# Lets Belljar build sandboxes; written by "belljar doctor --fix".
# {_CONSEQUENCES[name]}
# To undo: delete this file, then sysctl -w {name}={old}
{name} = {value}
""",
        load=("sysctl", "-p", path),
        unload=("sysctl", "-w", f"{name}={old}"),
        consequence=consequence,
        lasts=not later,
        coarse=name == APPARMOR,
    )


def _files_that_set(name: str) -> list[str]:
    files = []
    for place in map(Path, _SETTINGS):
        files += sorted(place.glob("*.conf")) if place.is_dir() else [place]
    wanted = re.compile(rf"^\s*-?\s*{re.escape(name)}\s*=".replace(r"\.", "[./]"), re.MULTILINE)
    found = []
    for file in files:
        try:
            if wanted.search(file.read_text(errors="replace")):
                found.append(str(file))
        except OSError:
            continue
    return found
