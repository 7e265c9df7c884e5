"""The jail's tests on every Python that Belljar supports: `make test-pythons`, or `nox -s 3.13`.

Interpreters come from PATH, from pyenv, or by uv from the network. One that cannot be had is named,
and its session counts as skipped. Arguments: `short`, or what pytest is given instead.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nox

PYTHONS = ("3.11", "3.12", "3.13", "3.14")

# What differs most from one version to the next: how code starts, reports, forks and ends.
SHORT = (
    "tests/unit/notebook",
    "tests/functional/test_python_behaviour.py",
    "tests/functional/test_kept.py",
    "tests/security/test_seccomp_live.py",
    "tests/security/test_shadow_modules.py",
)
# All that concerns the jail, kept sandboxes, the library and the command line.
FUNCTIONAL = """agents async branching cli client doctor engines filter_runs gateway kept kept_files
    kept_inputs kept_languages kept_packages languages limits live_usage mcp network network_jail
    pool programs python_behaviour run scarcity server server_sandboxes shell skill standalone trail
    world wrong_use"""
SECURITY = """cgroups_live kept_hostile kernel_objects probes probes_kept probes_network restricted
    seccomp_live shadow_modules"""
LONG = (
    "tests/unit",
    "tests/conformance/test_jail.py",
    *(f"tests/functional/test_{name}.py" for name in FUNCTIONAL.split()),
    *(f"tests/security/test_{name}.py" for name in SECURITY.split()),
)

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"


def interpreter(version: str) -> str:
    """Its path; or its version, for uv to look for."""
    return next((path for path in _candidates(version) if _runs(path, version)), version)


def _candidates(version: str) -> Iterator[str]:
    yield from filter(None, (shutil.which(f"python{version}"), shutil.which("python3")))
    # A shim of pyenv's only runs the versions that `pyenv global` names.
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True).stdout.strip()
        yield from map(str, sorted(Path(root, "versions").glob(f"{version}.*/bin/python")))


def _runs(path: str, version: str) -> bool:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    said = subprocess.run([path, "-c", code], capture_output=True, text=True)
    return said.returncode == 0 and said.stdout.strip() == version


def tests(session: nox.Session) -> None:
    # As users have it, not in place; uv would keep an earlier build of the same version.
    session.install("--reinstall-package", "belljar", ".[dev]")
    session.run("python", "--version")
    chosen = session.posargs
    if chosen in ([], ["short"]):
        chosen = ["-m", "not slow and not alone", *(SHORT if chosen else LONG)]
    session.run("python", "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", *chosen)


for each in PYTHONS:
    nox.session(tests, name=each, python=interpreter(each))
