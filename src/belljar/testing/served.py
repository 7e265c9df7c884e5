"""A real server in a process of its own, for tests over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from belljar.settings import default_home


class Answer(NamedTuple):
    status: int
    headers: Message
    """Names in any case."""
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


class Served:
    """`belljar serve` on a free port of loopback, with a home of its own."""

    on_answer: ClassVar[Callable[[str, str, Answer], None] | None] = None
    """Sees method, path and answer of everything that is asked."""

    def __init__(self, home: Path, settings: Mapping[str, Any], *, keys: bool) -> None:
        self.home = home
        self.key = ""
        """What to send as Bearer: the first key, or the token of the printed URL."""
        self.url = ""
        self._variables = os.environ | {"BELLJAR_HOME": str(home)}
        self._file = home / "server.toml"
        self._file.write_text(to_toml(settings))
        if keys:
            self.key = self.belljar("keys", "add", "tester", "--operator").strip()
        self.log = home / "server.log"
        self.process = self._start()

    def belljar(self, *arguments: str) -> str:
        """What a command prints, with this server's home."""
        argv = [sys.executable, "-m", "belljar.cli.main", *arguments]
        done = subprocess.run(
            argv, env=self._variables, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def _start(self) -> subprocess.Popen[str]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "belljar.cli.main", "serve", "--port", "0"],
                env=self._variables,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        if "http://" not in line:
            process.wait(10)
            raise RuntimeError(f"no server: {self.log.read_text()[-2000:]}")
        url = line.split()[-1]
        self.url, _, token = url.partition("?token=")
        self.url = self.url.rstrip("/")
        self.key = token or self.key
        return process

    def wait_ready(self, within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while True:
            with contextlib.suppress(OSError):
                if self.ask("GET", "/ready").status == 200:
                    return
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"not ready: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = "",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Answer:
        """`body`: bytes as they are, anything else as JSON. `key=None`: without one."""
        sent = dict(headers or {})
        if key is not None:
            sent.setdefault("Authorization", f"Bearer {key or self.key}")
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if content is not None:
            sent.setdefault("Content-Type", "application/json")
        request = urllib.request.Request(self.url + path, content, sent, method=method)
        try:
            with _OPENER.open(request, timeout=timeout_s) as response:
                answer = Answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            with error:
                answer = Answer(error.code, error.headers, error.read())
        if Served.on_answer:
            Served.on_answer(method, path, answer)
        return answer

    def execute(self, code: str, **fields: Any) -> Answer:
        return self.ask("POST", "/execute", {"code": code, **fields})

    def restart(self) -> None:
        """Again, with the same home; a new port."""
        self.process = self._start()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(60)
        finally:
            self.process.kill()
            if self.process.stdout:
                self.process.stdout.close()
        return status


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


@contextlib.contextmanager
def served(*, keys: bool = False, environments: bool = False, **settings: Any) -> Iterator[Served]:
    """A server that is ready, and gone afterwards. `environments`: with those that are built."""
    with tempfile.TemporaryDirectory(prefix="belljar-served-") as folder:
        if environments:
            home = Path(os.environ.get("BELLJAR_TEST_HOME") or default_home())
            Path(folder, "environments").symlink_to(home / "environments")
        server = Served(Path(folder), settings, keys=keys)
        try:
            server.wait_ready()
            yield server
        finally:
            server.stop()


def to_toml(settings: Mapping[str, Any]) -> str:
    """Plain values and one level of tables."""
    lines = [f"{name} = {_value(v)}" for name, v in settings.items() if not isinstance(v, dict)]
    for name, table in settings.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *(f"{key} = {_value(v)}" for key, v in table.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)
