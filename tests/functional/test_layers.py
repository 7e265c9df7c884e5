"""Package layers, built by the real uv from small wheels that the tests write (S5).

A folder of wheels is the operator's index here, and there is no other: none of it needs a network.
tests/functional/test_layers_index.py asks a real index.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import importlib.util
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from belljar.environments import assemble, bytecode, folders, install, layers
from belljar.environments.catalogue import BASE, Environment
from belljar.environments.layers import Layer
from belljar.errors import EnvironmentUnavailable, PackageRefused
from belljar.model import MIB, Caller
from belljar.policy.packages import check_packages
from belljar.runtimes.interpreter import base_interpreter
from belljar.settings import Settings

pytestmark = pytest.mark.slow

TINY = Environment(name="tiny", packages=("numbers-package",))


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    *,
    requires: Sequence[str] = (),
    entry_points: str = "",
    links: Mapping[str, str] | None = None,
) -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents: dict[str, str | bytes] = {
        **files,
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {text}\n" for text in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    if entry_points:
        contents[f"{info}/entry_points.txt"] = entry_points
    record = ""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in contents.items():
            data = content.encode() if isinstance(content, str) else content
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{member},sha256={digest},{len(data)}\n"
            archive.writestr(member, data)
        for member, target in (links or {}).items():
            link = zipfile.ZipInfo(member)
            link.create_system = 3
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, target)
            record += f"{member},,\n"
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")


class Shop:
    """An index of a few wheels, a data directory, and a count of how often uv is asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wheels = path / "wheels"
        self.home = path / "home"
        self.uv = path / "uv"
        self.log = path / "log"
        self.wheels.mkdir()
        (path / "empty").mkdir()
        self.write_uv()
        self.settings = Settings(home=self.home, packages_allowed="any")

    def write_uv(self, *, before: str = "") -> None:
        real = install_find_uv()
        self.uv.write_text(f'#!/bin/sh\necho "$2" >> {self.log}\n{before}\nexec {real} "$@"\n')
        self.uv.chmod(0o755)

    def calls(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    def wheel(
        self, name: str, version: str, files: Mapping[str, str | bytes], **more: object
    ) -> None:
        write_wheel(self.wheels, name, version, files, **more)  # type: ignore[arg-type]

    def layer(self, *texts: str, environment: Environment = BASE, **more: object) -> Layer:
        settings = self.settings
        if more:
            import dataclasses

            settings = dataclasses.replace(settings, **more)  # type: ignore[arg-type]
        return layers.layer(check_packages(texts, settings), settings, environment=environment)

    def left_over(self) -> list[str]:
        """What builders left in the folder of layers, but for locks and notes."""
        keys = {item.key for item in layers.installed(self.settings)}
        return sorted(
            item.name
            for item in (self.home / "layers").iterdir()
            if item.suffix != ".lock" and item.name not in keys | {"requests"}
        )

    def builder(self, *texts: str) -> subprocess.Popen[bytes]:
        """Another process that wants these packages."""
        code = f"""
            from pathlib import Path
            from belljar.environments import install, layers
            from belljar.environments.catalogue import BASE
            from belljar.settings import Settings
            install.find_uv = lambda: {str(self.uv)!r}
            layers.layer({texts!r}, Settings(home=Path({str(self.home)!r})), environment=BASE)
        """
        return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])


install_find_uv = install.find_uv


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    for name in list(os.environ):
        if name.startswith("UV_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "empty").as_uri())
    made = Shop(tmp_path)
    monkeypatch.setattr(install, "find_uv", lambda: str(made.uv))
    yield made


@pytest.fixture
def stocked(shop: Shop) -> Shop:
    shop.wheel(
        "alpha",
        "1.0",
        {
            "alpha/__init__.py": "from beta import two\n\ndef main():\n    print('alpha', two)\n",
            "alpha/broken.py": "this is not Python\n",
            "alpha.pth": "import os; os.write(2, b'pth ran')\n",
            "sitecustomize.py": "print('sitecustomize ran')\n",
            "json.py": "raise SystemExit('hidden')\n",
            "alpha-1.0.data/scripts/old-tool": "#!python\nprint('old')\n",
        },
        requires=["beta>=1"],
        entry_points="[console_scripts]\nalpha=alpha:main\n",
    )
    shop.wheel("beta", "1.2", {"beta.py": "two = 2\n"})
    return shop


def python(layer: Layer, code: str) -> str:
    done = subprocess.run(
        [base_interpreter(), "-c", code],
        env={"PYTHONPATH": str(layer.folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- a layer


def test_S5_a_set_is_built_with_its_dependencies_and_can_be_imported(stocked: Shop) -> None:
    layer = stocked.layer("alpha==1.*")
    assert layer.packages == {"alpha": "1.0", "beta": "1.2"}
    assert layer.imports == {"alpha", "beta"}
    assert python(layer, "import alpha; alpha.main()") == "alpha 2\n"
    assert layer.folder == stocked.home / "layers" / layer.key / "files"
    assert 4096 * 8 < layer.bytes < MIB
    assert stocked.left_over() == []


def test_S5_only_what_is_asked_for_has_to_be_allowed(stocked: Shop) -> None:
    assert stocked.layer("alpha", packages_allowed=("alpha",)).packages["beta"] == "1.2"
    with pytest.raises(PackageRefused, match="beta is not allowed"):
        stocked.layer("beta", packages_allowed=("alpha",))


def test_S5_nothing_in_it_acts_when_a_python_starts(stocked: Shop) -> None:
    layer = stocked.layer("alpha")
    assert python(layer, "import json; print(json.dumps(1))") == "1\n"
    code = f"import site; site.addsitedir({str(layer.folder)!r}); print('quiet')"
    assert python(layer, code) == "quiet\n"
    manifest = json.loads((layer.folder.parent / layers.MANIFEST).read_text())
    assert manifest["dropped"] == ["alpha.pth", "json.py", "sitecustomize.py"]


def test_commands_are_kept_and_start_whichever_python_is_there(stocked: Shop) -> None:
    layer = stocked.layer("alpha")
    for name, printed in (("alpha", "alpha 2\n"), ("old-tool", "old\n")):
        done = subprocess.run(
            [layer.folder / "bin" / name],
            env={
                "PATH": f"{Path(sys.executable).parent}:/usr/bin",
                "PYTHONPATH": str(layer.folder),
            },
            capture_output=True,
            text=True,
        )
        assert (done.stdout, done.stderr) == (printed, "")


def test_the_files_are_readable_by_all_writable_by_none_and_nobody_elses(stocked: Shop) -> None:
    layer = stocked.layer("alpha")
    paths = [layer.folder, *layer.folder.rglob("*")]
    for path in paths:
        found = path.lstat()
        assert stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)
        assert stat.S_IMODE(found.st_mode) in (0o555, 0o444), path
    assert len(paths) > 10


def test_the_bytecode_is_there_and_tells_nothing_of_the_host(stocked: Shop) -> None:
    layer = stocked.layer("alpha")
    for name in ("alpha/__init__.py", "beta.py"):
        compiled = Path(importlib.util.cache_from_source(str(layer.folder / name)))
        assert compiled.is_file()
    before = {path: path.stat().st_mtime_ns for path in layer.folder.rglob("*.pyc")}
    assert python(layer, "import beta, alpha; print(beta.__file__)").strip() == str(
        layer.folder / "beta.py"
    )
    assert before == {path: path.stat().st_mtime_ns for path in layer.folder.rglob("*.pyc")}
    for path in layer.folder.rglob("*"):
        if path.is_file():
            assert str(stocked.path).encode() not in path.read_bytes(), path


# --- found again


def test_S5_a_second_sandbox_asks_nobody(stocked: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    first = stocked.layer("alpha>=1", "beta")
    assert stocked.calls() == ["compile", "install"]
    monkeypatch.setattr(install, "find_uv", lambda: "/nonexistent")
    started = time.perf_counter()
    for _ in range(100):
        assert stocked.layer("Beta", "alpha >= 1") == first
    assert (time.perf_counter() - started) / 100 < 0.01


def test_two_ways_to_ask_for_the_same_set_share_a_layer(stocked: Shop) -> None:
    one = stocked.layer("alpha")
    other = stocked.layer("alpha==1.0", "beta<2")
    assert one == other
    assert stocked.calls() == ["compile", "install", "compile"]
    assert len(layers.installed(stocked.settings)) == 1


def test_a_new_release_is_taken_up_when_somebody_refreshes(stocked: Shop) -> None:
    old = stocked.layer("beta")
    stocked.wheel("beta", "1.3", {"beta.py": "two = 3\n"})
    assert stocked.layer("beta") == old
    new = assemble.build_layer(["beta"], stocked.settings, environment=BASE, refresh=True)
    assert new.packages == {"beta": "1.3"}
    assert stocked.layer("beta") == new
    assert python(old, "import beta; print(beta.two)") == "2\n", "still there for who has it"


def test_other_bytes_under_the_same_version_are_another_layer(stocked: Shop) -> None:
    first = stocked.layer("beta")
    stocked.wheel("beta", "1.2", {"beta.py": "two = 'changed'\n"})
    second = assemble.build_layer(["beta"], stocked.settings, environment=BASE, refresh=True)
    assert second.packages == first.packages
    assert second.key != first.key
    assert python(first, "import beta; print(beta.two)") == "2\n"


@pytest.mark.parametrize("damage", ["note", "manifest", "folder"])
def test_what_was_damaged_is_built_again(stocked: Shop, damage: str) -> None:
    layer = stocked.layer("beta")
    if damage == "note":
        (note,) = (stocked.home / "layers" / "requests").iterdir()
        note.write_text(note.read_text()[:20])
    else:
        (layer.folder.parent / layers.MANIFEST).write_text('{"packages"')
    if damage == "folder":
        layer.folder.chmod(0o755)
        (layer.folder / "beta.py").unlink()
    assert stocked.layer("beta") == layer
    assert python(layer, "import beta; print(beta.two)") == "2\n"
    assert stocked.left_over() == []


def test_removed_is_removed(stocked: Shop) -> None:
    layer = stocked.layer("beta")
    kept = stocked.layer("alpha")
    assert assemble.remove(layer.key, stocked.settings)
    assert not assemble.remove(layer.key, stocked.settings)
    assert not assemble.remove("../home", stocked.settings)
    assert not layer.folder.exists()
    assert layers.installed(stocked.settings) == [kept]
    assert [asked.layer for _, asked in layers.requests(stocked.settings)] == [kept.key]
    assert stocked.left_over() == []
    assert stocked.layer("beta") == layer


# --- on top of an environment


@pytest.fixture
def tiny(stocked: Shop) -> Shop:
    """With an environment that has beta 1.2."""
    folder = folders.folder_of(TINY, stocked.settings)
    folder.mkdir(parents=True)
    facts = {"name": "tiny", "python": "3", "versions": {"Beta": "1.2"}}
    (folder / folders.MANIFEST).write_text(json.dumps(facts))
    return stocked


def test_S5_what_the_environment_has_is_not_installed_again(tiny: Shop) -> None:
    tiny.wheel("beta", "2.0", {"beta.py": "two = 'newer'\n"})
    layer = tiny.layer("alpha", environment=TINY)
    assert layer.packages == {"alpha": "1.0"}
    assert not (layer.folder / "beta.py").exists()
    assert tiny.layer("alpha").packages == {"alpha": "1.0", "beta": "2.0"}


def test_a_set_that_needs_another_version_of_it_is_refused(tiny: Shop) -> None:
    tiny.wheel("beta", "2.0", {"beta.py": ""})
    with pytest.raises(PackageRefused) as caught:
        tiny.layer("beta>=2", environment=TINY)
    assert "the environment has beta 1.2" in caught.value.hint
    assert tiny.left_over() == []


def test_a_set_that_it_has_already_is_an_empty_layer(tiny: Shop) -> None:
    layer = tiny.layer("beta", environment=TINY)
    assert (layer.packages, layer.imports, layer.bytes) == ({}, frozenset(), 0)
    assert list(layer.folder.iterdir()) == []


# --- refused


def test_S5_what_the_index_has_not_is_refused(stocked: Shop) -> None:
    with pytest.raises(PackageRefused) as caught:
        stocked.layer("gamma")
    assert "gamma" in caught.value.message
    with pytest.raises(PackageRefused) as caught:
        stocked.layer("alpha>=7")
    assert "alpha>=7" in caught.value.message and "versions" in caught.value.hint
    assert stocked.left_over() == [] and layers.installed(stocked.settings) == []


def write_source(shop: Shop, name: str, marker: Path) -> None:
    setup = f"open({str(marker)!r}, 'w').close()\nfrom setuptools import setup\nsetup()\n"
    files = {"setup.py": setup, "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n"}
    with tarfile.open(shop.wheels / f"{name}-9.0.tar.gz", "w:gz") as archive:
        for member, text in files.items():
            entry = tarfile.TarInfo(f"{name}-9.0/{member}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def test_S5_a_source_package_is_never_run(stocked: Shop) -> None:
    marker = stocked.path / "setup-py-ran"
    write_source(stocked, "source", marker)
    with pytest.raises(PackageRefused) as caught:
        stocked.layer("source")
    assert "wheels" in caught.value.hint
    write_source(stocked, "beta", marker)
    assert stocked.layer("beta").packages == {"beta": "1.2"}, "an older one that is a wheel"
    assert not marker.exists()


def test_S5_a_dependency_at_an_address_is_refused(stocked: Shop) -> None:
    target = stocked.path / "elsewhere"
    target.mkdir()
    write_wheel(target, "gamma", "1.0", {"gamma.py": ""})
    address = (target / "gamma-1.0-py3-none-any.whl").as_uri()
    stocked.wheel("delta", "1.0", {"delta.py": ""}, requires=[f"gamma @ {address}"])
    with pytest.raises((PackageRefused, EnvironmentUnavailable)) as caught:
        stocked.layer("delta")
    assert str(stocked.path) not in str(caught.value)
    assert layers.installed(stocked.settings) == []


def test_S5_a_wheel_cannot_write_elsewhere(stocked: Shop) -> None:
    up = "../" * 12 + str(stocked.path).lstrip("/")
    stocked.wheel(
        "climber", "1.0", {"climber.py": ""},
        entry_points=f"[console_scripts]\n{up}/escaped-script = climber:main\n",
    )  # fmt: skip
    stocked.wheel("member", "1.0", {"member.py": "", f"{up}/escaped-member": "x"})
    stocked.wheel("data", "1.0", {"data_.py": "", f"data-1.0.data/data/{up}/escaped-data": "x"})
    for name in ("climber", "member", "data"):
        try:
            stocked.layer(name)
        except (PackageRefused, EnvironmentUnavailable) as error:
            assert str(stocked.path) not in error.message.replace(up, "")
    assert not list(stocked.path.glob("escaped*"))
    assert stocked.left_over() == []


def test_S5_what_is_installed_is_what_was_resolved(stocked: Shop) -> None:
    """Somebody puts another file under the same name between the two."""
    other = stocked.path / "other"
    other.mkdir()
    write_wheel(other, "beta", "1.2", {"beta.py": "two = 'exchanged'\n"})
    exchange = f"cp {other}/beta-1.2-py3-none-any.whl {stocked.wheels}/"
    forget = 'rm -r "$UV_CACHE_DIR"'  # or uv takes what it has read already
    stocked.write_uv(before=f'[ "$2" = install ] && {exchange} && {forget}')
    with pytest.raises(EnvironmentUnavailable, match="Hash mismatch"):
        stocked.layer("beta")
    assert layers.installed(stocked.settings) == [] and stocked.left_over() == []


def test_S5_a_link_in_a_wheel_leads_nowhere(stocked: Shop) -> None:
    stocked.wheel("linked", "1.0", {"linked.py": ""}, links={"passwd": "/etc/passwd"})
    layer = stocked.layer("linked")
    assert not [path for path in layer.folder.rglob("*") if path.is_symlink()]
    assert "root:" not in (layer.folder / "passwd").read_text()


def test_S5_too_large_a_set_is_refused(stocked: Shop) -> None:
    stocked.wheel("large", "1.0", {"large.bin": os.urandom(3 * MIB)})
    with pytest.raises(PackageRefused, match="more than 2 MiB on disk"):
        stocked.layer("large", package_bytes=2 * MIB)
    assert stocked.left_over() == [] and layers.installed(stocked.settings) == []
    assert stocked.layer("large").bytes > 3 * MIB


def test_S5_a_wheel_that_unpacks_to_far_more_is_stopped(stocked: Shop) -> None:
    """Bounded: half a gigabyte, of which a part is written."""
    bomb = bytes(64 * MIB)
    stocked.wheel("bomb", "1.0", {f"bomb/{n}.bin": bomb for n in range(8)})
    with pytest.raises(PackageRefused, match="on disk"):
        stocked.layer("bomb", package_bytes=16 * MIB)
    assert stocked.left_over() == []


def test_S5_too_slow_an_index_is_given_up(stocked: Shop) -> None:
    stocked.write_uv(before="sleep 60")
    started = time.monotonic()
    with pytest.raises(EnvironmentUnavailable, match="not built within 1 s"):
        stocked.layer("beta", package_build_s=1.0)
    assert time.monotonic() - started < 15
    assert stocked.left_over() == []
    stocked.write_uv()
    assert stocked.layer("beta").packages


def test_no_more_sets_than_there_is_room_for(stocked: Shop) -> None:
    first = stocked.layer("beta")
    with pytest.raises(EnvironmentUnavailable) as caught:
        stocked.layer("alpha", layers_bytes=first.bytes - 1)
    assert "belljar env remove" in caught.value.hint
    assert stocked.layer("beta", layers_bytes=0) == first, "what is there can be used"


def test_an_index_that_cannot_be_reached_is_said_without_its_password(
    stocked: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://operator:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(EnvironmentUnavailable) as caught:
        stocked.layer("gamma")
    assert "network" in caught.value.hint
    assert "secret" not in str(caught.value) and "127.0.0.1" not in str(caught.value)


def test_the_settings_of_a_user_or_a_folder_do_not_count(
    stocked: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A uv.toml lying there could name another package index."""
    elsewhere = stocked.path / "elsewhere"
    (elsewhere / ".config" / "uv").mkdir(parents=True)
    stocked.home.mkdir()
    homes = (elsewhere, elsewhere / ".config" / "uv", stocked.home)  # the last is above the build
    for path in [home / "uv.toml" for home in homes]:
        path.write_text("this would be an error = = =\n")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(elsewhere))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(elsewhere / ".config"))
    monkeypatch.setenv("UV_CONFIG_FILE", str(elsewhere / "uv.toml"))
    assert stocked.layer("beta").packages == {"beta": "1.2"}


@pytest.mark.parametrize("ending", ["os.abort()", "os._exit(3)"], ids=["crash", "exit"])
def test_source_that_breaks_the_compiler_is_left_uncompiled(
    stocked: Shop, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(bytecode, "_PROGRAM", f"import os; {ending}")
    layer = stocked.layer("beta")
    assert not list(layer.folder.rglob("*.pyc"))
    assert python(layer, "import beta; print(beta.two)") == "2\n"


def test_source_that_is_hard_to_parse_harms_nothing(stocked: Shop) -> None:
    deep = {
        "deep/__init__.py": "",
        "deep/minus.py": "x = " + "-" * 200_000 + "1\n",
        "deep/brackets.py": "x = " + "(" * 5_000 + ")" * 5_000 + "\n",
        "deep/plus.py": "x = " + "1+" * 100_000 + "1\n",
        "deep/nul.py": "x = '\0'\n",
        "deep/cookie.py": "# coding: nonsense\n",
    }
    stocked.wheel("deep", "1.0", deep)
    layer = stocked.layer("deep")
    assert deep.keys() <= {str(path.relative_to(layer.folder)) for path in layer.folder.rglob("*")}
    assert Path(importlib.util.cache_from_source(str(layer.folder / "deep/__init__.py"))).exists()


# --- several at once


def test_concurrent_processes_build_once(stocked: Shop) -> None:
    stocked.write_uv(before="sleep 0.3")
    builders = [stocked.builder("alpha", "beta") for _ in range(4)]
    assert [builder.wait(timeout=120) for builder in builders] == [0] * 4
    assert stocked.calls() == ["compile", "install"]
    assert stocked.left_over() == []


def test_concurrent_threads_build_different_sets_and_share_what_is_equal(stocked: Shop) -> None:
    wanted = ["alpha", "beta", "alpha==1.0", "beta==1.2", "alpha<2", "beta<2"]
    made: dict[str, Layer] = {}
    threads = [
        threading.Thread(target=lambda text=text: made.update({text: stocked.layer(text)}))
        for text in wanted
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(made) == set(wanted)
    assert {layer.key for text, layer in made.items() if "alpha" in text} == {made["alpha"].key}
    assert {item.key for item in layers.installed(stocked.settings)} == {
        made["alpha"].key,
        made["beta"].key,
    }
    assert stocked.left_over() == []


def test_after_a_killed_builder_the_next_one_waits_for_its_uv_and_clears_up(stocked: Shop) -> None:
    stocked.write_uv(before=f"sleep 1; echo done > {stocked.path}/done")
    first = stocked.builder("beta")
    deadline = time.monotonic() + 30
    while not stocked.calls() and time.monotonic() < deadline:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert stocked.left_over(), "a half-built one"
    assert layers.installed(stocked.settings) == []
    phases: list[str] = []
    layers.layer(
        ["beta"],
        stocked.settings,
        environment=BASE,
        progress=lambda text, _fraction: phases.append(text),
    )
    assert phases[0] == "waiting for another builder"
    assert (stocked.path / "done").exists(), "the orphan was still at work"
    assert stocked.left_over() == []


def test_who_waits_too_long_for_other_builders_is_told(stocked: Shop) -> None:
    stocked.layer("beta")
    (note,) = (stocked.home / "layers" / "requests").iterdir()
    note.unlink()
    with contextlib.ExitStack() as stack:
        for number in range(assemble.LANES):
            lane = stocked.home / "layers" / f".lane{number}.lock"
            fcntl.flock(stack.enter_context(lane.open("w")), fcntl.LOCK_EX)
        with pytest.raises(EnvironmentUnavailable, match="other builders were busy"):
            stocked.layer("beta", package_build_s=0.5)


def test_builders_of_other_sets_do_not_wait_for_one(stocked: Shop) -> None:
    """Whichever sets they are: nobody can choose one that keeps another's builder waiting."""
    stocked.layer("beta")
    (note,) = (stocked.home / "layers" / "requests").iterdir()
    note.unlink()
    with contextlib.ExitStack() as stack:
        for number in range(assemble.LANES - 1):
            lane = stocked.home / "layers" / f".lane{number}.lock"
            fcntl.flock(stack.enter_context(lane.open("w")), fcntl.LOCK_EX)
        stocked.layer("beta")


def test_S5_a_set_counts_for_the_tenant_that_it_was_built_for(stocked: Shop) -> None:
    """Who has used up its share gets no new one built, uses those that are there, and is no
    hindrance to others."""

    def build(name: str, tenant: str, most_bytes: int) -> layers.Layer:
        caller = Caller(tenant=tenant, layers_bytes=most_bytes)
        return layers.layer([name], stocked.settings, environment=BASE, caller=caller)

    with pytest.raises(PackageRefused, match="this tenant") as refused:
        build("beta", "a", 1)
    assert "layers_bytes" in refused.value.hint
    assert layers.installed(stocked.settings) == [] and stocked.left_over() == []
    made = build("beta", "a", 1 << 30)
    assert made.tenant == "a"
    with pytest.raises(PackageRefused, match="this tenant"):
        build("alpha", "a", made.bytes)
    assert build("beta", "a", 1) == made
    assert build("alpha", "b", 1 << 30).tenant == "b"


def test_an_interrupted_build_leaves_nothing(stocked: Shop) -> None:
    def interrupt(text: str, _fraction: float | None) -> None:
        if text == "compiling bytecode":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        layers.layer(["beta"], stocked.settings, environment=BASE, progress=interrupt)
    assert stocked.left_over() == [] and layers.installed(stocked.settings) == []


# --- the command line


def belljar(shop: Shop, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "belljar.cli.main", "env", *arguments],
        env={**os.environ, "BELLJAR_HOME": str(shop.home)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_A2_sets_are_built_listed_and_removed(stocked: Shop) -> None:
    done = belljar(stocked, "build", "--packages", "alpha==1.*", "--packages", "beta")
    assert done.returncode == 0, done.stderr
    (layer,) = layers.installed(stocked.settings)
    assert done.stdout == f"base: {layer.key}: alpha 1.0, beta 1.2\n"
    listed = json.loads(belljar(stocked, "list", "--json").stdout)
    (item,) = (item for item in listed if item["name"] == layer.key)
    assert item["packages"] == ["alpha==1.*", "beta"]
    assert (item["environments"], item["size_bytes"]) == (["base"], layer.bytes)
    table = belljar(stocked, "list").stdout
    assert layer.key in table and "alpha" in table

    stocked.wheel("beta", "1.3", {"beta.py": ""})
    done = belljar(stocked, "build", "--packages", "beta", "--packages", "alpha==1.*", "--refresh")
    assert "beta 1.3" in done.stdout
    assert belljar(stocked, "remove", layer.key).stdout == f"{layer.key}: removed\n"
    assert len(layers.installed(stocked.settings)) == 1
    assert belljar(stocked, "remove", "--all-packages").returncode == 0
    assert layers.installed(stocked.settings) == []


def test_A2_what_cannot_be_built_or_removed_is_said(stocked: Shop) -> None:
    for arguments, told in (
        (["build"], "nothing to build is named"),
        (["remove"], "nothing to remove is named"),
        (["build", "data", "--refresh"], "--refresh is for packages"),
        (["build", "node", "--packages", "beta"], "has no Python"),
        (["build", "nope", "--packages", "beta"], "unknown"),
        (["build", "--packages", "./beta"], "is a path"),
        (["build", "--packages", "gamma"], "gamma"),
        (["remove", "0" * 32], "unknown"),
    ):
        done = belljar(stocked, *arguments)
        assert done.returncode == 125, arguments
        assert told in done.stderr
        assert "Traceback" not in done.stderr
