"""From a server's error to the exception that the same mistake raises here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from belljar import errors
from belljar.errors import (
    BelljarError,
    SandboxFileError,
    SandboxFileExists,
    SandboxFileMissing,
    ServerRefused,
    TrailError,
)

_FILE = "sandbox_file_"
_FILES = {"missing": SandboxFileMissing, "exists": SandboxFileExists}


def _classes() -> Mapping[str, type[BelljarError]]:
    """CodeTooLarge is told as code_too_large."""
    return {
        re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): value
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, BelljarError)
        and not issubclass(value, SandboxFileError)
    }


_CLASSES = _classes()


def refusal(status: int, told: Any, *, retry_after: str = "") -> BelljarError:
    """`told`: {"error": {code, message, hint, retryable}}, or what somebody in between said."""
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict):
        return ServerRefused(
            f"the server answered with status {status}", hint="is it a belljar server?"
        )
    code, message, hint = (str(error.get(name, "")) for name in ("code", "message", "hint"))
    if code.startswith(_FILE):
        kind = code.removeprefix(_FILE)
        return _FILES.get(kind, SandboxFileError)(message, hint=hint, kind=kind)
    if code == "trail_error":
        # What may be asked again has not run.
        return TrailError(message, hint=hint, ran=error.get("retryable") is not True)
    if code in _CLASSES:
        return _CLASSES[code](message, hint=hint)
    return ServerRefused(
        message,
        hint=hint,
        code=code,
        retryable=error.get("retryable") is True,
        retry_after_s=float(retry_after) if retry_after.isdigit() else None,
    )
