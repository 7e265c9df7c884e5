"""N1, N2: rules and secrets as callers write them, and what the rules say."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import InvalidRequest
from belljar.network import Allow, Secret, check_variable, host_name, rules

# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("api.example.com", "api.example.com"),
        ("API.Example.COM", "api.example.com"),
        ("localhost", "localhost"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("a_b.example.com", "a_b.example.com"),
        ("3com.example.com", "3com.example.com"),
    ],
)
def test_n1_a_name_has_one_spelling(text: str, name: str) -> None:
    assert host_name(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0x7f.1",
        "[::1]",
        "::1",
        "::ffff:127.0.0.1",
        "example.com.",
        "example..com",
        "user@example.com",
        "example.com:80",
        "example.com/path",
        "example.com\x00.other.com",
        "example.com\r\nHost: other",
        "exa mple.com",
        "-example.com",
        "example-.com",
        "a" * 64 + ".com",
        "a." * 130 + "com",
        "127。0。0。1",
        "①②⑦.⓪.⓪.①",
        "%31%32%37.0.0.1",
        "fe80::1%eth0",
    ],
)
def test_n1_what_is_not_a_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        host_name(text)


@given(st.text(max_size=40))
def test_n1_no_text_becomes_an_address(text: str) -> None:
    try:
        name = host_name(text)
    except InvalidRequest:
        return
    assert host_name(name) == name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
    assert not name.rpartition(".")[2][0].isdigit()


# -- rules -----------------------------------------------------------------------------------------


def test_n1_rules_in_every_form() -> None:
    both = (Allow("a.example"), Allow("b.example:8443", methods=("GET",)))
    assert rules(None) == rules(()) == rules(False) == ()
    assert rules("a.example") == rules([Allow("a.example")]) == both[:1]
    assert rules([rule.to_dict() for rule in both]) == both


@pytest.mark.parametrize(
    "asked",
    [
        "*",
        "*.com",
        "*example.com",
        "a.*.com",
        "https://example.com",
        "example.com:0",
        "example.com:70000",
        "example.com:٤",
        "10.0.0.1",
        7,
        [7],
        True,
        {"hosts": "example.com"},
        {"hosts": ["example.com"], "more": 1},
        {"hosts": []},
        ["h.example"] * 101,
    ],
)
def test_n1_what_is_not_a_rule_is_refused(asked: object) -> None:
    with pytest.raises(InvalidRequest):
        rules(asked)


@pytest.mark.parametrize(
    "more",
    [
        {"methods": "GET"},
        {"methods": ("G T",)},
        {"paths": "/v1"},
        {"paths": ("v1",)},
        {"methods": ("GET",), "inspect": False},
    ],
)
def test_n1_bad_parts_of_a_rule_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Allow("example.com", **more)  # type: ignore[arg-type]


def test_n1_a_star_stands_for_names_below_only() -> None:
    rule = Allow("*.example.com")
    assert rule.covers("a.example.com", 443) and rule.covers("a.b.example.com", 80)
    assert not rule.covers("example.com", 443)
    assert not rule.covers("badexample.com", 443)
    assert not rule.covers("a.example.com.evil.org", 443)
    assert not rule.covers("a.example.com", 8080)


# -- secrets ---------------------------------------------------------------------------------------


def test_n2_a_secret_is_read_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("A_KEY", "value-of-the-variable")
    (tmp_path / "key").write_text("value-of-the-file\n")
    assert Secret("env:A_KEY", host="a.example").value() == "value-of-the-variable"
    assert Secret(f"file:{tmp_path}/key", host="a.example").value() == "value-of-the-file"
    assert Secret("the-value", host="a.example").value() == "the-value"


@pytest.mark.parametrize(
    "source", ["env:NOT_SET_AT_ALL", "file:/nonexistent", "short", "two\nlines"]
)
def test_n2_a_secret_that_cannot_be_used_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Secret(source, host="a.example").value()
    assert "two" not in str(refused.value) and "short" not in str(refused.value)


def test_n2_a_secret_does_not_show_itself() -> None:
    secret = Secret("the-value-itself", host="a.example")
    assert "the-value-itself" not in repr(secret) + str(secret)
    with pytest.raises(TypeError):
        pickle.dumps(secret)


@pytest.mark.parametrize(
    "header", ["Authorization", "A: b", "A: {} {}", "A b: {}", "A: {}\r\nB: c"]
)
def test_n2_a_header_has_one_place_for_the_secret(header: str) -> None:
    with pytest.raises(InvalidRequest):
        Secret("the-value", host="a.example", header=header)


def test_n2_names_of_variables() -> None:
    assert check_variable("A_KEY1") == "A_KEY1"
    for name in ("", "1A", "A-B", "A=B", None):
        with pytest.raises(InvalidRequest):
            check_variable(name)


@pytest.mark.parametrize("part", ["methods", "paths"])
def test_n1_a_rule_as_data_with_nothing_for_a_part_is_refused(part: str) -> None:
    with pytest.raises(InvalidRequest, match=part):
        rules({"hosts": ["a.example"], part: None})
