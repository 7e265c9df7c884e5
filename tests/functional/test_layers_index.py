"""Package layers from the machine's package index, by the real uv (S5). Needs the network once.

Environments are built into BELLJAR_TEST_HOME if it is set, as in test_environments_build.py.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from belljar.environments import build, layers
from belljar.environments.catalogue import BASE, DATA
from belljar.environments.layers import Layer
from belljar.errors import PackageRefused
from belljar.model import MIB, Limits
from belljar.policy.packages import check_packages
from belljar.runtimes.interpreter import base_interpreter
from belljar.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    shared = os.environ.get("BELLJAR_TEST_HOME")
    return Settings(home=Path(shared) if shared else tmp_path_factory.mktemp("home"))


def python(code: str, *paths: Path) -> str:
    path = os.pathsep.join(map(str, paths))
    env = DATA.variables_for(Limits()) | {"PYTHONPATH": path, "MPLCONFIGDIR": "/nonexistent"}
    done = subprocess.run(
        [base_interpreter(), "-I" if not paths else "-s", "-c", code],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def layer(settings: Settings, *texts: str, data: bool = False) -> Layer:
    environment = DATA if data else BASE
    return layers.layer(check_packages(texts, settings), settings, environment=environment)


def test_S5_a_common_package_works_and_is_found_at_once(settings: Settings) -> None:
    made = layer(settings, "humanize==4.*")
    assert made.packages["humanize"].startswith("4.")
    assert (
        python("import humanize; print(humanize.intcomma(1234567))", made.folder) == "1,234,567\n"
    )
    started = time.perf_counter()
    assert layer(settings, "humanize == 4.*") == made
    assert time.perf_counter() - started < 0.05


def test_S5_extras_and_native_modules_work(settings: Settings) -> None:
    made = layer(settings, "sqlalchemy[asyncio]", "lxml", "pyyaml")
    assert {"greenlet", "lxml", "pyyaml", "sqlalchemy"} <= set(made.packages)
    assert {"greenlet", "lxml", "yaml", "sqlalchemy"} <= made.imports
    code = "import greenlet, yaml; from lxml import etree; print(etree.XML('<a/>').tag)"
    assert python(code, made.folder) == "a\n"


def test_S5_on_top_of_data_nothing_is_there_twice(settings: Settings) -> None:
    folder = build.build(DATA, settings)
    made = layer(settings, "seaborn", "numpy", data=True)
    assert "seaborn" in made.packages
    assert not {"numpy", "pandas", "matplotlib"} & set(made.packages)
    assert made.bytes < 16 * MIB
    code = "import seaborn, numpy; print(numpy.__file__)"
    assert python(code, made.folder, folder).startswith(str(folder))


def test_S5_what_the_index_has_only_as_source_or_not_at_all_is_refused(settings: Settings) -> None:
    anything = Settings(home=settings.home, packages_allowed="any")
    with pytest.raises(PackageRefused) as caught:
        layer(anything, "sgmllib3k==1.0.0")
    assert "wheels" in caught.value.hint
    with pytest.raises(PackageRefused) as caught:
        layer(anything, "belljar-no-such-package-x9q")
    assert "spelling" in caught.value.hint


def test_S5_a_set_over_the_cap_is_refused_before_it_fills_the_disk(settings: Settings) -> None:
    small = Settings(home=settings.home, package_bytes=20 * MIB)
    with pytest.raises(PackageRefused, match="more than 20 MiB"):
        layer(small, "scipy")
