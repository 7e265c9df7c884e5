"""The jail's own code for cgroup v2, on a kernel that has it: inside a machine of ours (L1-L3, L7).

Many hosts have v1 only, or a v2 without its controllers. The guest's kernel has all of it, so the
tests of tests/security/test_cgroups_live.py are run in there, as they are.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import belljar
from belljar.engines.microvm import available, clock, contents, cpio, image
from belljar.settings import Settings
from belljar.testing import EngineConformance

TESTS = Path(__file__).with_name("test_cgroups_live.py")
PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
BOOT_S = 600
INIT = f"""\
#!{contents.INTERPRETER} -IB
import ctypes, os, subprocess, sys
sys.path.insert(0, "/test")
from belljar.engines.linux import kernel
for kind, place in (("proc", "/proc"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp"), ("sysfs", "/sys"),
                    ("cgroup2", "/sys/fs/cgroup")):
    kernel.mount(kind, place, kind)
variables = dict(os.environ, PYTHONPATH="/test", PATH="/usr/local/bin:/usr/bin", HOME="/tmp")
arguments = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
arguments += ["-rs", "--tb=short", "--color=no"]
done = subprocess.run(
    ["{contents.INTERPRETER}", "-m", "pytest", *arguments, "/test/{TESTS.name}"],
    env=variables, cwd="/tmp", stdin=subprocess.DEVNULL,
)
print("guest: pytest ended with", done.returncode, flush=True)
ctypes.CDLL(None).reboot(0x01234567)
"""


class Suite(EngineConformance):
    __test__ = False
    engine = "microvm"


def tree(package: Path) -> Iterator[cpio.Entry]:
    for path in sorted(package.rglob("*.py")):
        yield cpio.copy(f"test/{path.relative_to(package.parent)}", path)


def root() -> Iterator[cpio.Entry]:
    yield cpio.text("init", INIT, 0o700)
    yield cpio.copy(f"test/{TESTS.name}", TESTS)
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec and spec.origin
        found = Path(spec.origin)
        if found.name == "__init__.py":
            yield from tree(found.parent)
        else:
            yield cpio.copy(f"test/{found.name}", found)
    yield from tree(Path(belljar.__file__).parent)


@pytest.mark.slow
@pytest.mark.timeout(BOOT_S + 30)
def test_every_test_of_live_groups_passes_on_v2(tmp_path: Path) -> None:
    Suite.check_available()
    built, program = image.locate(Settings()), available.program(Settings())
    assert built and program
    initramfs = tmp_path / "root.cpio"
    shutil.copyfile(built.root, initramfs)
    with initramfs.open("ab") as file:
        cpio.write(file, root())
    words = "console=ttyS0 quiet panic=-1 cgroup_no_v1=all mitigations=off tsc=reliable"
    words += f" no_timer_check tsc_early_khz={clock.tsc_khz()}"
    argv = [program, "-M", "microvm,rtc=on,pit=on,pic=on", "-accel", "tcg", "-cpu", "max"]
    argv += ["-m", "2048M", "-smp", "2", "-nodefaults", "-no-user-config", "-no-reboot"]
    argv += ["-display", "none", "-serial", "stdio", "-kernel", str(built.kernel)]
    argv += ["-initrd", str(initramfs), "-append", words]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOOT_S)
    said = done.stdout.decode(errors="replace")
    print(said)
    assert "guest: pytest ended with 0" in said, said[-3000:]
    passed = re.search(r"(\d+) passed", said)
    assert passed and int(passed[1]) >= 15, said[-3000:]
    assert "no groups on this machine" not in said
