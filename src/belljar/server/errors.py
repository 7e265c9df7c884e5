"""The one shape of an error, and the one table that says which status each has.

    {"error": {"code": "queue_full", "message": "…", "hint": "…", "retryable": true}}

`retryable`: the same request may succeed later without being changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response

from belljar import errors
from belljar.extras import for_others, without_paths

log = structlog.get_logger("belljar.server")


class Kind(NamedTuple):
    status: int
    retryable: bool = False


OF_BELLJAR: Mapping[type[errors.BelljarError], Kind] = {
    errors.InvalidRequest: Kind(400),
    # What this server lacks is no fault of the request, and asking again does not help.
    errors.Unavailable: Kind(409),
    errors.NetworkUnavailable: Kind(503, True),
    errors.EngineError: Kind(500, True),
    errors.ServerRefused: Kind(502, True),
    errors.ModuleStopped: Kind(400),
    errors.SandboxFileMissing: Kind(404),
    errors.SandboxFileExists: Kind(409),
    errors.SandboxFileError: Kind(400),
    errors.Busy: Kind(409, True),
    errors.TrailError: Kind(503, True),
    errors.SandboxEnded: Kind(410),
    errors.SandboxLost: Kind(410),
    errors.Closed: Kind(503, True),
}
"""A class that is not named here has its parent's."""

OF_HTTP: Mapping[str, Kind] = {
    "invalid_request": Kind(400),
    "unauthenticated": Kind(401),
    "forbidden": Kind(403),
    "host_refused": Kind(403),
    "origin_refused": Kind(403),
    "not_found": Kind(404),
    "method_not_allowed": Kind(405),
    "too_slow": Kind(408, True),
    "body_too_large": Kind(413),
    "unsupported_media_type": Kind(415),
    "queue_full": Kind(429, True),
    "queue_timeout": Kind(429, True),
    "quota_exceeded": Kind(429, True),
    "headers_too_large": Kind(431),
    "storage_full": Kind(507, True),
    "storage_unavailable": Kind(503, True),
    "trail_error": Kind(503, True),
    "client_gone": Kind(499),
    "internal": Kind(500, True),
    "overloaded": Kind(503, True),
    "shutting_down": Kind(503, True),
    "starting": Kind(503, True),
}
RETRY_AFTER_S: Mapping[int, int] = {503: 1, 507: 60}
"""When nothing better is known."""
_BY_STATUS = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed"}


class ApiError(HTTPException):
    """Refuses a request: `code` is a name from the table above."""

    def __init__(
        self, code: str, message: str, *, hint: str = "", retry_after_s: int | None = None
    ) -> None:
        kind = OF_HTTP[code]
        headers = {}
        if retry_after_s is None:
            retry_after_s = RETRY_AFTER_S.get(kind.status)
        if retry_after_s is not None:
            headers["Retry-After"] = str(retry_after_s)
        if kind.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(kind.status, message, headers or None)
        self.code, self.message, self.hint = code, message, hint
        self.retryable = kind.retryable


def kind_of(error: errors.BelljarError) -> Kind:
    return next(OF_BELLJAR[base] for base in type(error).__mro__ if base in OF_BELLJAR)


OF_THE_HOST = (errors.Unavailable, errors.SandboxLost, errors.PackageRefused)
"""Errors that speak of this machine; others speak of what was asked."""


def told_to_others(error: errors.BelljarError) -> tuple[str, str]:
    """Message and hint for a client, who has no business with the paths of this machine."""
    if isinstance(error, OF_THE_HOST):
        return without_paths(error.message), without_paths(error.hint)
    return error.message, for_others(error.hint)


def code_of(error: type[errors.BelljarError]) -> str:
    """CodeTooLarge → code_too_large."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__).lower()


def name_of(error: errors.BelljarError) -> str:
    """As `code_of`; an error about a file says what is wrong with it, too."""
    if isinstance(error, errors.SandboxFileError):
        return f"sandbox_file_{error.kind}"
    return code_of(type(error))


def body(code: str, message: str, hint: str = "", retryable: bool = False) -> bytes:
    """ASCII only: what is quoted from a request may not be valid Unicode."""
    shown: dict[str, Any] = {
        "code": code,
        "message": message,
        "hint": hint,
        "retryable": retryable,
    }
    return json.dumps({"error": shown}).encode()


class _Told(NamedTuple):
    status: int
    code: str
    message: str
    hint: str = ""
    retryable: bool = False
    headers: Mapping[str, str] | None = None


def answer(error: BaseException, *, ran: bool) -> Response:
    """Any exception as a response. What is not foreseen says nothing about itself. `ran`: the code
    did, at least in part, so nobody is told to try again: what it did outside it would do twice."""
    if isinstance(error, (errors.EngineError, errors.Unavailable)):
        log.error("failed on this machine", error=str(error))  # with paths, which no client gets
    told = _told(error)
    if ran and told.retryable:
        told = _Told(500, told.code, f"the code ran, but {told.message}", _RAN)
    content = body(told.code, told.message, told.hint, told.retryable)
    return Response(content, told.status, headers=told.headers, media_type="application/json")


_RAN = "send it again only if it is safe to run twice"


def _told(error: BaseException) -> _Told:
    if isinstance(error, ApiError):
        return _Told(
            *(error.status_code, error.code, error.message),
            *(error.hint, error.retryable, error.headers),
        )
    if isinstance(error, errors.TrailError):
        if error.ran:
            why = "its end could not be written to the trail: its result is withheld"
            return _Told(500, "trail_error", f"the code ran, but {why}", _RAN)
        why = "the trail cannot be written, so nothing runs"
        return _Told(503, "trail_error", why, "", True, {"Retry-After": "5"})
    if isinstance(error, errors.EngineError):
        # Its words describe the host; the operator reads them in the log.
        why = "the sandbox could not be made, or broke"
        return _Told(500, "engine_error", why, "try again", True)
    if isinstance(error, errors.BelljarError):
        kind = kind_of(error)
        headers = None
        if kind.retryable and kind.status in RETRY_AFTER_S:
            headers = {"Retry-After": str(RETRY_AFTER_S[kind.status])}
        message, hint = told_to_others(error)
        return _Told(kind.status, name_of(error), message, hint, kind.retryable, headers)
    if isinstance(error, HTTPException):
        status = error.status_code
        code, hint = _BY_STATUS.get(status, "invalid_request"), _HINTS.get(status, "")
        return _Told(status, code, str(error.detail), hint, False, error.headers)
    return _Told(500, "internal", "the server failed", "the server's log says more", True)


_HINTS = {404: "GET /openapi.json lists every route", 405: "see the Allow header"}
