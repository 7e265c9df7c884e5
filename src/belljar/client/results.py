"""Data as a server sends it, and as it is sent to one."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any

from belljar.errors import InvalidRequest
from belljar.model import (
    Dropped,
    ErrorInfo,
    Finding,
    Output,
    OutputFile,
    Result,
    Usage,
)
from belljar.network import Egress

_PLAIN = [
    field.name
    for field in dataclasses.fields(Result)
    if field.name
    not in (
        "dropped",
        "error",
        "files",
        "usage",
        "isolation",
        "warnings",
        "findings",
        "egress",
        "outputs",
    )
]


def result(told: Mapping[str, Any]) -> Result:
    """The opposite of `Result.to_dict`."""
    error = told.get("error")
    return Result(
        **{name: told[name] for name in _PLAIN if name in told},
        dropped=Dropped(**told.get("dropped", {})),
        error=ErrorInfo(**error) if error else None,
        usage=usage(told.get("usage", {})),
        isolation=dict(told.get("isolation", {})),
        warnings=tuple(told.get("warnings", ())),
        findings=tuple(Finding(**found) for found in told.get("findings", ())),
        egress=tuple(Egress(**tried) for tried in told.get("egress", ())),
        outputs=tuple(output(shown) for shown in told.get("outputs", ())),
        files=tuple(_file(file) for file in told.get("files", ())),
    )


def usage(told: Mapping[str, Any]) -> Usage:
    return Usage(**told)


def output(told: Mapping[str, Any]) -> Output:
    data = {
        mime: base64.b64decode(content["base64"]) if isinstance(content, dict) else content
        for mime, content in told["data"].items()
    }
    return Output(kind=told["kind"], data=data, metadata=told.get("metadata", {}))


def printed(told: Mapping[str, Any]) -> bytes:
    if "base64" in told:
        return base64.b64decode(told["base64"])
    return str(told["text"]).encode()


def _file(told: Mapping[str, Any]) -> OutputFile:
    content = told["content_base64"]
    return OutputFile(
        path=told["path"],
        size=told["size"],
        content=None if content is None else base64.b64decode(content),
        skipped=told["skipped"],
    )


def content(field: str, value: object) -> Any:
    """Text as it is, bytes as base64."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"base64": base64.b64encode(value).decode()}
    raise InvalidRequest(f"{field}: must be text or bytes, not {type(value).__name__}")


def contents(field: str, values: object) -> Any:
    if not isinstance(values, Mapping):
        raise InvalidRequest(f"{field}: must be a mapping of names to contents")
    return {str(name): content(f"{field}[{name!r}]", value) for name, value in values.items()}
