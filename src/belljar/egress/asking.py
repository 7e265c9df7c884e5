"""What a connection asks for, as the rules are asked about it: again whenever they change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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

    def others(self) -> Iterator[tuple[str | None, str | None]]:
        """Further methods, with their paths, that some hosts would read out of it."""
        for method in http.other_methods(self._headers):
            yield method, self.path

    def check_paths(self) -> None:
        """Where rules are about paths; a refusal if it can be read in several ways."""
        if self.path is not None:
            targets.clear_path(self.path)
            http.check_one_path(self._headers)
