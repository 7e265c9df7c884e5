"""What is asked of Docker for a sandbox, line by line (I1-I4, L1-L5)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from belljar.engines.base import Ground
from belljar.engines.docker import available, boot, facts, owner, plan
from belljar.engines.docker.daemon import Refused, Silent, find_address, parse
from belljar.engines.docker.engine import DockerEngine
from belljar.errors import EngineError, EngineUnavailable
from belljar.model import MIB, Limits
from belljar.settings import Settings

GROUND = Ground(name="base", mount="/opt/belljar/base")
PLACE = plan.Place(image="belljar/base", python="/usr/bin/python3", uid=50_007)


def body(place: plan.Place = PLACE, limits: Limits | None = None, **more: Any) -> dict[str, Any]:
    ground = more.pop("ground", GROUND)
    waiting = more.pop("waiting", False)
    return plan.container(place, ground, limits or Limits(), labels={"a": "b"}, waiting=waiting)


def test_nothing_of_the_host_and_no_privilege() -> None:
    asked = body()
    host = asked["HostConfig"]
    assert asked["User"] == "50007:50007"
    assert host["CapDrop"] == ["ALL"] and "CapAdd" not in host and host["Privileged"] is False
    assert host["ReadonlyRootfs"] is True and host["Mounts"] == []
    assert host["NetworkMode"] == "none" and host["IpcMode"] == "private"
    assert "no-new-privileges" in host["SecurityOpt"]
    (seccomp,) = (o for o in host["SecurityOpt"] if o.startswith("seccomp="))
    assert json.loads(seccomp[len("seccomp=") :])["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {"PidMode", "UTSMode", "UsernsMode", "Devices", "Binds"}.isdisjoint(host)
    assert host["LogConfig"]["Type"] == "none"
    assert {"/sys", "/proc/sys", "/proc/kcore", "/dev/mqueue"} <= set(host["MaskedPaths"])


def test_limits() -> None:
    limits = Limits(memory_bytes=300 * MIB, cpus=1.5, processes=10, disk_bytes=7, disk_files=9)
    host = body(limits=limits)["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 300 * MIB
    assert host["NanoCpus"] == 1_500_000_000
    assert host["PidsLimit"] == 11
    assert set(host["Tmpfs"]) >= {"/workspace", "/tmp", "/data/output", "/dev/shm"}
    for options in host["Tmpfs"].values():
        assert {"size=7", "nr_inodes=9", "uid=50007", "nosuid", "nodev"} <= set(options.split(","))


def test_s6_a_kept_sandbox_has_a_place_for_its_past_that_the_code_may_not_write() -> None:
    kept = Ground(name="base", mount="/opt/belljar/base", kept=True)
    limits = Limits(disk_bytes=7, disk_files=9)
    quota = body(limits=limits, ground=kept)["HostConfig"]["Tmpfs"][plan.STORE].split(",")
    assert {"size=7", "nr_inodes=9", "uid=50007", "mode=0700", "nosuid", "nodev"} <= set(quota)
    told = plan.configuration(PLACE, kept, limits, waiting=False)
    assert told["kept"] and told["roots"]["store"] == plan.STORE not in told["writable"]
    assert plan.STORE not in body()["HostConfig"]["Tmpfs"]


def test_the_smallest_container_can_start() -> None:
    assert body(limits=Limits(memory_bytes=16 * MIB))["HostConfig"]["Memory"] == plan.START_BYTES


def test_inputs_and_environments_are_mounted_read_only() -> None:
    place = plan.Place(image="i", python="p", inputs=Path("/in"), folder=Path("/env"), native=True)
    asked = body(place)
    mounts = {m["Target"]: m for m in asked["HostConfig"]["Mounts"]}
    assert set(mounts) == {"/data/input", "/opt/belljar/base"}
    assert all(m["ReadOnly"] is True and m["Type"] == "bind" for m in mounts.values())
    assert "/data/input" not in asked["HostConfig"]["Tmpfs"]
    assert json.loads(asked["Cmd"][-1])["python"] == list(sys.version_info[:2])


def test_what_is_imported_ahead_comes_on_top() -> None:
    ground = Ground(name="data", mount="/m", preload=("a", "b"), rehearsal="a.b()")
    waiting, at_once = (body(ground=ground, waiting=flag) for flag in (True, False))
    extra = waiting["HostConfig"]["Memory"] - at_once["HostConfig"]["Memory"]
    assert extra == 2 * plan.MODULE_BYTES
    assert json.loads(waiting["Cmd"][-1])["preload"] == ["a", "b"]
    assert json.loads(at_once["Cmd"][-1])["preload"] == []


def test_a_runtime_with_a_kernel_of_its_own() -> None:
    place = plan.Place(image="i", python="p", runtime="runsc")
    host = body(place)["HostConfig"]
    assert host["Runtime"] == "runsc" and host["Sysctls"] == {} and host["Tmpfs"] == {}
    assert host["PidsLimit"] > 1000 and host["Memory"] == (512 + 128) * MIB
    volumes = {m["Target"]: m["VolumeOptions"]["DriverConfig"]["Options"] for m in host["Mounts"]}
    assert "nr_inodes=10000" in volumes["/tmp"]["o"] and volumes["/tmp"]["type"] == "tmpfs"


def test_the_pack_is_the_guest_of_this_belljar() -> None:
    import zlib

    pack = json.loads(zlib.decompress(boot.pack()))
    guest = Path(boot.guest.__file__).parent
    for name, source in pack["source"].items():
        file = name.partition(".")[2] or "__init__"
        assert source == (guest / f"{file}.py").read_text()
    needed = {path.stem for path in guest.glob("*.py")}
    assert {"agent", "runner", "standalone", "protocol"} <= needed
    assert boot.command("python3", {})[:3] == ["python3", "-I", "-c"]


# -- the daemon ------------------------------------------------------------------------------------

HEAD = b"HTTP/1.0 %d X\r\nContent-Type: application/json\r\n\r\n"


def test_answers() -> None:
    assert parse(HEAD % 200 + b'{"a": 1}') == {"a": 1}
    assert parse(b"HTTP/1.0 204 No Content\r\n\r\n") is None
    assert parse(HEAD % 200 + b'{"a": 1}\n{"b": 2}\n', lines=True) == [{"a": 1}, {"b": 2}]
    with pytest.raises(Refused, match="no such thing") as caught:
        parse(HEAD % 404 + b'{"message": "no such thing"}')
    assert caught.value.status == 404
    with pytest.raises(Refused) as caught:
        parse(HEAD % 500 + b'{"message": "write /x: no space left on device"}')
    assert "prune" in caught.value.hint


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0", b"nonsense\r\n\r\n", b"\0" * 20])
def test_half_an_answer(answer: bytes) -> None:
    with pytest.raises(Silent):
        parse(answer)


def test_an_answer_that_is_not_json() -> None:
    with pytest.raises(EngineError, match="not JSON"):
        parse(HEAD % 200 + b"{")


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_address("unix:///a/b").place == "/a/b"
    assert find_address("tcp://host:99").place == ("host", 99)
    monkeypatch.setenv("DOCKER_HOST", "unix:///c")
    assert find_address().place == "/c"
    assert find_address("unix:///d").place == "/d"
    for wrong in ("ssh://host", "https://host", "unix://", "words"):
        with pytest.raises(EngineUnavailable, match="docker_host") as caught:
            find_address(wrong)
        assert "ssh -L" in caught.value.hint


INFO = {
    "MemoryLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "CgroupVersion": "2",
    "SecurityOptions": ["name=seccomp,profile=default"],
    "Name": "elsewhere",
}


def test_a_daemon_that_cannot_limit_is_refused() -> None:
    facts.read(INFO).check()
    for name in ("MemoryLimit", "PidsLimit", "CpuCfsQuota"):
        with pytest.raises(EngineUnavailable, match="cannot limit"):
            facts.read({**INFO, name: False}).check()
    with pytest.raises(EngineUnavailable, match="system calls"):
        facts.read({**INFO, "SecurityOptions": []}).check()


def test_another_machine_is_not_ours() -> None:
    assert not facts.read(INFO).local


def test_an_engine_without_a_daemon_can_be_made(tmp_path: Path) -> None:
    engine = DockerEngine(Settings(home=tmp_path, docker_host=f"unix://{tmp_path}/none"))
    (control,) = engine.controls()
    assert not control.works and "cannot be reached" in control.hint


def test_images_by_environment() -> None:
    settings = Settings(docker_images={"data": "mine/data:3"})
    assert available.image_of("data", settings) == "mine/data:3"
    assert available.image_of("base", settings) == "belljar/base"


# -- owners ----------------------------------------------------------------------------------------


def test_only_what_is_dead_for_certain_is_left() -> None:
    here = owner.world()
    alive = owner.new_owner()
    dead = "1-1-0"
    listed = [
        {"Id": "living", "Labels": {owner.LABEL: alive, owner.WORLD: here}},
        {"Id": "dead", "Labels": {owner.LABEL: dead, owner.WORLD: here}},
        {"Id": "elsewhere", "Labels": {owner.LABEL: dead, owner.WORLD: "x"}},
        {"Id": "nobody's", "Labels": {owner.WORLD: here}},
        {"Id": "no name", "Labels": {owner.LABEL: "words", owner.WORLD: here}},
        {"Id": "plain", "Labels": None},
    ]
    assert owner.left(listed) == ["dead"]


def test_folders_of_the_living_stay(tmp_path: Path) -> None:
    ours = owner.Owner(tmp_path)
    inputs = ours.new_inputs("c")
    dead = owner.folder(tmp_path) / "1-1-0" / "c"
    dead.mkdir(parents=True)
    (dead / "file").write_text("x")
    owner.sweep_folders(tmp_path)
    assert inputs.is_dir() and not dead.parent.exists()
    ours.close()
    assert list(owner.folder(tmp_path).iterdir()) == []
