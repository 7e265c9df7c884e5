"""X.509: how the authority is made, and certificates for names with it. Needs `cryptography`."""

from __future__ import annotations

import datetime
import os
import ssl
from collections import OrderedDict

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from belljar.egress.authority import Authority

MOST_CONTEXTS = 512
"""Certificates kept ready; a rule with `*.` lets code ask for names without end."""

_DAY = datetime.timedelta(days=1)
_LIFE = 5 * 365 * _DAY
_RENEWED_BEFORE = 90 * _DAY
"""A gateway that lives longer than this mints with an authority that is about to end."""
_EARLY = 7 * _DAY
"""Clocks in sandboxes can be behind: a machine from a snapshot, for one."""
_LEAF_LIFE = 30 * _DAY


class Contexts:
    """The gateway's TLS contexts towards sandboxes, one per name. No named file is opened."""

    def __init__(self, authority: Authority) -> None:
        self._issuer = x509.load_pem_x509_certificate(authority.certificate_pem)
        self._signing = _private(authority.key_pem)
        # One key for all names: they are all this gateway.
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._key_pem = _pem(self._key)
        self._ready: OrderedDict[str, tuple[datetime.datetime, ssl.SSLContext]] = OrderedDict()

    def for_name(self, name: str) -> ssl.SSLContext:
        """`name` as `host_name` gives it. Takes about a millisecond, once per name."""
        now = _now()
        if (found := self._ready.get(name)) and now < found[0]:
            self._ready.move_to_end(name)
            return found[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # In this order: only a client that speaks nothing else gets HTTP/2, to be told in its own
        # words that it is not spoken here (`http.http2_refusal`).
        context.set_alpn_protocols(["http/1.1", "h2"])
        # Every connection has its own handshake, and so its own check of the name it is for.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        _load(context, self._mint(name, now) + self._key_pem)
        self._ready[name] = (now + _LEAF_LIFE / 2, context)
        self._ready.move_to_end(name)
        while len(self._ready) > MOST_CONTEXTS:
            self._ready.popitem(last=False)
        return context

    def _mint(self, name: str, now: datetime.datetime) -> bytes:
        issuer = self._issuer
        public = self._key.public_key()
        # A common name has at most 64 characters; clients look at the alternative names only.
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if len(name) <= 64 else []
        above = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(issuer.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - _EARLY, issuer.not_valid_before_utc))
            .not_valid_after(min(now + _LEAF_LIFE, issuer.not_valid_after_utc))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=not subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(leaf=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(above),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._signing, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)


def make_authority() -> tuple[bytes, bytes]:
    """Certificate and key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Its own name for each, so that a client that has met two does not mix them up.
    common = f"Belljar gateway {os.urandom(4).hex()}"
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Belljar"),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _EARLY)
        .not_valid_after(_now() + _LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(leaf=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM), _pem(key)


def usable(content: bytes) -> tuple[bytes, bytes] | None:
    """Certificate and key out of a file with both; None: their time is nearly over."""
    certificate = x509.load_pem_x509_certificate(content)
    key = _private(content)
    if key.public_key() != certificate.public_key():
        raise ValueError("certificate and key do not belong together")
    if certificate.not_valid_after_utc - _now() < _RENEWED_BEFORE:
        return None
    return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """`ssl` takes certificates from files only. One in memory, of which nobody else has the
    descriptor, can be opened even where Landlock lets no file be opened."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is of another kind")
    return key


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _usage(*, leaf: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=leaf,
        key_cert_sign=not leaf,
        crl_sign=not leaf,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
