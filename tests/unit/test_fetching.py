"""N3: what is made of a page, and what a sandbox that lies about one can do."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import EngineError, InvalidRequest
from belljar.fetching import Page, fetch
from belljar.fetching.fetch import _own_rule
from belljar.fetching.reading import read
from belljar.model import Result
from belljar.network import Allow


def told(*printed: object, status: Any = "ok") -> Page:
    """A page from what two sandboxes print."""
    answers = [one if isinstance(one, str) else json.dumps(one) for one in printed]

    async def run(code: str, **options: Any) -> Result:
        compile(code, "script", "exec")
        assert ("network" in options) == (len(answers) == len(printed))  # only the first
        return Result(status=status, exit_code=0, stdout=answers.pop(0))

    return asyncio.run(fetch(run, "https://a.example/"))


GOT = {
    **{"url": "https://a.example/b", "status": 200, "content_type": "text/html", "charset": ""},
    **{"encoding": "", "redirects": [], "truncated": False},
    "body": base64.b64encode(b"<p>x").decode(),
}


def test_n3_the_host_of_the_address_is_all_that_may_be_reached() -> None:
    for address, hosts in (
        ("https://a.example/x?y", ("a.example",)),
        ("http://A.example", ("a.example",)),
        ("https://a.example:8443/", ("a.example:8443",)),
    ):
        assert _own_rule(address) == Allow(*hosts, methods=("GET", "HEAD"))
    for wrong in (
        *("", "a.example", "ftp://a.example/", "https://u:p@a.example/", "https://[::1]/"),
        *("https://10.0.0.1/", "https://a.example:x/", "http://a.example/\n", None, "x" * 5000),
    ):
        with pytest.raises(InvalidRequest):
            _own_rule(wrong)


def test_n3_a_page_is_what_the_second_sandbox_made_of_it() -> None:
    page = told(GOT, {"text": "x", "more": True, "title": "T", "links": ["https://a.example/c"]})
    assert (page.text, page.title, page.links) == ("x", "T", ("https://a.example/c",))
    assert page.success and page.truncated and page.url.endswith("/b") and page.size == 4
    assert json.loads(json.dumps(page.to_dict()))["success"] is True


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted({*GOT, "error", "text", "links", "more"})), ANY), ANY)
def test_n3_whatever_a_sandbox_says_is_a_page_or_an_error(first: dict[str, Any], then: Any) -> None:
    try:
        page = told({**GOT, **first}, then)
    except EngineError:
        return  # what it calls base64 is none
    assert isinstance(page.text, str) and isinstance(page.status, int)
    json.dumps(page.to_dict()).encode()


@pytest.mark.parametrize("printed", ["", "[]", "{", "[" * 100_000, '"x"'])
def test_n3_a_sandbox_that_tells_nothing(printed: str) -> None:
    assert told(printed).error == "it could not be read"
    assert told(printed, status="timeout").error == "it took too long"


def test_n3_what_is_no_text_is_not_read() -> None:
    """No second sandbox is made for it."""
    assert "not text" in told({**GOT, "content_type": "application/pdf"}).error
    assert "compressed" in told({**GOT, "encoding": "br"}).error


@given(
    st.binary(max_size=300), st.sampled_from(["", "utf-8", "latin-1", "no-such", "rot13", "hex"])
)
def test_n3_any_bytes_can_be_read(body: bytes, charset: str) -> None:
    for kind in ("text/html", "text/plain"):
        assert len(read(body, "https://a.example/", kind, charset, 50)["text"]) <= 50
