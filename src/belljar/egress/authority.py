"""The installation's own certificate authority, which nobody trusts but the sandboxes.

The host makes it once and hands it to the gateway, which mints a certificate per name with it
(`certificates`).
"""

from __future__ import annotations

import fcntl
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from belljar.errors import Unavailable
from belljar.extras import install

FOLDER = "network"
FILE = "authority.pem"


@dataclass(frozen=True, kw_only=True)
class Authority:
    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    @classmethod
    def load(cls, home: Path) -> Authority:
        """The installation's, made if there is none yet or its time is nearly over. Certificate
        and key are one file that appears whole, so there is no half of one, whoever else does the
        same now or was killed at it."""
        folder = home / FOLDER
        path = folder / FILE
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if found := _read(path):
                return found
            lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return _read(path) or _write(path)
            finally:
                os.close(lock)
        except OSError as error:
            raise Unavailable(
                "network: the gateway's certificate authority cannot be used",
                detail=f"{folder}: {error}",
                hint="BELLJAR_HOME must be a folder that this user can write",
            ) from error

    def to_dict(self) -> dict[str, str]:
        """For the gateway's control socket, and nothing else: the key is in it."""
        return {"certificate": self.certificate_pem.decode(), "key": self.key_pem.decode()}

    @classmethod
    def of(cls, data: Mapping[str, str]) -> Authority:
        """The inverse of `to_dict`."""
        return cls(certificate_pem=data["certificate"].encode(), key_pem=data["key"].encode())

    def bundle(self, *, system: bool, more: bytes = b"") -> bytes:
        """What a sandbox trusts: this authority; with `system` also what this machine trusts, and
        `more`, for hosts whose TLS is not opened."""
        parts = [self.certificate_pem]
        if system:
            parts += [system_roots(), more]
        return b"\n".join(part.strip() for part in parts if part.strip()) + b"\n"


def system_roots() -> bytes:
    """What this machine trusts, as PEM; empty if it has nothing of the kind."""
    places = ssl.get_default_verify_paths()
    for name in (places.cafile, places.openssl_cafile):
        with suppress(OSError):
            if name and (found := Path(name).read_bytes()):
                return found
    single: dict[bytes, None] = {}
    for name in (places.capath, places.openssl_capath):
        with suppress(OSError):
            for file in sorted(Path(name).iterdir()) if name else ():
                with suppress(OSError):
                    if b"BEGIN CERTIFICATE" in (pem := file.read_bytes()):
                        single[pem.strip()] = None
    return b"\n".join(single)


def _read(path: Path) -> Authority | None:
    """None: there is none, or its time is nearly over."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_mode & 0o077 or (os.geteuid() and status.st_uid != os.geteuid()):
            raise Unavailable(
                "network: the gateway's certificate authority must be readable for its owner"
                " alone, and that must be you",
                detail=str(path),
                hint="others may know its key: remove the file, and a new one is made",
            )
        content = file.read(1 << 16)
    try:
        pair = _certificates().usable(content)
    except (ValueError, TypeError) as error:
        raise Unavailable(
            "network: the gateway's certificate authority is damaged",
            detail=f"{path}: {error}",
            hint="remove it, and a new one is made",
        ) from error
    return Authority(certificate_pem=pair[0], key_pem=pair[1]) if pair else None


def _write(path: Path) -> Authority:
    certificate_pem, key_pem = _certificates().make_authority()
    # The lock is held, so what is there under this name was left by someone who was killed.
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
        file.write(certificate_pem + key_pem)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return Authority(certificate_pem=certificate_pem, key_pem=key_pem)


def _certificates() -> ModuleType:
    try:
        from belljar.egress import certificates
    except ImportError as error:
        raise Unavailable(
            "network: the library cryptography is missing", hint=install("network")
        ) from error
    return certificates
