"""Every route against its own description: schemathesis, with a key and without (A3)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

from belljar.server.app import description
from belljar.testing.served import Served, served

EXAMPLES = hypothesis.settings(
    max_examples=4,
    deadline=None,
    derandomize=True,  # CI must not fail by chance; `--hypothesis-seed` looks further
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        keys=True,
        sandboxes={
            "pool_size": 2,
            "build_environments": False,
            "engines": ["jail"],
            "defaults": {"timeout_s": 2},
            "maxima": {"timeout_s": 2},
        },
    ) as server:
        yield server


DESCRIPTION = description()
schema = schemathesis.openapi.from_dict(DESCRIPTION)


def judge(case: Any, server: Served) -> None:
    """No 5xx, only documented statuses and contents, bad data refused, no way without a key.

    What a limit or a name may be is the operator's to say, so data that fits may be refused."""
    case.call_and_validate(
        base_url=server.url,
        headers={"Authorization": f"Bearer {server.key}"},
        timeout=30,
        excluded_checks=[positive_data_acceptance],
    )


@schema.parametrize()
@EXAMPLES
def test_a3_every_route_does_what_it_says(case: Any, server: Served) -> None:
    judge(case, server)


@pytest.mark.slow
@schema.parametrize()
@hypothesis.settings(EXAMPLES, max_examples=200)
def test_a3_every_route_does_what_it_says_at_length(case: Any, server: Served) -> None:
    judge(case, server)


def test_a3_without_a_key_nothing_but_401(server: Served) -> None:
    for path, operations in DESCRIPTION["paths"].items():
        for method in operations:
            place = re.sub(r"{.*?}", "0" * 32, path)
            opened = path in ("/health", "/ready")
            for key in (None, "nonsense"):
                answer = server.ask(method.upper(), place, key=key)
                assert answer.status == (200 if opened else 401), f"{method} {path}"


def test_the_description_is_whole(server: Served) -> None:
    assert server.ask("GET", "/openapi.json").json() == DESCRIPTION
    for path, operations in DESCRIPTION["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["summary"] and operation["operationId"], where
            assert "422" not in operation["responses"], where
            for status, response in operation["responses"].items():
                assert response["description"], f"{where} {status}"
                if int(status) >= 400:
                    shape = response["content"]["application/json"]["schema"]["$ref"]
                    assert shape.endswith("/ErrorAnswer"), f"{where} {status}"
    assert "HTTPValidationError" not in DESCRIPTION["components"]["schemas"]
