"""A host for sandboxes to reach: servers on an address of loopback that nobody else uses."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import random
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

from belljar.settings import Settings

NAME, SECOND, OTHER = (f"{name}.conformance.example" for name in ("api", "second", "other"))
"""All lead to the same servers; no rule names the last."""
_SEED = 7
_PIECE = 1 << 16


class Upstream:
    """Used as a context. `heard`: what it was asked for, by whichever way; `shown`: with which
    Authorization."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for its certificate authority."""
        from belljar.egress.authority import Authority
        from belljar.egress.certificates import Contexts

        self.heard: list[str] = []
        self.shown: list[str] = []
        self.address = ".".join(["127", *(str(random.randint(2, 250)) for _ in range(3))])
        authority = Authority.load(folder)
        self._bundle = folder / "upstream.pem"
        self._bundle.write_bytes(authority.certificate_pem)
        contexts = Contexts(authority)
        secure = contexts.for_name(NAME)

        def named(ours: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
            ours.context = contexts.for_name(name or NAME)

        secure.sni_callback = named
        self._servers = [self._serve(80, None), self._serve(443, secure)]
        self.port, self.secure_port = (server.server_address[1] for server in self._servers)
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagrams.bind((self.address, self.port))
        self._threads = [threading.Thread(target=server.serve_forever) for server in self._servers]
        self._threads.append(threading.Thread(target=self._listen, daemon=True))

    def __enter__(self) -> Upstream:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._datagrams.close()

    @property
    def usual_ports(self) -> bool:
        """Not for ordinary users to have; names lead to the gateway only for these."""
        return (self.port, self.secure_port) == (80, 443)

    def settings(self, settings: Settings) -> Settings:
        """Those, and the gateway finds its way here."""
        return dataclasses.replace(
            settings,
            network_names=dict.fromkeys((NAME, SECOND, OTHER), self.address),
            network_private=(f"{self.address}/32",),
            network_authorities=self._bundle,
        )

    def rule(self, name: str = NAME) -> tuple[str, ...]:
        return (f"{name}:{self.port}", f"{name}:{self.secure_port}")

    def url(self, path: str, name: str = NAME, *, secure: bool = False) -> str:
        scheme, port = ("https", self.secure_port) if secure else ("http", self.port)
        return f"{scheme}://{name}:{port}{path}"

    def _serve(self, port: int, secure: ssl.SSLContext | None) -> http.server.ThreadingHTTPServer:
        heard, shown = self.heard, self.shown

        class Handler(_Handler):
            def do_GET(self) -> None:
                heard.append(self.path)
                shown.append(self.headers.get("Authorization", ""))
                super().do_GET()

        try:
            server = _Server((self.address, port), Handler)
        except OSError:
            server = _Server((self.address, 0), Handler)
        if secure:
            server.socket = secure.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        return server

    def _listen(self) -> None:
        while True:
            try:
                data = self._datagrams.recv(1000)
            except OSError:
                return
            self.heard.append(f"a datagram: {data!r}")


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up early is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """/hello; /echo: the request's Authorization; /bytes/N: that many, always the same."""
        kind, _, size = self.path.lstrip("/").partition("/")
        short = self.headers.get("Authorization", "").encode() if kind == "echo" else b"hello"
        total = int(size) if kind == "bytes" else len(short)
        self.send_response(200)
        self.send_header("Content-Length", str(total))
        self.end_headers()
        if kind != "bytes":
            self.wfile.write(short)
            return
        for piece in _pieces(total):
            self.wfile.write(piece)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


def _pieces(total: int) -> list[bytes]:
    """One random piece again and again, each time shifted: a piece in a wrong place shows."""
    first = random.Random(_SEED).randbytes(2 * _PIECE)
    found = []
    for number, start in enumerate(range(0, total, _PIECE)):
        shift = number * 7 % _PIECE
        found.append(first[shift : shift + min(_PIECE, total - start)])
    return found


def digest(total: int) -> str:
    """Of what /bytes/N gives."""
    found = hashlib.sha256()
    for piece in _pieces(total):
        found.update(piece)
    return found.hexdigest()
