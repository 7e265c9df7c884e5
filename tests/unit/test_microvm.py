"""The parts of the microvm engine that need no machine: archives, modules, command lines, files."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path

import pytest

from belljar.engines.base import Ground
from belljar.engines.microvm import (
    accelerator,
    available,
    contents,
    cpio,
    disks,
    engine,
    image,
    machine,
    modules,
    monitor,
    snapshots,
)
from belljar.errors import EngineUnavailable, LimitExceeded
from belljar.model import GIB, MIB, Limits
from belljar.settings import Settings

KIND = machine.Machine(
    program="/usr/bin/qemu-system-x86_64",
    accelerator="tcg",
    memory_bytes=GIB,
    cpus=1,
    has_disk=True,
)
PASSED = machine.Descriptors(ram=10, stream=11, monitor=12, disk=13, state=14)
BOOT = machine.Boot(kernel="/k", root="/r", tsc_khz=2_500_000)


def unpacked(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Path → (mode, content), read as the kernel does: header fields of eight hex digits."""
    found = {}
    position = 0
    while True:
        head = archive[position : position + 110]
        assert head[:6] == b"070701"
        fields = [int(head[6 + 8 * n : 14 + 8 * n], 16) for n in range(13)]
        mode, size, length = fields[1], fields[6], fields[11]
        start = position + 110
        name = archive[start : start + length - 1].decode()
        start += length + -(110 + length) % 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, archive[start : start + size])
        position = start + size + -size % 4


class TestArchive:
    def test_files_links_and_the_folders_they_need(self) -> None:
        file = io.BytesIO()
        entries = [cpio.text("etc/deep/name", "né\n", 0o600), cpio.link("bin", "usr/bin")]
        cpio.write(file, entries)
        found = unpacked(file.getvalue())
        assert list(found) == ["etc", "etc/deep", "etc/deep/name", "bin"]
        assert found["etc/deep/name"] == (stat.S_IFREG | 0o600, "né\n".encode())
        assert found["bin"] == (stat.S_IFLNK | 0o777, b"usr/bin")

    def test_a_copy_carries_no_owner_and_no_special_bits(self, tmp_path: Path) -> None:
        """I1: a setuid program of the host is an ordinary one inside."""
        source = tmp_path / "program"
        source.write_bytes(b"#!")
        source.chmod(0o4755)
        assert cpio.copy("usr/bin/program", source).mode == stat.S_IFREG | 0o755

    def test_the_guests_own_part_is_closed_to_the_code(self) -> None:
        file = io.BytesIO()
        cpio.write(file, contents.guest())
        found = unpacked(file.getvalue())
        assert found["init"][0] == stat.S_IFREG | 0o700
        assert found["init"][1].startswith(b"#!/usr/local/bin/python3 -IB\n")
        assert found[contents.GUEST][0] == stat.S_IFDIR | 0o700
        assert f"{contents.GUEST}/belljar/runtimes/guest/agent.py" in found


class TestModules:
    def test_each_comes_after_what_it_needs(self, tmp_path: Path) -> None:
        for name, needs in (("virtio_mmio", "virtio,virtio_ring"), ("virtio_ring", "virtio")):
            (tmp_path / f"{name}.ko").write_bytes(b"x\0depends=" + needs.encode() + b"\0y")
        (tmp_path / "virtio.ko").write_bytes(b"x\0depends=\0y")
        names = [name for name, _ in modules.in_order(tmp_path, ("virtio_mmio",))]
        assert names == ["virtio", "virtio_ring", "virtio_mmio"]

    def test_what_is_part_of_the_kernel_is_not_looked_for(self, tmp_path: Path) -> None:
        (tmp_path / "modules.builtin").write_text("kernel/fs/erofs/erofs.ko\n")
        assert modules.in_order(tmp_path, ("erofs",)) == []

    def test_a_kernel_without_virtio_is_refused_with_advice(self, tmp_path: Path) -> None:
        with pytest.raises(EngineUnavailable, match="virtio_mmio") as refused:
            modules.in_order(tmp_path)
        assert "linux-image-cloud-amd64" in refused.value.hint


class TestCommandLine:
    @pytest.mark.parametrize(
        "argv", [machine.original(KIND, PASSED, BOOT), machine.copy(KIND, PASSED)]
    )
    def test_nothing_but_what_is_named(self, argv: list[str]) -> None:
        """I4, I5: no default device, no network, and QEMU behind its own filter."""
        assert {"-nodefaults", "-no-user-config", "-no-reboot"} <= set(argv)
        assert not {"-netdev", "-nic", "-net", "-usb", "-vnc", "-virtfs"} & set(argv)
        assert argv[argv.index("-sandbox") + 1] == machine.SANDBOX
        devices = [
            argv[n + 1].partition(",")[0] for n, word in enumerate(argv) if word == "-device"
        ]
        assert devices == ["virtio-serial-device", "virtserialport", "virtio-blk-device"]
        assert "read-only=on" in argv[argv.index("-blockdev") + 1]

    def test_a_copy_writes_to_memory_of_its_own(self) -> None:
        ram = machine.copy(KIND, PASSED)[machine.copy(KIND, PASSED).index("-object") + 1]
        assert "share=off" in ram and "readonly" not in ram
        assert "share=on" in " ".join(machine.original(KIND, PASSED, BOOT))

    def test_a_newer_qemu_reads_only_by_itself(self) -> None:
        import dataclasses

        newer = dataclasses.replace(KIND, reads_memory=True)
        assert "share=off,readonly=on,rom=off" in " ".join(machine.copy(newer, PASSED))
        assert "readonly=on,rom" not in " ".join(machine.original(newer, PASSED, BOOT))

    @pytest.mark.parametrize(
        ("said", "newer"), [("7.2.22", False), ("8.1.0", False), ("8.2.0", True), ("10.0.2", True)]
    )
    def test_which_qemu_can(self, said: str, newer: bool) -> None:
        assert (engine.version_of(said) >= (8, 2)) is newer

    def test_only_an_emulated_machine_is_told_its_clock(self) -> None:
        import dataclasses

        emulated = " ".join(machine.original(KIND, PASSED, BOOT))
        assert "tsc_early_khz=2500000" in emulated
        real = dataclasses.replace(KIND, accelerator="kvm")
        untold = machine.Boot(kernel="/k", root="/r")
        assert "tsc_early_khz" not in " ".join(machine.original(real, PASSED, untold))

    def test_a_copy_is_told_everything_at_once(self) -> None:
        orders = [json.loads(line) for line in monitor.restore(14).splitlines()]
        assert [order["execute"] for order in orders] == [
            "qmp_capabilities",
            "migrate-set-capabilities",
            "migrate-incoming",
        ]
        assert orders[-1]["arguments"] == {"uri": "fd:14"}


class TestSnapshots:
    def test_what_is_saved_is_what_is_loaded(self, tmp_path: Path) -> None:
        settings = Settings(home=tmp_path)
        ram = snapshots.new_ram(64 * MIB)
        os.pwrite(ram, b"first", 0)
        os.pwrite(ram, b"last", 64 * MIB - 4)
        snapshots.save(settings, "name", ram=ram, state=b"state")
        os.close(ram)
        loaded = snapshots.load(settings, "name")
        assert loaded is not None and loaded.state == b"state"
        assert os.pread(loaded.ram, 5, 0) == b"first"
        assert os.pread(loaded.ram, 4, 64 * MIB - 4) == b"last"
        assert os.fstat(loaded.ram).st_blocks * 512 < MIB  # nothing else takes room
        with pytest.raises(OSError):
            os.write(loaded.ram, b"x")
        loaded.close()

    def test_others_cannot_look_into_the_folder(self, tmp_path: Path) -> None:
        ram = snapshots.new_ram(MIB)
        snapshots.save(Settings(home=tmp_path), "name", ram=ram, state=b"")
        os.close(ram)
        folder = snapshots.folder_of(Settings(home=tmp_path))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "name" / "state").stat().st_mode) == 0o600
        assert sorted(os.listdir(folder)) == ["name"]

    def test_the_ones_not_used_for_longest_go(self, tmp_path: Path) -> None:
        settings = Settings(home=tmp_path)
        ram = snapshots.new_ram(MIB)
        for number in range(snapshots.KEPT + 2):
            snapshots.save(settings, f"s{number}", ram=ram, state=b"")
            folder = snapshots.folder_of(settings) / f"s{number}"
            os.utime(folder, (number, number))
        snapshots.save(settings, "new", ram=ram, state=b"")
        os.close(ram)
        left = os.listdir(snapshots.folder_of(settings))
        assert len(left) == snapshots.KEPT and "new" in left and "s0" not in left

    def test_a_missing_one_is_none(self, tmp_path: Path) -> None:
        assert snapshots.load(Settings(home=tmp_path), "none") is None

    def test_leftovers_of_the_dead_are_swept_and_work_in_progress_is_not(
        self, tmp_path: Path
    ) -> None:
        """R3"""
        home = tmp_path / "microvm"
        for name in ("building-old", "disks/making-old", "snapshots/saving-old", "building-new"):
            (home / name / "deep").mkdir(parents=True)
            if name.endswith("old"):
                os.utime(home / name, (0, 0))
        snapshots.sweep(Settings(home=tmp_path))
        assert [path.name for path in home.rglob("*-*")] == ["building-new"]

    def test_the_key_changes_with_what_it_depends_on(self, tmp_path: Path) -> None:
        import dataclasses

        kind = dataclasses.replace(KIND, program="/bin/sh")
        built = image.Image(folder=tmp_path, release="6.1", digest="d")
        ground = Ground(name="base", mount="/m")
        keys = {
            snapshots.key(kind, built, ground),
            snapshots.key(dataclasses.replace(kind, accelerator="kvm"), built, ground),
            snapshots.key(dataclasses.replace(kind, memory_bytes=2 * GIB), built, ground),
            snapshots.key(kind, dataclasses.replace(built, digest="e"), ground),
            snapshots.key(kind, built, dataclasses.replace(ground, preload=("json",))),
            snapshots.key(kind, built, dataclasses.replace(ground, tier="other")),
        }
        assert len(keys) == 6
        assert snapshots.key(kind, built, ground) in keys


class TestAvailable:
    def test_each_missing_part_is_named_with_advice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = Settings(home=tmp_path, microvm_program="no-such-program")
        missing = available.why_not(settings)
        assert missing and "no-such-program" in missing.why and "apt-get" in missing.hint
        settings = Settings(home=tmp_path, microvm_program="sh")
        monkeypatch.setattr(disks, "maker", lambda: None)
        missing = available.why_not(settings)
        assert missing and "mkfs.erofs" in missing.why
        monkeypatch.setattr(disks, "maker", lambda: "/sbin/mkfs.erofs")
        missing = available.why_not(settings)
        assert missing and missing.hint == "belljar image build --microvm"

    def test_a_damaged_image_is_none(self, tmp_path: Path) -> None:
        settings = Settings(home=tmp_path)
        folder = image.folder_of(settings)
        folder.mkdir(parents=True)
        (folder / image.MANIFEST).write_text("{")
        assert image.locate(settings) is None

    def test_the_answer_about_kvm_lasts_until_the_next_boot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = Settings(home=tmp_path)
        built = image.Image(folder=tmp_path, release="6.1", digest="d")
        file = tmp_path / "microvm" / "accelerator.json"
        assert accelerator.remembered(settings, built, "/bin/sh") is None
        file.parent.mkdir()
        facts = accelerator._circumstances(built, "/bin/sh")
        file.write_text(json.dumps({"circumstances": facts, "works": False}))
        assert accelerator.remembered(settings, built, "/bin/sh") is False
        file.write_text(json.dumps({"circumstances": ["another boot"], "works": True}))
        assert accelerator.remembered(settings, built, "/bin/sh") is None


def test_more_memory_than_the_machine_has_is_refused(tmp_path: Path) -> None:
    microvm = engine.MicrovmEngine(Settings(home=tmp_path, microvm_memory_bytes=GIB))
    microvm.check(Limits(memory_bytes=GIB))
    with pytest.raises(LimitExceeded, match="1024 MiB") as refused:
        microvm.check(Limits(memory_bytes=GIB + 1))
    assert "microvm_memory_bytes" in refused.value.hint


def test_dates_survive_on_the_disk() -> None:
    """Python would compile every module anew, at every import, if they did not."""
    erofs = disks._command("mkfs.erofs", "erofs", Path("/t"), Path("/f"))
    assert "force-inode-extended" in erofs and "-T" not in " ".join(erofs).split()
