"""The way in. Nothing of a database is loaded before; what is not installed is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.errors import TrailError
from belljar.extras import install
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.trail.trail import Trail
    from belljar.trail.writer import Writer


def open_writer(settings: Settings) -> Writer:
    """Blocks: makes and migrates the tables if need be, and calls lost what dead processes left."""
    try:
        from belljar.trail import trail
    except ImportError as error:
        raise _missing(error) from None
    return trail.open_writer(settings)


def open_trail(url: str = "") -> Trail:
    """To read. Without a URL, that of this user: BELLJAR_TRAIL, or SQLite in the data directory."""
    try:
        from belljar.trail import trail
    except ImportError as error:
        raise _missing(error) from None
    settings = Settings()
    return trail.Trail(url or settings.trail or trail.default_url(settings.home))


def _missing(error: ImportError) -> TrailError:
    return TrailError(
        f"the trail needs {error.name or 'a library'}, which is not installed",
        hint=install("trail"),
    )
