"""What the wall is made of on this machine, for `belljar doctor`."""

from __future__ import annotations

from belljar.engines.base import Control
from belljar.settings import Settings

from . import accelerator, available, disks, image


def controls(settings: Settings, *, cgroups: bool) -> list[Control]:
    program = available.program(settings)
    built = image.locate(settings)
    return [
        Control(
            name="emulator",
            mechanism=program or "absent",
            works=program is not None,
            hint="" if program else "on Debian and Ubuntu: apt-get install qemu-system-x86",
        ),
        Control(
            name="kernel",
            mechanism=f"own, {built.release}" if built else "absent",
            works=built is not None,
            hint="" if built else "belljar image build --microvm",
        ),
        Control(
            name="disk",
            mechanism=disks.maker() or "absent",
            works=disks.maker() is not None,
            hint="" if disks.maker() else disks.HINT,
        ),
        _acceleration(settings, program, built),
        Control(name="network", mechanism="none (no device)", works=True),
        Control(
            name="memory",
            mechanism="cgroup-v2 inside" + (", cgroup around" if cgroups else ", size of machine"),
            works=cgroups,
            hint="" if cgroups else "belljar doctor --engine jail says how to get cgroups",
            essential=False,
        ),
    ]


def _acceleration(settings: Settings, program: str | None, built: image.Image | None) -> Control:
    chosen = settings.microvm_accelerator
    if chosen != "auto":
        return Control(name="accelerator", mechanism=chosen, works=True)
    if not accelerator.usable():
        return Control(
            name="accelerator",
            mechanism="tcg (emulation)",
            works=False,
            hint="/dev/kvm cannot be used: many times faster with it; are you in its group?",
            essential=False,
        )
    known = accelerator.remembered(settings, built, program) if program and built else None
    if known is None:
        return Control(name="accelerator", mechanism="kvm, to be tried", works=True)
    return Control(
        name="accelerator",
        mechanism="kvm" if known else "tcg (emulation)",
        works=known,
        hint="" if known else "/dev/kvm is there, but no machine starts with it",
        essential=False,
    )
