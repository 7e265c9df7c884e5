"""Who takes part for microVMs: plain QEMU with the same kernel and root, and Belljar's `microvm`.

`python -m bench --only walls --wall microvm` measures these alone.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from belljar import Belljar, Settings
from belljar.engines import registry
from belljar.engines.microvm import accelerator, available, clock, image
from belljar.engines.microvm.contents import INTERPRETER
from bench.contenders import BASE, REST_S
from bench.timing import Absent, Contender

GROUP = "microvm"
COLD = "qemu, cold boot"


def contenders(pooled: Belljar, unpooled: Belljar) -> list[Contender | Absent]:
    """Both jars with `engine="microvm"`."""
    settings = Settings()
    if missing := registry.why_not("microvm", settings):
        return [Absent(name="microvm", group=GROUP, why=missing.why)]
    once = _in_jar(unpooled)
    once()  # tries KVM and makes the snapshot, both once in an installation's life
    return [
        Contender(name=COLD, group=GROUP, once=_cold_boot(settings), every=3),
        Contender(
            name="belljar microvm, restored",
            group=GROUP,
            once=once,
            settle=lambda: time.sleep(REST_S),
        ),
        Contender(
            name="belljar microvm, pooled",
            group=GROUP,
            once=_in_jar(pooled),
            settle=lambda: _refill(pooled),
        ),
    ]


def _cold_boot(settings: Settings) -> Callable[[], None]:
    """To the first output, with the interpreter as the first and only process."""
    program, built = available.program(settings), image.locate(settings)
    assert program and built
    kvm = accelerator.remembered(settings, built, program) is True
    words = ["console=ttyS0", "quiet", "panic=-1"]
    if not kvm:  # as Belljar does it: without them a busy machine may hang at boot
        words += ["mitigations=off", f"tsc_early_khz={clock.tsc_khz()}", "tsc=reliable"]
    words += ["no_timer_check", f"rdinit={INTERPRETER}", "--", "-I", "-c", BASE]
    argv = [program, "-M", "microvm,rtc=on,pit=on,pic=on", "-accel", "kvm" if kvm else "tcg"]
    argv += ["-cpu", "max", "-m", "1024M", "-nodefaults", "-no-user-config", "-no-reboot"]
    argv += ["-display", "none", "-serial", "stdio", "-kernel", str(built.kernel)]
    argv += ["-initrd", str(built.root), "-append", " ".join(words)]

    def once() -> None:
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            said = b""
            for line in process.stdout:
                said += line
                if line.strip() == b"1":
                    break
            else:
                raise RuntimeError(said.decode(errors="replace")[-200:])
            process.kill()

    return once


def _in_jar(jar: Belljar) -> Callable[[], None]:
    def once() -> None:
        result = jar.run(BASE, engine="microvm")
        if result.stdout != "1\n" or not result.success:
            raise RuntimeError(f"{result.status}: {result.stderr[-200:]}")

    return once


def _refill(jar: Belljar) -> None:
    jar.warm("base", 1, engine="microvm")
    time.sleep(REST_S)
