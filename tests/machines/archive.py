"""Where packages come from: the mirror, the keys and the programs of this machine's own apt."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError

from .errors import CannotBeHad, SetupFailed, setup_error

SOURCES = Path("/etc/apt")
KEYRINGS = Path("/usr/share/keyrings")
PROGRAMS = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "dpkg-deb": "dpkg"}
"""What building takes, and the package that has it."""
_HAS_UBUNTUS_KEYS = "trixie"
"""Debian 12 has no package with the keys of Ubuntu's archive."""
_FETCH_S = 60


@dataclass(frozen=True)
class Source:
    """One stanza of apt's configuration."""

    uri: str
    suites: tuple[str, ...]
    keyring: str


def sources(folder: Path = SOURCES) -> list[Source]:
    """All that apt on this machine is configured with, in both of its formats."""
    found: list[Source] = []
    for file in sorted(folder.glob("sources.list.d/*.sources")):
        found += _stanzas(file.read_text())
    for file in (folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list"))):
        if file.is_file():
            found += _lines(file.read_text())
    return found


def _stanzas(text: str) -> Iterable[Source]:
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        for line in stanza.splitlines():
            name, colon, value = line.partition(":")
            if colon and not line.startswith(("#", " ", "\t")):
                fields[name.strip().lower()] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled") == "no":
            continue
        suites = tuple(fields.get("suites", "").split())
        keyring = fields.get("signed-by", "")
        for uri in fields.get("uris", "").split():
            yield Source(uri, suites, keyring if keyring.startswith("/") else "")


def _lines(text: str) -> Iterable[Source]:
    for line in text.splitlines():
        if match := re.match(r"deb\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)", line):
            options, uri, suite = match.groups()
            signed = re.search(r"signed-by=(/\S+)", options or "")
            yield Source(uri, (suite,), signed[1] if signed else "")


def mirror(archive: str, known: Iterable[Source]) -> str:
    """The mirror of `debian` or `ubuntu`: as configured, or beside the one that is."""
    uris = [source.uri.rstrip("/") for source in known]
    for uri in uris:
        if uri.endswith(f"/{archive}"):
            return uri
    for uri in uris:
        beside, _, name = uri.rpartition("/")
        if name in ("debian", "ubuntu"):
            return f"{beside}/{archive}"
    raise CannotBeHad(f"apt on this machine is configured with no mirror of {archive}")


class Archives:
    """The distributions' archives, as this machine reaches them."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._sources = sources()

    def mirror(self, archive: str) -> str:
        return mirror(archive, self._sources)

    def keyring(self, archive: str) -> Path:
        """A file of keys: this machine's own, else from the package of Debian's that has them."""
        known = KEYRINGS / f"{archive}-archive-keyring.gpg"
        configured = [
            Path(source.keyring)
            for source in self._sources
            if source.keyring and source.uri.rstrip("/").endswith(f"/{archive}")
        ]
        for file in (*configured, known):
            if file.is_file():
                return file
        if archive != "ubuntu":
            raise CannotBeHad(f"{known} is missing: apt-get install {archive}-archive-keyring")
        return self._ubuntus_keyring()

    def _ubuntus_keyring(self) -> Path:
        folder = self._cache / "keyrings"
        file = folder / "usr/share/keyrings/ubuntu-archive-keyring.gpg"
        if not file.is_file():
            base = self.mirror("debian")
            index = f"{base}/dists/{_HAS_UBUNTUS_KEYS}/main/binary-all/Packages.xz"
            name = package_file("ubuntu-keyring", lzma.decompress(_fetch(index)).decode())
            folder.mkdir(parents=True, exist_ok=True)
            package = folder / "ubuntu-keyring.deb"
            package.write_bytes(_fetch(f"{base}/{name}"))
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        if not file.is_file():
            raise SetupFailed("Debian's package ubuntu-keyring has no key of Ubuntu's archive")
        return file


def package_file(package: str, index: str) -> str:
    """Where a package is, by an archive's index."""
    for stanza in index.split("\n\n"):
        if stanza.startswith(f"Package: {package}\n"):
            found = re.search(r"^Filename: (.+)$", stanza, re.MULTILINE)
            if found:
                return found[1]
    raise SetupFailed(f"the archive has no package {package}")


def _fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_FETCH_S) as response:
            content: bytes = response.read()
            return content
    except HTTPError as error:  # the server is there; the address is wrong
        raise SetupFailed(f"{url}: {error}") from error
    except OSError as error:
        raise CannotBeHad(f"{url}: {error}") from error


def require_programs(programs: Mapping[str, str] = PROGRAMS) -> None:
    """Installs what is missing, as root; else says what to type."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = sorted(
        {package for name, package in programs.items() if not shutil.which(name, path=path)}
    )
    if not missing:
        return
    typed = f"apt-get install {' '.join(missing)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise CannotBeHad(f"missing here: {typed}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", *missing],
    ):
        done = subprocess.run(
            ["apt-get", *command], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = done.stderr.strip() or done.stdout.strip()
            raise setup_error(f"{typed}: {said}", said)
