"""What the suites need and this repository does not hold: fetched once, kept under build/."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from belljar import Settings
from belljar.environments import catalogue
from belljar.environments.build import build

KEPT = Path(__file__).parent.parent / "build" / "compat"


@cache
def environment(name: str) -> Path:
    """The folder of one of Belljar's environments, for the bare side to use as well."""
    return build(catalogue.get(name), Settings())


def mount(name: str) -> str:
    """Where that folder appears inside."""
    return catalogue.get(name).mount_path


@cache
def python_packages(*names: str) -> dict[str, bytes]:
    """Packages with what they require, as files: those this interpreter has installed."""
    found: dict[str, bytes] = {}
    queue, seen = list(names), set[str]()
    while queue:
        name = canonicalize_name(queue.pop())
        if name in seen:
            continue
        seen.add(name)
        package = distribution(name)
        for text in package.requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(requirement.name)
        for file in package.files or []:
            path = Path(str(file.locate()))
            if file.parts[0] != ".." and path.suffix != ".pyc" and path.is_file():
                found[str(file)] = path.read_bytes()
    return found


@cache
def npm_packages(collection: str, *names: str) -> dict[str, bytes]:
    """npm packages with what they require, as files of a node_modules folder."""
    folder = KEPT / collection
    listed = folder / "listed"
    if not listed.exists() or listed.read_text().split() != list(names):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n')
        argv = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run([*argv, *names], cwd=folder, check=True)
        listed.write_text("\n".join(names))
    found = _files(folder / "node_modules")
    return {f"node_modules/{name}": content for name, content in found.items()}


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
    }
