"""A body that is wrong in very many places is refused for the first of them: an error for each took
seconds, in which nobody else was served."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from belljar.errors import InvalidRequest
from belljar.mcp.arguments import RunCode
from belljar.server.errors import ApiError
from belljar.server.routes.fetch import FetchRequest
from belljar.server.routes.sockets import _MESSAGE
from belljar.server.schemas import ExecuteRequest, RunRequest
from belljar.server.schemas_kept import (
    DescriptionAnswer,
    ExecRequest,
    InstallRequest,
    SandboxRequest,
    StdinRequest,
)
from belljar.server.schemas_network import NetworkRequest, secrets
from belljar.server.strict import MOST_VARIABLES, Bytes, refusal

MANY = 40_000
WRONG = dict.fromkeys(map(str, range(MANY)), 5)
RULE = {"hosts": [5] * MANY, "methods": [5] * MANY, "paths": [5] * MANY, **WRONG}
SECRET = {"value": 5, "host": 5, **WRONG}
BODIES: list[tuple[Any, dict[str, Any]]] = [
    (ExecuteRequest, WRONG),
    (ExecuteRequest, {"code": "1", "env_vars": WRONG}),
    (ExecuteRequest, {"code": "1", "allowed_domains": [5] * MANY}),
    (RunRequest, {"code": "1", "files": WRONG}),
    (RunRequest, {"code": "1", "files": {str(n): {"base64": 5} for n in range(9000)}}),
    (RunRequest, {"code": "1", "inputs": WRONG}),
    (RunRequest, {"code": "1", "need": [5] * MANY}),
    (RunRequest, {"code": "1", "packages": [5] * MANY}),
    (RunRequest, {"code": "1", "stdin": WRONG}),
    (RunRequest, {"code": "1", "network": [5] * MANY}),
    (RunRequest, {"code": "1", "network": [RULE] * 100}),
    (RunRequest, {"code": "1", "secrets": dict.fromkeys(map(str, range(100)), SECRET)}),
    (SandboxRequest, {"inputs": {key: {"dataset": 5} for key in map(str, range(9000))}}),
    (SandboxRequest, {"inputs": {key: {"dataset": "x" * 99} for key in map(str, range(9000))}}),
    (SandboxRequest, {"env": WRONG, "files": WRONG, **WRONG}),
    (ExecRequest, {"program": [5] * MANY}),
    (ExecRequest, {"program": WRONG}),
    (InstallRequest, {"packages": [5] * MANY}),
    (StdinRequest, {"data": WRONG}),
    (NetworkRequest, {"network": [RULE] * MANY}),
    (FetchRequest, {"url": 5, "network": [RULE] * 100, **WRONG}),
    (DescriptionAnswer, {"format": "csv", "sample": [[5] * MANY], "columns": [WRONG] * 500}),
    (_MESSAGE, {"type": "run", "code": 5, **WRONG}),
    (_MESSAGE, {"type": "start", "program": [5] * MANY, "env": WRONG}),
    (RunCode, {"code": 5, **WRONG}),
    (RunCode, {"code": "1", "files": WRONG, "packages": [5] * MANY, "network": [5] * MANY}),
]


@pytest.mark.parametrize(("model", "body"), BODIES)
def test_f2_few_errors_are_written_for_many_wrong_values(model: Any, body: dict[str, Any]) -> None:
    adapter = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
    with pytest.raises(ValidationError) as wrong:
        adapter.validate_python(body)
    assert wrong.value.error_count() <= MOST_VARIABLES


def test_an_unknown_field_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(ValidationError) as wrong:
        RunRequest.model_validate({"code": "1", "timout_s": 3})
    told = refusal(wrong.value)
    assert (told.message, told.hint) == ("'timout_s' is no field", "did you mean timeout_s?")
    with pytest.raises(ValidationError) as wrong:
        RunRequest.model_validate({"code": "1", "network": [{"host": "x"}]})
    assert "did you mean hosts?" in str(refusal(wrong.value).hint)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 786_431, 786_432, 786_433, 3 << 20])
def test_r4_contents_of_any_length_are_decoded_whole(size: int) -> None:
    import base64

    content = (bytes(range(256)) * (size // 256 + 1))[:size]
    text = base64.b64encode(content).decode()
    assert Bytes.model_validate({"base64": text}).base64 == content


@pytest.mark.parametrize(
    "text",
    [
        "A",
        "AA",
        "AAA",
        "AA=A",
        "AAAA====",
        "AA==AAAA",
        "A" * ((1 << 20) - 2) + "==AAAA",
        "A A=",
        "é",
    ],
)
def test_r4_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="base64 cannot be read"):
        Bytes.model_validate({"base64": text})


VALUE = "SEKRET-7Qw2Zx9Lm4"
MISTAKEN: dict[str, Any] = {
    "for a name": {VALUE: {"value": VALUE, "host": "a.example"}},
    "for a name, and more is wrong": {VALUE: {"value": 5, "host": 5}},
    "for a name, flat": {VALUE: VALUE},
    "for a field": {"K": {"value": VALUE, "host": "a.example", VALUE: 1}},
    "for a header": {"K": {"value": VALUE, "host": "a.example", "header": f"X {VALUE}"}},
    "for a host": {"K": {"value": VALUE, "host": f"{VALUE}!"}},
    "flat": {"K": VALUE},
    "in a list": [VALUE],
    "elsewhere": {"K": {"value": f"env:{VALUE}", "host": "a.example"}},
}


@pytest.mark.parametrize("kind", MISTAKEN)
def test_n2_a_value_in_the_wrong_place_is_not_quoted(kind: str) -> None:
    """Not in the answer, and so not in the trail, which has it as well."""
    with pytest.raises((ValidationError, InvalidRequest)) as raised:
        secrets(RunRequest.model_validate({"code": "1", "secrets": MISTAKEN[kind]}).secrets)
    error = raised.value
    told = refusal(error) if isinstance(error, ValidationError) else error
    assert isinstance(told, (ApiError, InvalidRequest))
    assert "secrets" in told.message and VALUE not in f"{told.message} {told.hint}"
