"""The synchronous face: `belljar.Belljar` and `belljar.run`."""

from __future__ import annotations

import atexit
import os
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack, cast

from belljar import core
from belljar.environments.folders import Progress
from belljar.errors import Closed, InvalidRequest, Unsupported
from belljar.model import Result
from belljar.options import PlacedOptions, RunOptions
from belljar.portal import Portal
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar import client
    from belljar.fetching import Page
    from belljar.policy.filter import Rules


class Belljar:
    """Owns engines and their pools: `with Belljar() as jar: jar.run(...)`. Threads may share it.

    With `url` and `key` it is a server's."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        rules: Rules | None = None,
        on_progress: Progress | None = None,
        url: str = "",
        key: str = "",
    ) -> None:
        self._jar: core.Belljar | client.Belljar
        self._remote = bool(url)
        if url:
            from belljar import client  # few programs speak to a server

            if settings or rules:
                raise InvalidRequest("url: a server has settings and rules of its own")
            self._jar = client.Belljar(url, key)
        else:
            self._jar = core.Belljar(settings, rules=rules, on_progress=on_progress)
        self._portal: Portal | None = Portal()
        self._owner = os.getpid()

    @property
    def settings(self) -> Settings:
        if self._remote:
            raise Unsupported("a server's settings are its operator's")
        return cast(core.Belljar, self._jar).settings

    def __enter__(self) -> Belljar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, code: str, **options: Unpack[RunOptions]) -> Result:
        """Runs `code` in a fresh sandbox that is destroyed afterwards."""
        return self._open().call(self._jar.run(code, **options))

    def fetch(self, address: str, **options: Any) -> Page:
        """One page as text, got and read in sandboxes (N3): `network` says where it and its
        redirects may lead, without it the host of `address` alone."""
        return self._open().call(self._jar.fetch(address, **options))

    def submit(self, code: str, **options: Unpack[RunOptions]) -> Future[Result]:
        """As `run`, but returns at once."""
        return self._open().submit(self._jar.run(code, **options))

    def warm(self, name: str, count: int, *, engine: str = "auto") -> None:
        """Returns when `count` sandboxes wait for an environment (or a language's environment).

        Those that nobody comes for go again after `Settings.pool_idle_s`."""
        self._open().call(self._jar.warm(name, count, engine=engine))

    def close(self) -> None:
        """Ends everything this object started. Safe to call again."""
        portal, self._portal = self._portal, None
        if portal:
            portal.call(self._jar.close())
            portal.close()

    @property
    def asynchronous(self) -> core.Belljar | client.Belljar:
        """What this is the face of; to be used on the portal's thread only."""
        return self._jar

    def portal(self) -> Portal:
        """The way to that thread."""
        return self._open()

    def _open(self) -> Portal:
        if self._portal is None:
            raise Closed("this Belljar is closed", hint="make a new one")
        if self._owner != os.getpid():
            raise Closed(
                "this Belljar belongs to the process that this one was forked from",
                hint="make a new one here",
            )
        return self._portal


_lock = threading.Lock()
_shared: dict[tuple[str, str], tuple[int, Belljar]] = {}


def shared(url: str = "", key: str = "") -> Belljar:
    """The Belljar behind the module-level functions, one for each place; a forked process gets its
    own."""
    with _lock:
        owner, jar = _shared.get((url, key), (0, None))
        if jar is None or owner != os.getpid():
            jar = Belljar(url=url, key=key)
            _shared[url, key] = (os.getpid(), jar)
            atexit.register(_close, jar, os.getpid())
        return jar


def _close(jar: Belljar, owner: int) -> None:
    if os.getpid() == owner:
        jar.close()


def run(code: str, **options: Unpack[PlacedOptions]) -> Result:
    """Runs `code` in a fresh sandbox with pools shared by the whole process, or at a server."""
    here = shared(options.pop("url", ""), options.pop("key", ""))
    return here.run(code, **options)  # type: ignore[misc]


def fetch(address: str, /, **options: Any) -> Page:
    """One page as text, with the pools of `run`, or (`url`, `key`) at a server."""
    here = shared(options.pop("url", ""), options.pop("key", ""))
    return here.fetch(address, **options)
