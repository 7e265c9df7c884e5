"""The Python that sandboxes run."""

from __future__ import annotations

import os
import sys


def base_interpreter() -> str:
    """The interpreter itself, not the virtual environment's link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def base_prefix() -> str:
    """Where its standard library is, without links: it is started by its real path, and looks for
    the library from there."""
    return os.path.realpath(sys.base_prefix)
