"""A checkout with its .venv, as a second drive: what changes with every commit, and little else.

The .venv is made by `make setup` in the guest's own root, once for a root and a pyproject.toml. A
changed checkout is copied beside it and compiled, which takes seconds.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

from . import indexes, inside, roots
from .guests import Guest
from .report import FILE as TABLE

AGENT = Path(__file__).with_name("agent.py")
SIZE = "3G"
KEPT = 3
"""Images of earlier checkouts, per guest."""
_SETUP = "cd /srv/belljar; make --no-print-directory setup PYTHON=/usr/bin/"
_ENVIRONMENTS = (
    "cd /srv; export BELLJAR_HOME=/srv/homes/root;"
    " belljar/.venv/bin/belljar env build node;"
    # For both users, without a second copy.
    " cp -al homes/root homes/alice; find homes/alice -type d -exec chown 1000:1000 {} +"
)
"""What probes in other languages run in: a guest has no network to build them."""


def files(checkout: Path) -> list[Path]:
    """What a clone would have, and what is not committed yet; but for the table, which each cell
    rewrites: the next one would get an image of its own."""
    listed = _git(checkout, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = {Path(os.fsdecode(name)) for name in listed.split(b"\0") if name} - {TABLE}
    return sorted(name for name in names if (checkout / name).is_file())


def commit(checkout: Path) -> str:
    """What is tested; with a plus where something is not committed, but for the table itself."""
    head = _git(checkout, "rev-parse", "--short=10", "HEAD").decode().strip()
    changed = _git(checkout, "status", "--porcelain", "--", ".", f":!{TABLE}")
    return f"{head}+" if changed.strip() else head


def _git(checkout: Path, *words: str) -> bytes:
    # A checkout of somebody else's is as good as our own for reading.
    environment = {**os.environ, "GIT_CONFIG_COUNT": "1"}
    environment |= {"GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    return subprocess.run(
        ["git", *words], cwd=checkout, env=environment, capture_output=True, check=True
    ).stdout


def recipe() -> str:
    """The text of whatever decides what is in a layer beside the checkout."""
    parts = [inspect.getsource(part) for part in (ensure, copy, inside.plan)]
    return "\n".join([*parts, _SETUP, _ENVIRONMENTS, AGENT.read_text(), SIZE])


def key(root: Path, checkout: Path, names: list[Path]) -> str:
    digest = hashlib.sha256(f"{root.name} {recipe()}".encode())
    for name in names:
        digest.update(f"\0{name}\0{(checkout / name).stat().st_mode & 0o111}\0".encode())
        digest.update((checkout / name).read_bytes())
    return digest.hexdigest()[:12]


def setup_key(root: Path, checkout: Path) -> str:
    """Of the folder with the .venv: its interpreter, what is installed into it, and how."""
    declared = tomllib.loads((checkout / "pyproject.toml").read_text())
    how = [_SETUP, _ENVIRONMENTS, inspect.getsource(inside.plan)]
    facts = [root.name, *how, declared["build-system"], declared["project"]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def ensure(
    guest: Guest, root: Path, checkout: Path, cache: Path, say: Callable[[str], None]
) -> Path:
    """Makes the image unless there is one of exactly this checkout."""
    place = cache / "layers"
    names = files(checkout)
    image = place / f"{guest.name}-{key(root, checkout, names)}.ext4"
    if image.is_file():
        image.touch()
        return image
    place.mkdir(parents=True, exist_ok=True)
    srv = place / f"{guest.name}-{setup_key(root, checkout)}"
    known = indexes.here()
    log = place / f"{guest.name}.log"
    if not (srv / "ready").is_file():
        for old in place.glob(f"{guest.name}-*"):
            if old.is_dir():
                roots.remove(old)
        copy(checkout, names, srv / "belljar")
        say(f"{guest.title}: make setup")
        inside.run(root, f"{_SETUP}{guest.python}", srv=srv, indexes=known, log=log)
        say(f"{guest.title}: environments")
        inside.run(root, _ENVIRONMENTS, srv=srv, indexes=known, log=log)
        (srv / "ready").touch()
    say(f"{guest.title}: the checkout")
    copy(checkout, names, srv / "belljar")
    shutil.copy(AGENT, srv / "agent.py")
    # Compiled here, at full speed: also what pytest makes of the tests.
    compiled = (
        "cd /srv/belljar; touch .venv/.installed; .venv/bin/python -m compileall -q src; "
        ".venv/bin/python -m pytest --collect-only -q -p no:cacheprovider"
        " tests/conformance/test_jail.py tests/functional tests/security >/dev/null; "
        "chown -R 1000:1000 /srv/belljar; chmod -R a+rX /srv/belljar"
    )
    inside.run(root, compiled, srv=srv, indexes=known, log=log)
    unfinished = image.with_suffix(".making")
    roots.filesystem(srv, unfinished, label="belljar", size=SIZE)
    os.rename(unfinished, image)
    images = sorted(place.glob(f"{guest.name}-*.ext4"), key=lambda file: file.stat().st_mtime)
    for old in images[:-KEPT]:
        old.unlink()
    return image


def copy(checkout: Path, names: list[Path], target: Path) -> None:
    """Makes the target equal to the checkout, but for its .venv."""
    if target.is_dir():
        for entry in target.iterdir():
            if entry.name != ".venv":
                roots.remove(entry)
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(checkout / name, target / name)
