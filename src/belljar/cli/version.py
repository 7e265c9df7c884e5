"""`belljar version`."""

from __future__ import annotations

import belljar


def version() -> int:
    """Print the version of Belljar."""
    print(f"belljar {belljar.__version__}")
    return 0
