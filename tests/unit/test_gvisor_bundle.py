"""From the plan of the root to an OCI bundle (I2, I5): pure, so no gVisor is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from belljar.engines.base import Ground
from belljar.engines.gvisor import bundle, folder, runsc
from belljar.engines.linux import root
from belljar.errors import EngineUnavailable

FACTS = root.HostFacts(
    top_links={"/bin": "usr/bin"},
    top_folders=("/lib64",),
    etc=("ld.so.cache", "ssl/certs"),
    python="/opt/py/bin/python3",
    python_prefix="/opt/py",
    foreign_packages=("/opt/py/lib/python3/site-packages",),
)
FOLDERS = {"/usr", "/lib64", "/opt/py", "/home/x/env", "/etc/ssl/certs"}


@pytest.fixture
def layout() -> bundle.Layout:
    plan = root.plan_root(FACTS, ("/home/x/env", "/opt/belljar/data"))
    return bundle.lay_out(plan, is_folder=FOLDERS.__contains__)


def test_only_folders_of_the_plan_are_mounted_and_only_to_be_read(layout: bundle.Layout) -> None:
    """I2: nothing of the host is writable, and nothing is there that the plan does not name."""
    binds = {m["destination"]: m for m in layout.mounts if m["type"] == "bind"}
    assert {name: mount["source"] for name, mount in binds.items()} == {
        "/usr": "/usr",
        "/lib64": "/lib64",
        "/opt/py": "/opt/py",
        "/opt/belljar/data": "/home/x/env",
    }
    assert all({"ro", "nosuid", "nodev"} <= set(m["options"]) for m in layout.mounts)


def test_packages_of_the_host_are_covered_after_what_they_are_in(layout: bundle.Layout) -> None:
    order = [mount["destination"] for mount in layout.mounts]
    assert order.index("/opt/py/lib/python3/site-packages") > order.index("/opt/py")
    assert order.index("/usr/local") > order.index("/usr")


def test_etc_is_copied(layout: bundle.Layout) -> None:
    copies = [step for step in layout.made if step[0] == "copy"]
    assert copies == [
        ("copy", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        ("copy", "/etc/ssl/certs", "/etc/ssl/certs"),
    ]
    written = {step[1] for step in layout.made if step[0] == "file"}
    assert {"/etc/passwd", "/etc/resolv.conf"} <= written


def test_devices_and_proc_are_gvisors_own(layout: bundle.Layout) -> None:
    places = {step[1] for step in layout.made} | {m["destination"] for m in layout.mounts}
    assert not [place for place in places if place.startswith(("/dev/", "/run/proc-sys"))]


def test_the_specification_gives_the_code_nothing(tmp_path: Path, layout: bundle.Layout) -> None:
    """I1, I4: the bounding set is empty and privileges cannot grow, so what the agent has in gVisor
    ends with it; inputs are read-only; there is a network namespace, and nothing joins it."""
    spec = bundle.specification(
        tmp_path, layout.mounts, inputs=tmp_path / "in", python="/opt/py/bin/python3"
    )
    process = spec["process"]
    assert process["noNewPrivileges"] is True
    assert process["capabilities"]["bounding"] == []
    assert process["capabilities"]["inheritable"] == process["capabilities"]["ambient"] == []
    assert spec["root"]["readonly"] is True
    assert spec["mounts"][-1]["destination"] == "/data/input"
    assert "ro" in spec["mounts"][-1]["options"]
    assert {"type": "network"} in spec["linux"]["namespaces"]
    assert str(tmp_path) not in " ".join(process["args"] + process["env"])


def test_the_agents_files_lie_in_empty_packages() -> None:
    steps = bundle.library(
        ["runtimes/guest/__init__.py", "runtimes/guest/agent.py"], lambda name: f"# {name}"
    )
    found = {step[1].removeprefix("/opt/belljar/lib/belljar/"): step[2] for step in steps}
    assert found["runtimes/guest/agent.py"] == "# runtimes/guest/agent.py"
    assert found["__init__.py"] == found["runtimes/guest/__init__.py"] == ""
    assert set(bundle.SOURCES) <= set(found)


def test_a_root_is_written_as_planned(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "link").symlink_to("nowhere")
    (source / "file").write_text("x")
    ground = Ground(name="g", mount="/opt/g", preload=("json",))
    steps = [
        ("folder", "/tmp"),
        ("link", "/bin", "usr/bin"),
        ("copy", "/etc/copied", str(source)),
        bundle.ground_file(ground, disk_bytes=5),
    ]
    folder.write(tmp_path / "root", steps, closed=bundle.LIBRARY)
    made = tmp_path / "root"
    assert (made / "bin").readlink() == Path("usr/bin")
    assert (made / "etc/copied/file").read_text() == "x"
    assert json.loads((made / bundle.GROUND.lstrip("/")).read_text())["preload"] == ["json"]
    assert (made / bundle.LIBRARY.lstrip("/")).stat().st_mode & 0o777 == 0o700


OLD = """\
  -overlay2 value
    \twraps mounts
  -platform string
    \tspecifies which platform to use: ptrace (default), kvm. (default "ptrace")
"""
NEW = (
    OLD.replace("ptrace (default), kvm", "systrap (default), ptrace, kvm")
    + "  -directfs\n    \tx\n"
)


@pytest.mark.parametrize(
    ("wanted", "flags", "platform"),
    [("", OLD, "ptrace"), ("", NEW, "systrap"), ("ptrace", NEW, "ptrace"), ("", "", "ptrace")],
)
def test_the_best_platform_is_chosen(wanted: str, flags: str, platform: str) -> None:
    assert runsc.choose_platform(wanted, flags) == platform


def test_a_platform_that_is_not_there_is_refused() -> None:
    with pytest.raises(EngineUnavailable, match="no platform 'systrap'") as refused:
        runsc.choose_platform("systrap", OLD)
    assert "ptrace" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("runsc version release-20240729.0\nspec: 1.1.0", "20240729.0"),
        ("runsc version 0.0~20221219.0\n", "0.0~20221219.0"),
        ("nonsense", "unknown"),
    ],
)
def test_versions_are_read(text: str, version: str) -> None:
    assert runsc.parse_version(text) == version


def test_flags_that_a_version_does_not_know_are_left_out() -> None:
    """directfs came in 2023; with it gVisor's kernel would open files with root's rights."""
    found = runsc.Runsc("/usr/bin/runsc", "1", "systrap", runsc.parse_options(NEW), False)
    assert "--directfs=false" in found.argv(Path("/s"), "run")
    found = found._replace(options=runsc.parse_options(OLD))
    assert not [word for word in found.argv(Path("/s"), "run") if "directfs" in word]
    assert "--rootless" in found._replace(rootless=True).argv(Path("/s"), "run")
