"""A checkout with its .venv, as a second drive: what changes with every commit, and little else.

The .venv is made by `make setup` in the guest's own root, once for a root and a pyproject.toml. A
changed checkout is copied beside it and compiled, which takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

from . import indexes, inside, roots
from .guests import Guest

RECIPE = "1"
AGENT = Path(__file__).with_name("agent.py")
SIZE = "3G"
KEPT = 3
"""Images of earlier checkouts, per guest."""
_ENVIRONMENTS = (
    "cd /srv; export BELLJAR_HOME=/srv/homes/root;"
    " belljar/.venv/bin/belljar env build node;"
    # For both users, without a second copy.
    " cp -al homes/root homes/alice; find homes/alice -type d -exec chown 1000:1000 {} +"
)
"""What probes in other languages run in: a guest has no network to build them."""


def files(checkout: Path) -> list[Path]:
    """What a clone would have, and what is not committed yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    # A checkout of somebody else's is as good as our own for reading.
    environment = {**os.environ, "GIT_CONFIG_COUNT": "1"}
    environment |= {"GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    listed = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, check=True
    ).stdout
    names = {Path(os.fsdecode(name)) for name in listed.split(b"\0") if name}
    return sorted(name for name in names if (checkout / name).is_file())


def key(guest: Guest, checkout: Path, names: list[Path]) -> str:
    digest = hashlib.sha256(f"{RECIPE} {roots.key(guest)} {AGENT.read_text()}".encode())
    for name in names:
        digest.update(f"\0{name}\0{(checkout / name).stat().st_mode & 0o111}\0".encode())
        digest.update((checkout / name).read_bytes())
    return digest.hexdigest()[:12]


def setup_key(guest: Guest, checkout: Path) -> str:
    """Of the folder with the .venv: its interpreter, and what is installed into it."""
    declared = tomllib.loads((checkout / "pyproject.toml").read_text())
    facts = [RECIPE, roots.key(guest), declared["build-system"], declared["project"]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def ensure(guest: Guest, checkout: Path, cache: Path, say: Callable[[str], None]) -> Path:
    """Makes the image unless there is one of exactly this checkout."""
    place = cache / "layers"
    names = files(checkout)
    image = place / f"{guest.name}-{key(guest, checkout, names)}.ext4"
    if image.is_file():
        image.touch()
        return image
    place.mkdir(parents=True, exist_ok=True)
    root = roots.folder(guest, cache)
    srv = place / f"{guest.name}-{setup_key(guest, checkout)}"
    known = indexes.here()
    log = place / f"{guest.name}.log"
    if not (srv / "ready").is_file():
        for old in place.glob(f"{guest.name}-*"):
            if old.is_dir():
                roots.remove(old)
        copy(checkout, names, srv / "belljar")
        say(f"{guest.title}: make setup")
        command = f"cd /srv/belljar; make --no-print-directory setup PYTHON=/usr/bin/{guest.python}"
        inside.run(root, command, srv=srv, indexes=known, log=log)
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
