"""The real environments, built by the real uv from the machine's package index (R2, S5).

They are built into BELLJAR_TEST_HOME if it is set, so that one build serves many test runs.
Programs are run with the folder mounted read-only where sandboxes have it, in a private mount
namespace, and without the walls: those have tests of their own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from belljar.environments import build, catalogue, folders
from belljar.environments.catalogue import DATA
from belljar.model import MIB, Limits
from belljar.runtimes import languages
from belljar.runtimes.interpreter import base_interpreter
from belljar.runtimes.languages import Language
from belljar.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    shared = os.environ.get("BELLJAR_TEST_HOME")
    return Settings(home=Path(shared) if shared else tmp_path_factory.mktemp("home"))


@pytest.fixture(params=["data", "node", "go"])
def built(request: pytest.FixtureRequest, settings: Settings) -> Path:
    return build.build(catalogue.get(request.param), settings)


def test_every_user_can_read_all_of_it_and_only_the_owner_write(built: Path) -> None:
    for parent, names, files in os.walk(built):
        for name in [*names, *files]:
            mode = os.lstat(os.path.join(parent, name)).st_mode
            if not stat.S_ISLNK(mode):
                wanted = 0o555 if stat.S_ISDIR(mode) else 0o444
                assert mode & wanted == wanted and not mode & 0o022, f"{parent}/{name}: {mode:o}"


def test_nothing_in_it_is_linked_to_files_outside(built: Path) -> None:
    """A hard link into a package cache would let a change there reach every sandbox."""
    for parent, _names, files in os.walk(built):
        for name in files:
            path = Path(parent, name)
            if path.is_symlink():
                assert built in path.resolve().parents, path
            else:
                assert path.stat().st_nlink == 1, path


def test_the_manifest_has_the_resolved_versions(built: Path, settings: Settings) -> None:
    (found,) = (item for item in folders.installed(settings) if item.path == built)
    packages = [name.split("=")[0].split(">")[0] for name in catalogue.get(found.name).packages]
    assert packages and set(packages) <= set(found.versions)


# --- Python


@pytest.fixture
def data(settings: Settings) -> Path:
    return build.build(DATA, settings)


def python(data: Path, code: str, tmp_path: Path) -> str:
    env = DATA.variables_for(Limits()) | {"PYTHONPATH": str(data), "MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run([base_interpreter(), "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_S5_the_common_packages_import_and_every_preloaded_module_exists(
    data: Path, tmp_path: Path
) -> None:
    code = f"""
import importlib
for name in {sorted(DATA.imports)!r} + {list(DATA.tiers[-1].preload)!r}:
    importlib.import_module(name)
"""
    python(data, code, tmp_path)


TYPICAL = """
import io, sys, os, json
for name in PRELOAD:
    __import__(name)
threads = len(os.listdir("/proc/self/task"))
before = set(sys.modules)

import numpy as np
import pandas as pd
import matplotlib.pyplot as plt
from scipy import optimize, stats
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split

frame = pd.read_csv(io.StringIO("a,b\\n1,2\\n3,4\\n5,7\\n"))
frame.describe().to_string(), frame.to_html(), frame.to_json(), frame.to_csv()
frame.groupby("a").mean()
plt.plot([1, 2, 3]); plt.title("x"); plt.savefig(io.BytesIO(), format="png")
stats.ttest_ind([1, 2, 3], [2, 3, 5]); optimize.minimize(lambda x: x[0] ** 2, [1.0])
X, y = load_iris(return_X_y=True)
train_test_split(X, y); LinearRegression().fit(X, y); RandomForestClassifier(5).fit(X, y)
print(json.dumps({"threads": threads, "new": sorted(set(sys.modules) - before)}))
"""


def test_a_typical_analysis_imports_nothing_that_was_not_preloaded(
    data: Path, tmp_path: Path
) -> None:
    told = json.loads(python(data, f"PRELOAD = {DATA.tiers[-1].preload!r}" + TYPICAL, tmp_path))
    # scikit-learn's bundled data sets are packages; importing those costs nothing.
    late = [name for name in told["new"] if not name.startswith("sklearn.datasets.")]
    assert len(late) <= 3, late
    assert told["threads"] == 1, "an interpreter with threads cannot be forked safely"


def test_the_bytecode_is_there_because_a_read_only_folder_cannot_get_it_later(
    data: Path, tmp_path: Path
) -> None:
    code = """
import importlib.util, os, sys
import matplotlib.pyplot, pandas, scipy.stats, sklearn.ensemble

files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
files = [file for file in files if file.startswith(os.environ["PYTHONPATH"]) and file[-3:] == ".py"]
missing = [file for file in files if not os.path.exists(importlib.util.cache_from_source(file))]
print(len(files) > 500, missing)
"""
    assert python(data, code, tmp_path) == "True []\n"


# --- Node and Go, where sandboxes have them


def run_mounted(
    language: Language | str, files: Mapping[str, str], settings: Settings, work: Path
) -> subprocess.CompletedProcess[str]:
    """Compile if needed and run `files` as the agent would, the environment mounted read-only."""
    language = languages.get(language) if isinstance(language, str) else language
    environment = catalogue.get(language.environment)
    folder = build.build(environment, settings)
    for name, text in files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    limits = Limits(memory_bytes=512 * MIB)
    launch = language.launch(environment_path=environment.mount_path, limits=limits)
    steps = [shlex.join(argv) for argv in (launch.compile_argv, launch.argv) if argv]
    script = f"""
        set -e
        mount -t tmpfs tmpfs /opt
        mkdir -p {environment.mount_path} /opt/work
        mount --bind {shlex.quote(str(work))} /opt/work
        mount --bind {shlex.quote(str(folder))} {environment.mount_path}
        mount -o remount,bind,ro,nosuid,nodev {environment.mount_path}
        mount -t tmpfs tmpfs /tmp
        cd /opt/work
        {" && ".join(steps)}
    """
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"]).returncode:
        pytest.skip("needs unprivileged user namespaces and util-linux")
    return subprocess.run(
        [*unshare, script],
        env={**launch.variables, "HOME": "/opt/work"},
        capture_output=True,
        text=True,
    )


NODE_PROGRAMS = {
    "require": 'const fs = require("fs"); console.log("ok", typeof fs.readFileSync)',
    "import": 'import fs from "fs"; console.log("ok", typeof fs.readFileSync)',
    "top-level await": 'console.log(await Promise.resolve("ok function"))',
}
TYPED = "interface Named { name: string }\nconst named: Named = { name: 'x' };\n"


@pytest.mark.parametrize("style", NODE_PROGRAMS)
@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_R2_node_takes_commonjs_modules_and_await(
    language: str, style: str, settings: Settings, tmp_path: Path
) -> None:
    code = NODE_PROGRAMS[style] + "\n"
    name = languages.get(language).file_name
    done = run_mounted(
        language, {name: (TYPED if language == "typescript" else "") + code}, settings, tmp_path
    )
    assert (done.stdout, done.stderr, done.returncode) == ("ok function\n", "", 0)


def test_R2_typescript_with_enums_and_parameter_properties(
    settings: Settings, tmp_path: Path
) -> None:
    code = """
enum Colour { Red, Green }
class Point { constructor(private x: number) {} get() { return this.x } }
namespace Space { export const size = 7 }
console.log(Colour.Green, new Point(3).get(), Space.size);
throw new Error("here");
"""
    done = run_mounted("typescript", {"main.ts": code}, settings, tmp_path)
    assert done.stdout == "1 3 7\n"
    assert "main.ts:6" in done.stderr, "the trace names the line of the source"
    assert "Warning" not in done.stderr
    assert done.returncode == 1


GO_HELLO = """package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"sort"
)

func main() {
	numbers := []int{3, 1, 2}
	sort.Ints(numbers)
	text, _ := json.Marshal(numbers)
	fmt.Println(string(text), http.StatusOK)
	os.Exit(7)
}
"""
GO_WHO = 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println(who()) }\n'


def test_R2_go_compiles_against_the_read_only_cache_and_keeps_the_exit_code(
    settings: Settings, tmp_path: Path
) -> None:
    done = run_mounted("go", {"main.go": GO_HELLO}, settings, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("[1,2,3] 200\n", "", 7)
    assert [item.name for item in tmp_path.iterdir()] == ["main.go"], "no litter in the workspace"


@pytest.mark.parametrize(
    ("files", "printed"),
    [
        ({"other.go": 'package main\n\nfunc who() string { return "beside" }\n'}, "beside"),
        (
            {
                "who_linux.go": 'package main\n\nfunc who() string { return "linux" }\n',
                "who_windows.go": 'package main\n\nfunc who() string { return "windows" }\n',
                "tool.go": "//go:build ignore\n\npackage main\n\nfunc main() {}\n",
                "main_test.go": "package main\n",
            },
            "linux",
        ),
        (
            {
                "go.mod": "module example.com/app\n\ngo 1.24\n",
                "name/name.go": 'package name\n\nconst Name = "module"\n',
                "who.go": 'package main\n\nimport "example.com/app/name"\n\n'
                "func who() string { return name.Name }\n",
            },
            "module",
        ),
        (
            {
                "who.go": 'package main\n\nimport _ "embed"\n\n//go:embed who.txt\n'
                "var text string\n\nfunc who() string { return text }\n",
                "who.txt": "embedded",
            },
            "embedded",
        ),
    ],
    ids=["two files", "build constraints", "module", "embed"],
)
def test_R2_go_programs_of_several_files(
    files: Mapping[str, str], printed: str, settings: Settings, tmp_path: Path
) -> None:
    done = run_mounted("go", {"main.go": GO_WHO, **files}, settings, tmp_path)
    assert (done.stdout, done.stderr) == (printed + "\n", "")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("package main\n\nfunc main() { fmt.Println(1) }\n", "main.go:3:15: undefined: fmt"),
        ('package main\n\nimport "os"\n\nfunc main() {}\n', '"os" imported and not used'),
        (
            'package main\n\nimport "github.com/a/b"\n\nfunc main() { b.C() }\n',
            "no required module provides package github.com/a/b",
        ),
        (
            'package main\n\nimport "internal/abi"\n\nvar _ = abi.FuncPCABI0\n\nfunc main() {}\n',
            "use of internal package internal/abi not allowed",
        ),
        ("package other\n", "requires exactly one main package"),
    ],
)
def test_R2_a_mistake_in_go_is_told_as_go_tells_it(
    code: str, message: str, settings: Settings, tmp_path: Path
) -> None:
    done = run_mounted("go", {"main.go": code}, settings, tmp_path)
    assert message in done.stderr
    assert done.stdout == ""
    assert done.returncode == 1


def test_the_go_compiler_is_called_directly_when_it_can_be(
    settings: Settings, tmp_path: Path
) -> None:
    """`go build` would take three times as long. Here it is not even there."""
    script = build.build(catalogue.GO, settings) / "bin" / "belljar-go-build"
    crippled = script.read_text().replace('exec "$root/go/bin/go"', "exec false")
    assert crippled != script.read_text()
    (tmp_path / "build.sh").write_text(crippled)
    go = languages.get("go")
    go = dataclasses.replace(go, compile_argv=("sh", "build.sh", *go.argv))
    files = {"main.go": GO_WHO, "other.go": 'package main\n\nfunc who() string { return "x" }\n'}
    done = run_mounted(go, files, settings, tmp_path)
    assert (done.stdout, done.stderr) == ("x\n", "")
    files["other.go"] = "package main\n"
    assert run_mounted(go, files, settings, tmp_path).returncode == 1
