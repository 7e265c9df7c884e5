"""Every route against its own description: schemathesis, with a key and without (A3)."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from fastapi.routing import APIRoute
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from starlette.responses import Response
from starlette.routing import Route

from belljar.server import openapi, uploads
from belljar.server.app import ROUTERS, _with_routes, description
from belljar.server.errors import OF_BELLJAR, OF_HTTP
from belljar.server.gate import OPEN
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


def judge(case: Any, server: Served, *excluded: Any) -> None:
    """No 5xx, only documented statuses and contents, bad data refused, no way without a key.

    What a limit or a name may be is the operator's to say, so data that fits may be refused."""
    if any(value in ([], {}, None) for value in (case.query or {}).values()):
        excluded = (*excluded, negative_data_rejection)  # it is not sent at all
    case.call_and_validate(
        base_url=server.url,
        headers={"Authorization": f"Bearer {server.key}"},
        timeout=30,
        excluded_checks=[positive_data_acceptance, *excluded],
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


@pytest.fixture(scope="module")
def living(server: Served) -> dict[str, Any]:
    """Ids of things that there are: with any others every route would answer 404."""
    dataset = server.ask(
        "POST", "/v1/datasets?name=x", b"a\n1\n", headers={"Content-Type": uploads.BINARY}
    ).json()["id"]
    return {"dataset_id": dataset, "sandbox_id": "", "process_id": 0}


def revived(server: Served, living: dict[str, Any]) -> dict[str, Any]:
    """The sandbox may have been ended by the request before."""
    if server.ask("GET", f"/v1/sandboxes/{living['sandbox_id']}/files/stat?path=.").status != 200:
        for one in server.ask("GET", "/v1/sandboxes").json()["sandboxes"]:
            server.ask("DELETE", f"/v1/sandboxes/{one['id']}")  # others' tests, and branches
        box = server.ask("POST", "/v1/sandboxes", {"environment": "base", "max_runs": 10_000})
        living["sandbox_id"] = box.json()["id"]
        path = f"/v1/sandboxes/{living['sandbox_id']}/processes"
        living["process_id"] = server.ask("POST", path, {"program": ["cat"]}).json()["process_id"]
    return living


@pytest.mark.slow
@(
    schema.include(path_regex="/v1/(sandboxes|datasets)/.*")
    .exclude(
        path_regex="(changes|output)$",  # they end with the client
    )
    .parametrize()
)
@hypothesis.settings(EXAMPLES, max_examples=25)
def test_a3_routes_of_what_is_there(case: Any, server: Served, living: dict[str, Any]) -> None:
    known = revived(server, living)
    case.path_parameters = {name: known[name] for name in case.path_parameters}
    judge(case, server, negative_data_rejection)  # what was wrong may have been the id


def test_a3_without_a_key_nothing_but_401(server: Served) -> None:
    for path, operations in DESCRIPTION["paths"].items():
        for method in operations:
            place = re.sub(r"{.*?}", "0" * 32, path)
            opened = path in ("/health", "/ready")
            for key in (None, "nonsense"):
                answer = server.ask(method.upper(), place, key=key)
                assert answer.status == (200 if opened else 401), f"{method} {path}"


UNDESCRIBED = {405: "a method that is no route's", 431: "headers", 499: "nobody", 502: "no server"}
"""Statuses that belong to no route."""


def test_a3_every_route_lists_each_status_that_its_kind_can_give() -> None:
    """By what a route is, and not by what its description says; `check_answer` in tests/conftest.py
    looks at what is answered."""
    seen = {200}
    routes = [route for router in ROUTERS for route in router.routes]
    for route in routes:
        if not isinstance(route, APIRoute) or not route.include_in_schema:
            continue
        (method,) = route.methods
        said = set(map(int, DESCRIPTION["paths"][route.path][method.lower()]["responses"]))
        seen |= said
        wanted = {200, 400, 403, 429, 500, 503}
        if route.path not in OPEN:
            wanted.add(401)
        if route.param_convertors:
            wanted.add(404)
        if "sandbox_id" in route.param_convertors:
            wanted |= {409, 410}
        if route.body_field:
            wanted |= {408, 413, 415}
        source = inspect.getsource(route.endpoint)
        if "uploads." in source and method != "GET":
            wanted |= {408, 415}
        if re.search(r"\.place\(|book\.make|running\.run\(|describe\(", source):
            wanted.add(409)
        assert wanted <= said, f"{method} {route.path}: {wanted - said}"
    assert len(routes) > 45
    kinds = (*OF_HTTP.values(), *OF_BELLJAR.values())
    assert {kind.status for kind in kinds} - set(UNDESCRIBED) <= seen


def test_the_description_is_written_once() -> None:
    """Whoever asks for it again and again takes no time from others."""
    app = _with_routes()
    openapi.serve(app)
    (route,) = (one for one in app.routes if getattr(one, "path", "") == "/openapi.json")
    assert isinstance(route, Route)
    ask = route.endpoint

    async def play() -> list[Response]:
        return [*await asyncio.gather(ask(None), ask(None)), await ask(None)]

    first, second, third = asyncio.run(play())
    assert first.body is third.body
    assert first.body is second.body
    assert json.loads(first.body) == DESCRIPTION


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
