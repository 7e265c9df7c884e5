"""Environments: which one code gets, and how one is built, without a network (S5, R2).

A script stands in for uv; tests/functional/test_environments_build.py runs the real one.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.environments import build, catalogue, choose, folders, install
from belljar.environments.catalogue import BASE, DATA, GO, NODE, Environment
from belljar.errors import EnvironmentUnavailable, UnknownEnvironment
from belljar.model import Limits
from belljar.runtimes import languages
from belljar.settings import Settings

PYTHON = languages.get("python")


# --- the table


def test_known_environments() -> None:
    assert [item.name for item in catalogue.BUILT_IN] == ["base", "data", "node", "go"]
    assert catalogue.get("data") is DATA
    assert not BASE.needs_build and DATA.needs_build
    assert DATA.mount_path == "/opt/belljar/data"


def test_an_unknown_environment_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UnknownEnvironment, match="known environments: base, data, node, go"):
        catalogue.get("tensorflow")


def test_every_language_has_its_environment() -> None:
    for language in languages.BUILT_IN:
        catalogue.get(language.environment)


def test_preloaded_modules_are_offered_or_standard() -> None:
    known = DATA.imports | sys.stdlib_module_names
    assert [name for name in DATA.tiers[-1].preload if name.partition(".")[0] not in known] == []


def test_L3_numeric_libraries_use_the_cores_of_the_run() -> None:
    variables = DATA.variables_for(Limits(cpus=2.5))
    assert variables["OPENBLAS_NUM_THREADS"] == variables["OMP_NUM_THREADS"] == "3"
    assert variables["PYTHONPATH"] == "/opt/belljar/data"


# --- environment="auto"


@pytest.mark.parametrize(
    "code",
    [
        "import numpy",
        "import numpy as np",
        "import numpy.linalg as la",
        "import os, sys, pandas as pd",
        "import os as o, numpy",
        "from matplotlib import pyplot as plt",
        "from scipy . stats import norm",
        "from sklearn.linear_model import (\n    Ridge,\n)",
        "\timport numpy",
        "x = 1; import numpy",
        "try: import numpy\nexcept ImportError: pass",
        "import \\\n  numpy",
        "import os, \\\r\n  numpy",
        "import os\rimport numpy\r",
        "print('#'); import numpy",
        "__import__('numpy')",
        '__import__ ( "pandas.io" )',
        "importlib.import_module('scipy.stats')",
        "from importlib import import_module as m\nimport_module('sklearn')",
        "exec('import numpy')",
        'exec("__import__(\\"numpy\\")")',
        "subprocess.run([sys.executable, '-c', 'import numpy'])",
        "from PIL import Image",
        "from os import path\nimport numpy",
        "raise ValueError from error\nimport numpy",
        "import import numpy",
        "from from numpy import x",
    ],
)
def test_code_that_imports_a_package_gets_the_environment_that_has_it(code: str) -> None:
    assert choose.choose(code, PYTHON) == "data"


@pytest.mark.parametrize(
    "code",
    [
        "",
        "print(1)",
        "import os, sys, json",
        "numpy = 3; pandas = numpy",
        "print('pandas and numpy')",
        "# import numpy",
        "x = 1\n    # from pandas import DataFrame\n",
        "import numpyish",
        "import os.numpy",
        "import mypackage.pandas",
        "from os import numpy",
        "data = [1]  # taken from pandas, long ago",
        "import os as numpy",
        "import tensorflow",
    ],
)
def test_other_code_gets_the_smallest_environment(code: str) -> None:
    assert choose.choose(code, PYTHON) == "base"


def test_modules_beside_the_code_count_too() -> None:
    files = {"notes.txt": b"import numpy", "helper.py": b"import numpy\xff"}
    assert choose.choose("import helper", PYTHON, files=files) == "data"
    del files["helper.py"]
    assert choose.choose("import helper", PYTHON, files=files) == "base"


@pytest.mark.parametrize(
    ("language", "environment"), [("js", "node"), ("ts", "node"), ("go", "go"), ("bash", "base")]
)
def test_other_languages_get_their_own(language: str, environment: str) -> None:
    assert choose.choose("import numpy", languages.get(language)) == environment


ADVERSARIAL = {
    "imports": "import a " * 11_000,
    "list": "import " + "a," * 50_000,
    "dots": "from a" + ".a" * 50_000,
    "froms": "from " * 20_000,
    "from names": "from a" + " . from" * 14_000,
    "blanks": "import" + " " * 100_000,
    "joined lines": "import" + "\\\n" * 50_000,
    "backslashes": "__import__(" + "\\" * 100_000,
    "quotes": "import_module(" + "'" * 100_000,
    "brackets": "(" * 100_000,
    "minus": "-" * 100_000,
    "one word": "import " + "a" * 100_000,
    "nul": "import \x00" * 10_000,
    "surrogates": "import \ud800" * 10_000,
    "hashes": " #\n" * 33_000,
    "indented": (" " * 1_000 + "\n") * 100,
    "as": "import a" + " as" * 33_000,
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_hostile_text_costs_a_bounded_number_of_steps_each_going_forward(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: regular expression calls, and the characters they look at."""
    seen: list[choose.Words] = []
    looked_at = 0

    class Counting:
        """A pattern that counts how many characters each call has to look at."""

        def __init__(self, pattern: object) -> None:
            self.pattern = pattern

        def __getattr__(self, method: str) -> object:
            def call(text: str, position: int = 0) -> object:
                nonlocal looked_at
                match = getattr(self.pattern, method)(text, position)
                looked_at += (match.end() if match else len(text)) - position
                return match

            return call

    class Watched(choose.Words):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            seen.append(self)

        def __setattr__(self, attribute: str, value: object) -> None:
            if attribute == "position" and hasattr(self, "position"):
                assert isinstance(value, int) and value > self.position, "went back"
            super().__setattr__(attribute, value)

    monkeypatch.setattr(choose, "_TOKEN", Counting(choose._TOKEN))
    monkeypatch.setattr(choose, "_KEYWORD", Counting(choose._KEYWORD))
    monkeypatch.setattr(choose, "Words", Watched)
    text = ADVERSARIAL[name] + "\nnumpy"
    choose.choose(text, PYTHON)
    assert len(seen) == 1
    assert seen[0].steps <= choose.SCAN_STEPS + 100
    assert looked_at <= 8 * len(text)


def test_what_lies_beyond_the_scanned_part_is_not_read() -> None:
    padding = "x = 1\n" * (choose.SCAN_CHARACTERS // 6 + 1)
    assert choose.choose(padding + "import numpy", PYTHON) == "base"
    assert choose.choose("x", PYTHON, files={"a.py": (padding + "import numpy").encode()}) == "base"


@given(st.text())
def test_any_text_gets_an_answer(text: str) -> None:
    assert choose.choose(text + "\nimport numpy", PYTHON) in ("base", "data")
    assert all(name.isidentifier() for name in choose.imported(text))


# --- building

TINY = Environment(
    name="tiny",
    packages=("tiny-package",),
    imports=frozenset({"tiny"}),
    executables={"tiny": "tiny/run"},
    drop=("tiny/unused",),
)

FAKE_UV = """\
#!/bin/sh
echo "$@" >> {log}
pwd >> {log}.cwd
while [ "$1" != --target ]; do shift; done
target=$2
{before}
mkdir -p $target/tiny/unused $target/tiny-1.5.dist-info $target/bin
umask 077
echo data > $target/tiny/__init__.py
echo program > $target/tiny/run
chmod 777 $target/tiny/run
printf 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.5\\n' > $target/tiny-1.5.dist-info/METADATA
echo script > $target/bin/script
echo 'Resolved 2 packages in 1ms'
echo 'Downloading tiny (3.0MiB)'
echo 'Downloading other (1.0MiB)'
echo ' Downloaded tiny'
echo ' Downloaded other'
echo 'Prepared 2 packages in 1ms'
echo 'Installed 2 packages in 1ms'
{after}
"""


class Workshop:
    """A home of its own, and a uv that does what the test wants."""

    def __init__(self, path: Path) -> None:
        self.settings = Settings(home=path / "home")
        self.root = path / "home" / "environments"
        self.uv = path / "uv"
        self.log = path / "log"
        self.write_uv()

    def write_uv(self, *, before: str = "", after: str = "") -> None:
        self.uv.write_text(FAKE_UV.format(log=self.log, before=before, after=after))
        self.uv.chmod(0o755)

    def calls(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def visible(self) -> list[str]:
        """What is in the folder of environments, but for the locks."""
        return sorted(item.name for item in self.root.iterdir() if item.suffix != ".lock")

    def builder(self) -> subprocess.Popen[bytes]:
        """Another process that builds TINY."""
        code = f"""
            from pathlib import Path
            from belljar.environments import build, install
            from belljar.environments.catalogue import Environment
            from belljar.settings import Settings
            install.find_uv = lambda: {str(self.uv)!r}
            build.build({TINY!r}, Settings(home=Path({str(self.settings.home)!r})))
        """
        return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path)
    monkeypatch.setattr(install, "find_uv", lambda: str(made.uv))
    return made


def test_built_once_then_located(workshop: Workshop) -> None:
    assert folders.locate(TINY, workshop.settings) is None
    path = build.build(TINY, workshop.settings)
    assert folders.locate(TINY, workshop.settings) == path
    assert path == workshop.root / f"tiny-{folders.key(TINY)}"
    assert build.build(TINY, workshop.settings) == path
    assert workshop.calls() == 1
    assert workshop.visible() == [path.name]


def test_S5_packages_are_installed_from_wheels_only(workshop: Workshop) -> None:
    build.build(TINY, workshop.settings)
    words = workshop.log.read_text().split()
    assert words[words.index("--only-binary") + 1] == ":all:"
    assert words[words.index("--link-mode") + 1] == "copy"
    assert words[-1] == "tiny-package"


def test_uv_does_not_start_in_the_callers_folder(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A uv.toml lying there could name another package index."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    build.build(TINY, workshop.settings)
    cwd = Path(workshop.log.with_name("log.cwd").read_text().strip())
    assert workshop.root in cwd.parents


def test_the_folder_has_what_runs_need_and_nothing_else(workshop: Workshop) -> None:
    path = build.build(TINY, workshop.settings)
    assert not (path / "tiny" / "unused").exists()
    assert [item.name for item in (path / "bin").iterdir()] == ["tiny"]
    assert (path / "bin" / "tiny").read_text() == "program\n"
    assert not os.path.isabs(os.readlink(path / "bin" / "tiny")), "it is mounted elsewhere"
    facts = json.loads((path / folders.MANIFEST).read_text())
    assert facts["versions"] == {"tiny": "1.5"}
    assert facts["packages"] == ["tiny-package"]


def test_every_user_can_read_it_and_only_the_owner_write_whatever_the_umask(
    workshop: Workshop,
) -> None:
    previous = os.umask(0o077)
    try:
        path = build.build(TINY, workshop.settings)
    finally:
        os.umask(previous)
    for item in [path, *path.rglob("*")]:
        mode = stat.S_IMODE(item.stat().st_mode)
        executable = item.is_dir() or item.resolve().name == "run"
        assert mode == (0o755 if executable else 0o644), f"{item}: {mode:o}"


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        ("failed to copy file: No space left on device (os error 28)", "disk is full"),
        ("error: Failed to fetch: cause: dns error", "network"),
        ("hint: Packages were unavailable because the network was disabled", "network"),
        ("No solution found: nothing has no wheels with a matching tag", "no wheel"),
        ("error: Permission denied (os error 13)", "BELLJAR_HOME"),
    ],
)
def test_a_failed_build_says_why_and_leaves_nothing(
    workshop: Workshop, output: str, hint: str
) -> None:
    workshop.write_uv(after=f"echo '{output}' >&2; exit 2")
    with pytest.raises(EnvironmentUnavailable) as caught:
        build.build(TINY, workshop.settings)
    assert output in caught.value.message
    assert "'tiny'" in caught.value.message
    assert hint in caught.value.hint
    assert workshop.visible() == []
    workshop.write_uv()
    build.build(TINY, workshop.settings)


def test_an_interrupted_build_stops_uv_and_leaves_nothing(workshop: Workshop) -> None:
    workshop.write_uv(after="echo $$ > $0.pid; echo started; exec sleep 60")

    def interrupt(text: str, _fraction: float | None) -> None:
        if text == "compiling bytecode":
            while not workshop.uv.with_name("uv.pid").exists():
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build.build(TINY, workshop.settings, progress=interrupt)
    assert workshop.visible() == []
    pid = int(workshop.uv.with_name("uv.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_missing_uv_is_said(workshop: Workshop) -> None:
    workshop.uv.unlink()
    with pytest.raises(EnvironmentUnavailable, match="cannot run"):
        build.build(TINY, workshop.settings)
    assert workshop.visible() == []


def test_a_home_that_cannot_be_written_is_said(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnavailable, match="'tiny'"):
        build.build(TINY, Settings(home=tmp_path / "file"))


def test_concurrent_processes_build_once(workshop: Workshop) -> None:
    workshop.write_uv(before="sleep 0.5")
    builders = [workshop.builder() for _ in range(4)]
    assert [builder.wait(timeout=60) for builder in builders] == [0] * 4
    assert workshop.calls() == 1
    assert folders.locate(TINY, workshop.settings) is not None


def test_after_a_killed_builder_the_next_one_waits_for_its_uv_and_clears_up(
    workshop: Workshop,
) -> None:
    workshop.write_uv(before="sleep 1.5; echo done > $0.done")
    first = workshop.builder()
    deadline = time.monotonic() + 30
    while not workshop.calls() and time.monotonic() < deadline:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert [name for name in workshop.visible() if name.endswith(".building")]
    phases: list[str] = []
    path = build.build(
        TINY, workshop.settings, progress=lambda text, _fraction: phases.append(text)
    )
    assert phases[0] == "waiting for another builder"
    assert workshop.uv.with_name("uv.done").exists(), "the orphan was still writing"
    assert workshop.visible() == [path.name]


def test_a_damaged_folder_is_built_again(workshop: Workshop) -> None:
    path = build.build(TINY, workshop.settings)
    (path / folders.MANIFEST).unlink()
    assert folders.locate(TINY, workshop.settings) is None
    assert build.build(TINY, workshop.settings) == path
    assert workshop.calls() == 2


def test_progress_tells_phases_and_the_share_that_is_downloaded(workshop: Workshop) -> None:
    told: list[tuple[str, float | None]] = []
    build.build(
        TINY, workshop.settings, progress=lambda text, fraction: told.append((text, fraction))
    )
    assert told == [
        ("resolving packages", None),
        ("downloading 3 MiB", 0.0),
        ("downloading 4 MiB", 0.0),
        ("downloading 4 MiB", 0.75),
        ("downloading 4 MiB", 1.0),
        ("installing", None),
        ("compiling bytecode", None),
        ("finishing", None),
    ]


def test_list_and_remove(workshop: Workshop) -> None:
    assert folders.installed(workshop.settings) == []
    path = build.build(TINY, workshop.settings)
    (workshop.root / "stranger").mkdir()
    (workshop.root / "stranger" / folders.MANIFEST).write_text("[]")
    (built,) = folders.installed(workshop.settings)
    assert (built.name, built.path, built.versions) == ("tiny", path, {"tiny": "1.5"})
    assert build.remove("nothing", workshop.settings) == 0
    assert build.remove("tiny", workshop.settings) == 1
    assert folders.locate(TINY, workshop.settings) is None
    assert workshop.visible() == ["stranger"]


def test_there_is_nothing_to_build_for_base(workshop: Workshop) -> None:
    with pytest.raises(ValueError, match="nothing to build"):
        build.build(BASE, workshop.settings)
    assert not workshop.root.exists()


def test_the_key_changes_with_what_is_in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {folders.key(item) for item in (BASE, DATA, NODE, GO, TINY)}
    keys.add(folders.key(Environment(name="tiny", packages=("tiny-package>=2",))))
    assert len(keys) == 6
    before = folders.key(DATA)
    monkeypatch.setattr(folders, "BUILDER_VERSION", 99)
    assert folders.key(DATA) != before
    monkeypatch.undo()
    assert folders.key(DATA) == before
    monkeypatch.setattr(folders, "EXTENSION_SUFFIXES", [".cpython-399-riscv.so"])
    assert folders.key(DATA) != before


def test_asking_where_an_environment_is_imports_little() -> None:
    """On the path of every run: nothing that builds may be loaded for it."""
    code = (
        "import sys; from belljar.environments import catalogue, choose, folders; "
        "print([m for m in ('uv', 'tempfile', 'shutil', 'subprocess', 'importlib.metadata') "
        "if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.strip() == "[]", printed.stderr
