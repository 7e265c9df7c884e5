"""The installation's certificate authority, and certificates of names (N1, N2)."""

from __future__ import annotations

import datetime
import os
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from belljar.egress import certificates
from belljar.egress.authority import FILE, FOLDER, Authority
from belljar.egress.certificates import Contexts
from belljar.errors import Unavailable

LOADING = """
import sys
from pathlib import Path
from belljar.egress.authority import Authority
sys.stdin.read()
sys.stdout.buffer.write(Authority.load(Path(sys.argv[1])).certificate_pem)
"""


def handshake(server: ssl.SSLContext, trusted: bytes, name: str) -> ssl.SSLObject:
    client = ssl.create_default_context(cadata=trusted.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.set_alpn_protocols(["h2", "http/1.1"])
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return ends[0]


def test_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    made = Authority.load(tmp_path)
    assert Authority.load(tmp_path) == made
    path = tmp_path / FOLDER / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert b"PRIVATE" not in made.certificate_pem and "PRIVATE" not in repr(made)
    assert Authority.of(made.to_dict()) == made


def test_of_many_at_once_all_get_the_same_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOADING, str(tmp_path)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)
    ]
    for one in started:
        assert one.stdin
        one.stdin.close()
    told = {one.stdout.read() for one in started if one.stdout}
    assert [one.wait() for one in started] == [0] * 4
    assert told == {Authority.load(tmp_path).certificate_pem}


def test_a_maker_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "authority.new").write_bytes(b"-----BEGIN CERTIF")
    (folder / ".lock").touch()
    assert Authority.load(tmp_path).certificate_pem
    assert sorted(os.listdir(folder)) == [".lock", FILE]


@pytest.mark.parametrize("spoil", ["readable", "cut", "another's key", "a link"])
def test_what_cannot_be_trusted_is_not_used(tmp_path: Path, spoil: str) -> None:
    made = Authority.load(tmp_path)
    path = tmp_path / FOLDER / FILE
    if spoil == "readable":
        path.chmod(0o640)
    elif spoil == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif spoil == "another's key":
        path.write_bytes(made.certificate_pem + certificates.make_authority()[1])
    else:
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
    with pytest.raises(Unavailable):
        Authority.load(tmp_path)


def test_renewed_before_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = certificates._now()
    made = Authority.load(tmp_path)
    monkeypatch.setattr(certificates, "_now", lambda: now + datetime.timedelta(days=1700))
    assert Authority.load(tmp_path) == made
    monkeypatch.setattr(certificates, "_now", lambda: now + datetime.timedelta(days=1800))
    later = Authority.load(tmp_path)
    assert later != made and Authority.load(tmp_path) == later


def test_certificates_for_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority.load(tmp_path)
    contexts = Contexts(authority)
    for name in ("api.example.com", "x" * 60 + ".example.com", "xn--bcher-kva.example"):
        seen = handshake(contexts.for_name(name), authority.bundle(system=False), name)
        assert seen.getpeercert()["subjectAltName"] == (("DNS", name),)  # type: ignore[index]
        assert seen.selected_alpn_protocol() == "http/1.1"
        assert seen.version() in ("TLSv1.3", "TLSv1.2")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(contexts.for_name("api.example.com"), authority.certificate_pem, "b.example.com")
    first = contexts.for_name("api.example.com")
    assert contexts.for_name("api.example.com") is first
    now = certificates._now()
    monkeypatch.setattr(certificates, "_now", lambda: now + datetime.timedelta(days=20))
    assert contexts.for_name("api.example.com") is not first


def test_names_without_end_are_not_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "MOST_CONTEXTS", 3)
    contexts = Contexts(Authority.load(tmp_path))
    for number in range(9):
        contexts.for_name(f"n{number}.example.com")
    assert list(contexts._ready) == [f"n{number}.example.com" for number in (6, 7, 8)]


def test_the_authority_signs_for_nothing_below_it(tmp_path: Path) -> None:
    certificate = x509.load_pem_x509_certificate(Authority.load(tmp_path).certificate_pem)
    basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical and basic.value.ca and basic.value.path_length == 0


def test_what_a_sandbox_trusts(tmp_path: Path) -> None:
    authority = Authority.load(tmp_path)
    assert authority.bundle(system=False).count(b"BEGIN CERTIFICATE") == 1
    more = certificates.make_authority()[0]
    both = authority.bundle(system=True, more=more)
    assert both.startswith(authority.certificate_pem.strip()) and more.strip() in both
    assert b"PRIVATE" not in both
    ssl.create_default_context(cadata=both.decode())


WITHOUT_FILES = """
import ctypes, os, sys
from belljar.egress.authority import Authority
from belljar.egress.certificates import Contexts
from pathlib import Path
authority = Authority.load(Path(sys.argv[1]))
Contexts(authority).for_name("before.example.com")
libc = ctypes.CDLL(None, use_errno=True)
rights = ctypes.c_uint64((1 << 13) - 1)
ruleset = libc.syscall(444, ctypes.byref(rights), 8, 0)
if ruleset < 0:
    sys.exit(77)
libc.prctl(38, 1, 0, 0, 0)
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
libc.prctl(4, 0, 0, 0, 0)
assert libc.syscall(446, ruleset, 0) == 0
try:
    open("/etc/passwd")
except PermissionError:
    Contexts(authority).for_name("after.example.com")
else:
    sys.exit(1)
"""


def test_certificates_are_minted_where_no_file_can_be_opened(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_FILES, str(tmp_path)])
    if done.returncode == 77:
        pytest.skip("this kernel has no Landlock")
    assert done.returncode == 0
