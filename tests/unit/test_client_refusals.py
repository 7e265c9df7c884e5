"""A server's errors become the exceptions that the same mistake raises here (R5)."""

from __future__ import annotations

import pytest

from belljar.client.refusals import refusal
from belljar.errors import CodeTooLarge, TrailError


@pytest.mark.parametrize(("retryable", "ran"), [(True, False), (False, True)])
def test_p2_whether_code_ran_is_told(retryable: bool, ran: bool) -> None:
    told = {"code": "trail_error", "message": "…", "hint": "", "retryable": retryable}
    error = refusal(503 if retryable else 500, {"error": told})
    assert isinstance(error, TrailError) and error.ran is ran


def test_r5_an_error_has_its_class() -> None:
    told = {"code": "code_too_large", "message": "too long", "hint": "shorten it"}
    error = refusal(400, {"error": told})
    assert isinstance(error, CodeTooLarge) and error.hint == "shorten it"
