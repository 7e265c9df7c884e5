"""Which QEMU runs the guests, and whether it has the processor's help.

QEMU 7.2, Debian 12's, crashes guests with Linux 6.8 and newer when it emulates (they end with
corrupt flags). Where this machine's is that old, trixie's is taken from the archive into the cache
and run through its own loader; nothing is installed here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import roots
from .archive import Archives, require_programs
from .errors import CannotBeHad, SetupFailed
from .guests import GUESTS, Guest

PROGRAM = "qemu-system-x86_64"
LEAST = (9, 0)
KVM = Path("/dev/kvm")
_TRIAL_S = 15.0
_NEW_ENOUGH = Guest(
    name="qemu",
    title="QEMU",
    archive="debian",
    suites=GUESTS["trixie"].suites,
)


@dataclass(frozen=True)
class Qemu:
    command: tuple[str, ...]
    """The program, with where it finds its libraries and firmware."""
    accelerator: str = "tcg"

    @property
    def processor(self) -> tuple[str, ...]:
        if self.accelerator == "kvm":
            return ("-accel", "kvm", "-cpu", "host")
        # Five-level page tables only cost time when they are emulated.
        return ("-accel", "tcg,thread=multi", "-cpu", "max,la57=off")


def version(printed: str) -> tuple[int, int]:
    """From what `--version` prints; (0, 0) if that is something else."""
    match = re.search(r"version (\d+)\.(\d+)", printed)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def new_enough(printed: str) -> bool:
    return version(printed) >= LEAST


def ensure(cache: Path, archives: Archives, kernel: Path, say: Callable[[str], None]) -> Qemu:
    """This machine's if it is new enough, else trixie's."""
    own = shutil.which(PROGRAM)
    if own and new_enough(_printed([own])):
        command: tuple[str, ...] = (own,)
    else:
        command = _from_archive(cache, archives, say)
        if not new_enough(_printed(command)):
            raise SetupFailed(f"QEMU from the archive does not start here: {_printed(command)}")
    return Qemu(command, "kvm" if _kvm_works(command, kernel) else "tcg")


def _printed(command: list[str] | tuple[str, ...]) -> str:
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return done.stdout or done.stderr.strip()


def _from_archive(cache: Path, archives: Archives, say: Callable[[str], None]) -> tuple[str, ...]:
    folder = cache / "qemu"
    if not (folder / f"usr/bin/{PROGRAM}").is_file():
        if os.geteuid() != 0:
            raise CannotBeHad("QEMU here is missing or older than 9, and only root can fetch one")
        require_programs()
        say("QEMU from the archive: this machine's is missing or too old")
        making = cache / "qemu.making"
        scratch = cache / "qemu.scratch"
        for left in (folder, making, scratch):
            roots.remove(left)
        scratch.mkdir(parents=True, mode=0o700)
        packages = ("qemu-system-x86",)
        roots.bootstrap(
            _NEW_ENOUGH, making, archives, include=packages, variant="extract", place=scratch
        )
        roots.remove(scratch)
        os.rename(making, folder)
    return through_loader(folder)


def through_loader(folder: Path) -> tuple[str, ...]:
    return (
        str(folder / "usr/lib64/ld-linux-x86-64.so.2"),
        "--library-path",
        str(folder / "usr/lib/x86_64-linux-gnu"),
        str(folder / f"usr/bin/{PROGRAM}"),
        "-L",
        str(folder / "usr/share/qemu"),
        "-L",
        str(folder / "usr/share/seabios"),
    )


def _kvm_works(command: tuple[str, ...], kernel: Path) -> bool:
    """Tried with a guest's kernel: in a virtual machine the device may start nothing."""
    if not os.access(KVM, os.R_OK | os.W_OK):
        return False
    trial = Qemu(command, "kvm")
    options = ["-M", "q35", "-m", "512", "-nodefaults", "-no-reboot", "-display", "none"]
    options += ["-kernel", str(kernel), "-append", "console=ttyS0 panic=-1", "-serial", "stdio"]
    process = subprocess.Popen(
        [*trial.command, *trial.processor, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    printed, deadline = b"", time.monotonic() + _TRIAL_S
    try:
        while b"Linux version" not in printed and time.monotonic() < deadline:
            printed += process.stdout.read() or b""
            if process.poll() is not None:
                break
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return b"Linux version" in printed
