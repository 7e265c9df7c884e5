"""N1: where a request goes can be read in one way only, or it goes nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.egress import targets
from belljar.egress.refusal import Refusal, phrase
from belljar.egress.targets import Target
from belljar.network import Allow

NOT_NAMES = """
127.0.0.1 127.1 2130706433 0x7f000001 0x7f.0.0.1 0177.0.0.1 017700000001 127.0.0.0x1 1.2.3.4.5
[::1] ::1 [::ffff:127.0.0.1] [fe80::1%25eth0] host. .host a..b user@host user:pw@host
host%00.com host%2ecom ho\x00st -host host- a_b.1 *.example.com * ⑫⑦.0.0.1 １２７.1
"""


@pytest.mark.parametrize(
    "name", [*NOT_NAMES.split(), "", " host", "host ", "a b", "a\r\nb", "a\tb"]
)
@pytest.mark.parametrize("port", ["", ":80"])
def test_not_a_name(name: str, port: str) -> None:
    with pytest.raises(Refusal) as refusal:
        targets.authority(name + port, 80)
    assert refusal.value.verdict == "blocked"


@pytest.mark.parametrize(
    "text", ["host:", "host:0", "host:65536", "host:080", "host:+80", "host:8 0", "host:٨٠", "host"]
)
def test_not_a_port(text: str) -> None:
    with pytest.raises(Refusal):
        targets.authority(text, None)


@pytest.mark.parametrize(
    "read",
    [
        lambda: targets.absolute("https://host.example/a?key=hidden"),
        lambda: targets.absolute("http://me:hidden@host.example/a?key=hidden"),
        lambda: targets.authority("me:hidden@host.example:443", None),
        lambda: targets.origin("a?key=hidden", "GET"),
        lambda: targets.origin("/a?key=1#hidden", "GET"),
    ],
)
def test_nothing_secret_of_an_address_is_told(read) -> None:
    with pytest.raises(Refusal) as refusal:
        read()
    assert "hidden" not in refusal.value.why


def test_f2_no_address_takes_the_square_of_its_length() -> None:
    """With as many characters as no head has: what takes the square of them does not end."""
    for text in ("a" * 2_000_000, "a@" * 1_000_000, "/" * 2_000_000, "@" * 2_000_000):
        with pytest.raises(Refusal):
            targets.authority(text, None)


def test_the_claimed_host_is_only_that() -> None:
    for text in ("http://me:hidden@h.example:1/x", "me:hidden@h.example:1", "ftp://h.example:1?a"):
        assert targets.claimed(text) == "h.example:1"


def test_one_spelling() -> None:
    assert targets.authority("API.Example.COM:8443", None) == Target("api.example.com", 8443)
    assert targets.absolute("HTTP://Host.example") == (Target("host.example", 80), "/")
    assert targets.absolute("http://host.example?a=b") == (Target("host.example", 80), "/?a=b")
    assert targets.absolute("http://h.example:81/a//b") == (Target("h.example", 81), "/a//b")


@pytest.mark.parametrize(
    "text",
    [
        "https://host.example/",
        "ftp://host.example/",
        "//host.example/",
        "host.example/",
        "http:/host.example/",
        "http:///host.example/",
        "http://host.example/#x",
        "http://host.example\\@other.example/",
        "http://a@host.example/",
        "http://host.example:/",
    ],
)
def test_not_an_address(text: str) -> None:
    with pytest.raises(Refusal):
        targets.absolute(text)


@given(st.text(max_size=60))
def test_whatever_is_read_is_one_name(text: str) -> None:
    try:
        target, path = targets.absolute(f"http://{text}")
    except Refusal:
        return
    assert targets.authority(f"{target.host}:{target.port}", None) == target
    assert path.startswith("/") and "#" not in path


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/..", "/v1/../x", "/./v1", "/v1/%2e%2e/x", "/v1/.%2E/x", "/v1/..;a/x", "/v1/.;/x"),
        *("/v1%2fx", "/v1%2Fx", "/v1\\x", "/v1%5cx", "/v1/%00", "/v1/%252e", "/v1/%252fx"),
        *("/v1/%c0%ae/x", "/v1/%ff", "/v1/%u002e", "/v1/100%", "/v1/%", "/v1/%25u002e", "/a%09b"),
        *("/v1/..%20/x", "/v1/.%20./x", "/v1/.. ./x", "/v1/%e2%80%a5/x", "/v1/a%ef%bc%8fb"),
    ],
)
def test_paths_with_two_readings(path: str) -> None:
    with pytest.raises(Refusal):
        targets.clear_path(path)


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/a.b", "/v1/...", "/v1/a%20b", "/v1/%C3%BC", "//x", "*", "/v1/100%25", "/a%20.b"],
)
def test_clear_paths(path: str) -> None:
    targets.clear_path(path)


def test_denied_is_every_port_and_what_the_pattern_says() -> None:
    patterns = ("bad.example", "*.worse.example", "port.example:22")
    for host, port in (("bad.example", 8443), ("a.worse.example", 1), ("port.example", 22)):
        assert targets.denied(patterns, Target(host, port))
    for host, port in (("a.bad.example", 80), ("worse.example", 80), ("port.example", 80)):
        assert not targets.denied(patterns, Target(host, port))


def test_names_for_etc_hosts() -> None:
    rules = (
        Allow("a.example", "*.b.example", "c.example:8080", "d.example:443"),
        Allow("a.example"),
    )
    assert targets.transparent(rules) == ["a.example", "d.example"]


def test_a_reason_is_one_line() -> None:
    assert phrase("a\r\nSet-Cookie: x ü") == b"a??Set-Cookie: x ?"
    assert len(phrase("x" * 10_000)) <= 300
