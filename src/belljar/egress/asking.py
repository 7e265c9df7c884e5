"""What a connection asks for, as the rules are asked about it: again whenever they change."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from . import http, targets
from .targets import Target


class Wanted:
    """`method` and `path` are None as long as they are not known."""

    def __init__(
        self,
        target: Target,
        method: str | None = None,
        path: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.target = target
        self.method = method
        self.path = path
        self._headers = headers
        self.judged_at = -1
        """The generation of the rules that last allowed it."""

    def others(self, *, has_paths: bool) -> Iterable[tuple[str | None, str | None]]:
        """Further methods and paths that some hosts would read out of it. A refusal if rules are
        about paths, and these can be read in several ways."""
        others = http.other_methods(self._headers)
        if not (others or has_paths):
            return ()
        methods = [self.method, *others]
        paths = [self.path]
        if has_paths and self.path is not None:
            http.check_one_path(self._headers)
            named = http.destinations(self._headers)
            paths += [targets.own_path(one, self.target) for one in named]
            for path in paths:
                targets.clear_path(path or "")
        return itertools.product(methods, paths)
