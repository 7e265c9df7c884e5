"""A machine as QEMU's command line: a pure function, so that it can be read and tested anywhere.

No default devices, no network, no USB, no display, no PCI: a serial console that only a starting
machine writes to, a port for the agent, and at most one read-only disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from belljar.model import MIB

SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
"""QEMU's own system-call filter."""
TRANSLATED_MIB = 64
"""TCG's cache of translated code; it is thrown away and filled anew when full."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a snapshot fits: the copy must be built exactly like the original."""

    program: str
    accelerator: str
    """kvm or tcg"""
    memory_bytes: int
    cpus: int
    has_disk: bool
    reads_memory: bool = False
    """This QEMU (8.2 and newer) can map a file privately that it may only read."""


@dataclass(frozen=True, kw_only=True)
class Descriptors:
    """Files that QEMU inherits, by number."""

    ram: int
    stream: int
    monitor: int
    """Where an original is told to write the state of its devices, and a copy to read it."""
    disk: int = -1
    state: int = -1
    """Of a copy: that file."""


@dataclass(frozen=True, kw_only=True)
class Boot:
    """What an original starts from, as QEMU sees the files."""

    kernel: str
    root: str
    tsc_khz: int = 0
    command: str = ""
    """Instead of /init."""


def _common(machine: Machine, descriptors: Descriptors, *, original: bool) -> list[str]:
    tcg = machine.accelerator == "tcg"
    memory = f"{machine.memory_bytes // MIB}M"
    # A copy maps the original's memory privately: it reads what it needs, when it needs it, and
    # what it writes is its own.
    ram = f"memory-backend-file,id=ram,size={memory},mem-path=/proc/self/fd/{descriptors.ram}"
    argv = [machine.program, "-name", "belljar", "-nodefaults", "-no-user-config", "-no-reboot"]
    argv += ["-display", "none", "-sandbox", SANDBOX]
    argv += ["-M", "microvm,rtc=on,pit=on,pic=on,memory-backend=ram,mem-merge=off"]
    argv += ["-accel", f"tcg,tb-size={TRANSLATED_MIB}" if tcg else "kvm"]
    argv += ["-cpu", "max", "-smp", str(machine.cpus), "-m", memory]
    ram += ",share=on" if original else ",share=off"
    ram += ",readonly=on,rom=off" if machine.reads_memory and not original else ""
    argv += ["-object", f"{ram},prealloc=off,reserve=off"]
    argv += ["-chardev", "stdio,id=console,signal=off" if original else "null,id=console"]
    argv += ["-serial", "chardev:console"]
    argv += ["-chardev", f"socket,id=agent,fd={descriptors.stream}"]
    argv += ["-device", "virtio-serial-device,max_ports=2"]
    argv += ["-device", "virtserialport,chardev=agent,nr=1,name=agent"]
    argv += ["-chardev", f"socket,id=monitor,fd={descriptors.monitor}"]
    argv += ["-mon", "chardev=monitor,mode=control"]
    if machine.has_disk:
        argv += ["-add-fd", f"fd={descriptors.disk},set=1"]
        file = "file.driver=file,file.filename=/dev/fdset/1,file.locking=off"
        argv += ["-blockdev", f"driver=raw,node-name=disk,read-only=on,{file}"]
        argv += ["-device", "virtio-blk-device,drive=disk"]
    return argv


def original(machine: Machine, descriptors: Descriptors, boot: Boot) -> list[str]:
    """Boots a kernel; its memory is shared with us, so that what is left of it is the snapshot."""
    words = ["console=ttyS0", "quiet", "panic=-1", "random.trust_cpu=on", "cgroup_no_v1=all"]
    words += ["mitigations=off"] if machine.accelerator == "tcg" else []
    if boot.tsc_khz:
        # Measuring the clock against another fails on a busy machine, and the kernel then hangs.
        words += [f"tsc_early_khz={boot.tsc_khz}", "tsc=reliable", "no_timer_check"]
    words += [f"rdinit={boot.command}"] if boot.command else []
    argv = _common(machine, descriptors, original=True)
    argv += ["-kernel", boot.kernel, "-initrd", boot.root, "-append", " ".join(words)]
    return argv


def copy(machine: Machine, descriptors: Descriptors) -> list[str]:
    """Waits to be told on its monitor where to go on from."""
    return [*_common(machine, descriptors, original=False), "-incoming", "defer"]
