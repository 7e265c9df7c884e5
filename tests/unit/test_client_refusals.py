"""A server's errors become the exceptions that the same mistake raises here (R5)."""

from __future__ import annotations

import pytest

from belljar.client.connection import Connection
from belljar.client.refusals import refusal
from belljar.errors import CodeTooLarge, InvalidRequest, TrailError


@pytest.mark.parametrize(("retryable", "ran"), [(True, False), (False, True)])
def test_p2_whether_code_ran_is_told(retryable: bool, ran: bool) -> None:
    told = {"code": "trail_error", "message": "…", "hint": "", "retryable": retryable}
    error = refusal(503 if retryable else 500, {"error": told})
    assert isinstance(error, TrailError) and error.ran is ran


def test_r5_an_error_has_its_class() -> None:
    told = {"code": "code_too_large", "message": "too long", "hint": "shorten it"}
    error = refusal(400, {"error": told})
    assert isinstance(error, CodeTooLarge) and error.hint == "shorten it"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:PASSWORDX@127.0.0.1:1",
        "http://PASSWORDX@127.0.0.1:1/",
        "https://:PASSWORDX@example.com",
        "user:PASSWORDX@127.0.0.1",
        "ftp://user:PASSWORDX@127.0.0.1",
        "http://127.0.0.1:1/?token=PASSWORDX",
        "http://127.0.0.1:1/#PASSWORDX",
        "http://127.0.0.1:PASSWORDX/",
        "http://[::1/PASSWORDX",
    ],
)
def test_an_address_that_is_refused_is_not_quoted(url: str) -> None:
    """A password or the token of a link may be in it."""
    with pytest.raises(InvalidRequest) as refused:
        Connection(url, "")
    assert "PASSWORDX" not in str(refused.value) + refused.value.hint
