"""Packages of kept sandboxes (S5): built by the real uv from wheels that the tests write, mounted
by the real jail. tests/functional/test_layers.py is about how sets are built."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import belljar
from belljar.environments import assemble, install, layers
from belljar.errors import Busy, PackageRefused, Unsupported
from belljar.settings import Settings

WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], *, needs: str = ""
) -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents = {
        **files,
        f"{info}/METADATA": metadata + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": WHEEL,
    }
    contents[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, content in contents.items():
            archive.writestr(path, content)


class Shop:
    """An index of a few wheels, a Belljar with a data directory of its own."""

    def __init__(self, top: Path) -> None:
        self.wheels = top / "wheels"
        self.wheels.mkdir()
        (top / "empty").mkdir()
        self.log = top / "log"
        uv = top / "uv"
        uv.write_text(f'#!/bin/sh\necho "$2" >> {self.log}\nexec {install.find_uv()} "$@"\n')
        uv.chmod(0o755)
        self.uv = str(uv)
        allowed = ("humanize", "rich", "tabulate")
        self.settings = Settings(home=top / "home", packages_allowed=allowed)
        write_wheel(self.wheels, "common_words", "1.0", {"common_words.py": "version = 1\n"})
        write_wheel(
            self.wheels,
            "humanize",
            "4.1",
            {
                "humanize/__init__.py": "from common_words import version\nword = 'many'\n",
                "humanize-4.1.data/scripts/count": "#!python\nprint('counted')\n",
            },
            needs="common-words",
        )
        write_wheel(
            self.wheels,
            "rich",
            "14.0",
            {"rich.py": "from common_words import version\n"},
            needs="common-words",
        )

    def calls(self) -> int:
        return len(self.log.read_text().split()) if self.log.exists() else 0


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("UV_") or name.lower().endswith("_proxy"):
                patch.delenv(name)
        top = tmp_path_factory.mktemp("shop")
        made = Shop(top)
        patch.setenv("UV_FIND_LINKS", str(made.wheels))
        patch.setenv("UV_DEFAULT_INDEX", (top / "empty").as_uri())
        patch.setattr(install, "find_uv", lambda: made.uv)
        yield made


@pytest.fixture(scope="module")
def own(shop: Shop) -> Iterator[belljar.Belljar]:
    with belljar.Belljar(shop.settings) as jar:
        yield jar


@pytest.fixture(scope="module")
def box(own: belljar.Belljar) -> Iterator[belljar.Sandbox]:
    """Had nothing when it was made, and was given two sets since."""
    with belljar.Sandbox(own, max_runs=1000) as box:
        result = box.run("before = 1\nimport humanize")
        assert result.error and result.error.name == "ModuleNotFoundError"
        assert "humanize can be had with packages=['humanize']" in result.warnings
        assert box.install("humanize==4.*") == {"common-words": "1.0", "humanize": "4.1"}
        yield box


def test_s5_an_installed_package_can_be_imported_in_the_next_run(box: belljar.Sandbox) -> None:
    assert box.run("import humanize; humanize.word, before").value == "('many', 1)"


def test_s5_programs_find_it_too(box: belljar.Sandbox) -> None:
    script = "import humanize; print(humanize.word)"
    assert box.exec(["python3", "-c", script]).stdout == "many\n"
    assert box.exec(["count"]).stdout == "counted\n"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {script!r}])"
    assert box.run(code).stdout == "many\n"


def test_s5_it_cannot_be_changed(box: belljar.Sandbox) -> None:
    code = "import humanize, os\nos.chmod(os.path.dirname(humanize.__file__), 0o777)"
    for line in ("", "open(humanize.__file__, 'a')", "os.mkdir('/opt/belljar/packages/17')"):
        result = box.run(line or code)
        assert result.error and result.error.name in ("OSError", "PermissionError")
    assert box.run("humanize.word").value == "'many'"


def test_s5_a_second_set_fits_to_the_first(box: belljar.Sandbox, shop: Shop) -> None:
    """What was imported cannot be exchanged: a newer release is not taken up half-way."""
    write_wheel(shop.wheels, "common_words", "2.0", {"common_words.py": "version = 2\n"})
    assert box.install("rich")["common-words"] == "1.0"
    assert box.run("import rich; rich.version").value == "1"


def test_s6_a_rollback_and_a_branch_keep_the_packages(box: belljar.Sandbox) -> None:
    before = box.checkpoints()[0]
    box.rollback(before)
    assert box.run("import humanize, rich; rich.version").value == "1"
    (child,) = box.fork()
    assert child.run("import humanize, rich; humanize.word").value == "'many'"
    assert child.exec(["python3", "-c", "import rich; print(rich.version)"]).stdout == "1\n"
    child.close()


def test_s5_a_set_that_was_built_is_not_built_again(
    own: belljar.Belljar, shop: Shop, box: belljar.Sandbox
) -> None:
    calls = shop.calls()
    with belljar.Sandbox(own, packages=["humanize==4.*"]) as second:
        assert second.run("import humanize; humanize.word").value == "'many'"
        assert second.exec(["count"]).stdout == "counted\n"
        assert second.install("humanize") == {"common-words": "1.0", "humanize": "4.1"}
    assert shop.calls() == calls + 1, "only `humanize` without a version was resolved"


def test_s5_a_set_that_is_mounted_is_not_removed(
    own: belljar.Belljar, shop: Shop, box: belljar.Sandbox
) -> None:
    with belljar.Sandbox(own, packages=["rich"]) as other:
        (child,) = other.fork()
        there = layers.installed(shop.settings)
        (key,) = [one.key for one in there if sorted(one.packages) == ["common-words", "rich"]]
        other.close()
        with pytest.raises(Busy, match="mounted in a sandbox"):
            assemble.remove(key, shop.settings)
        assert child.run("import rich; rich.version").success
        child.close()
    assert assemble.remove(key, shop.settings)


def test_s5_what_the_operator_does_not_allow_is_refused(
    own: belljar.Belljar, box: belljar.Sandbox
) -> None:
    with pytest.raises(PackageRefused, match="tabulate"):
        box.install("tabulated")
    with pytest.raises(PackageRefused, match="is an option of an installer"):
        belljar.Sandbox(own, packages=["--index-url=x"])
    with pytest.raises(PackageRefused, match="not allowed here"):
        belljar.Sandbox(own, packages=["humanise"]).open()
    assert box.run("import humanize; humanize.word").value == "'many'"


@pytest.mark.parametrize("fresh_exec", [False, True])
def test_s5_one_run_can_have_packages_too(
    own: belljar.Belljar, box: belljar.Sandbox, *, fresh_exec: bool
) -> None:
    code = "import humanize, os; print(humanize.word, flush=True); os.system('count')"
    result = own.run(code, packages=["humanize==4.*"], fresh_exec=fresh_exec)
    assert result.stdout == "many\ncounted\n"
    result = own.run("import humanize", fresh_exec=fresh_exec)
    assert result.warnings == ("humanize can be had with packages=['humanize']",)


def test_s5_packages_are_for_python_only(own: belljar.Belljar) -> None:
    with pytest.raises(Unsupported, match="packages"):
        belljar.Sandbox(own, language="bash", packages=["humanize"]).open()
