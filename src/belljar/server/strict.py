"""What every request's model has in common: nothing is converted, nothing is ignored, and the first
thing that is wrong is the only one that is told.

A body of half a megabyte can be wrong in a hundred thousand places, and an error for each of them
took seconds to write. So fields and lists are bounded, and what has many entries is looked at here,
up to the first that is wrong.
"""

from __future__ import annotations

import base64
import binascii
import difflib
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from belljar.server.errors import ApiError

_TELLING = ("unknown_field", "base64", "variable")
MOST_FILES = 10_000
MOST_VARIABLES = 1000
_SLICE = 1 << 20
"""Characters that are decoded at once: a thread that decodes more keeps all others waiting."""


class Strict(BaseModel):
    """ "5" is no number, `timout` no field."""

    model_config = ConfigDict(extra="forbid", strict=True)
    holds_secrets: ClassVar[bool] = False
    """Then not even a name is quoted that does not belong there."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        known = cls.__pydantic_fields__.keys()
        if isinstance(given, dict) and not given.keys() <= known:
            name = next(name for name in given if name not in known)[:64]
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"fields: {', '.join(known)}"
            raise PydanticCustomError(
                "unknown_field",
                "{shown} is no field",
                {"shown": "one of them" if cls.holds_secrets else repr(name), "hint": hint},
            )
        return given


def _decoded(given: Any) -> Any:
    """In slices: whatever else runs in this process goes on in between."""
    if not isinstance(given, str):
        return given
    try:
        padding = given.find("=")
        if 0 <= padding < len(given) - 2:
            raise ValueError
        return b"".join(
            base64.b64decode(given[start : start + _SLICE], validate=True)
            for start in range(0, len(given), _SLICE)
        )
    except (binascii.Error, ValueError):
        raise PydanticCustomError("base64", "base64 cannot be read") from None


class Bytes(Strict):
    """Contents that are not text."""

    base64: Annotated[
        bytes,
        BeforeValidator(_decoded),
        WithJsonSchema({"type": "string", "title": "Base64", "examples": ["AAEC"]}),
    ]


def content(value: str | Bytes) -> str | bytes:
    return value if isinstance(value, str) else value.base64


def _each(kinds: Callable[[Any], bool], what: str, most: int) -> BeforeValidator:
    """For a mapping: up to the first value that is none of `kinds`. Left to itself pydantic looks
    at all of them, and then at their number."""

    def check(given: Any) -> Any:
        if isinstance(given, dict):
            if len(given) > most:
                raise PydanticCustomError("too_many", "at most {most} entries", {"most": most})
            for name, value in given.items():
                if not kinds(value):
                    raise PydanticCustomError(
                        "wrong_value", "{name} must be {what}", {"name": name[:64], "what": what}
                    )
        return given

    return BeforeValidator(check)


def _is_content(value: Any) -> bool:
    if isinstance(value, dict):
        return value.keys() == {"base64"} and isinstance(value["base64"], str)
    return isinstance(value, str)


def _is_input(value: Any) -> bool:
    if isinstance(value, dict) and value.keys() == {"dataset"}:
        return isinstance(value["dataset"], str) and len(value["dataset"]) <= 64
    return _is_content(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


A_CONTENT = _each(_is_content, 'a text or {"base64": …}', MOST_FILES)
AN_INPUT = _each(_is_input, 'a text, {"base64": …} or {"dataset": …}', MOST_FILES)
A_TEXT = _each(_is_text, "a text", MOST_VARIABLES)

Contents = Annotated[dict[str, str | Bytes], Field(max_length=MOST_FILES), A_CONTENT]
Variables = Annotated[dict[str, str], Field(max_length=MOST_VARIABLES), A_TEXT]
Packages = Annotated[
    list[Annotated[str, Field(max_length=200)]], Field(max_length=100, fail_fast=True)
]


def refusal(error: ValidationError) -> ApiError:
    errors = error.errors(include_url=False, include_input=False)
    # Of what could have been one of several things, the one that says most.
    first = next((one for one in errors if one["type"] in _TELLING), errors[0])
    place = ".".join(str(part) for part in first["loc"])
    hint = first.get("ctx", {}).get("hint", "see GET /openapi.json")
    message = f"{place}: {first['msg']}" if place else str(first["msg"])
    return ApiError("invalid_request", message[:500], hint=hint)
