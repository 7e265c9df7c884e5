"""N1: what rules say to a request, whatever they are and whatever it asks for."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.egress.judging import LONGEST_PATH, Judge, matches
from belljar.errors import InvalidRequest
from belljar.network import (
    MOST_HOSTS,
    MOST_HOSTS_TOGETHER,
    MOST_METHODS,
    MOST_NOT_ASCII,
    MOST_PATH_CHARACTERS,
    MOST_PATHS,
    MOST_PATHS_TOGETHER,
    Allow,
    Secret,
    host_name,
    rules,
)


def test_n1_a_refusal_says_which_rule_is_missing() -> None:
    judge = Judge(
        rules([Allow("api.example", methods=("GET",), paths=("/v1/*",)), "b.example:8443"])
    )
    assert "'other.example'" in judge.permission("other.example", 443).why
    assert "8443" in judge.permission("b.example", 443).why
    post = judge.permission("api.example", 443, "POST", "/v1/x")
    assert not post.rule and "GET" in post.why and "/v1/*" in post.why
    assert judge.permission("api.example", 443, "GET", "/v1/x").rule == "api.example"
    assert not judge.permission("api.example", 443, "GET", "/v2/x").rule
    assert judge.permission("api.example", 443).rule, "method and path are not known yet"


def test_n1_a_path_pattern_has_no_other_magic() -> None:
    judge = Judge(rules(Allow("a.example", paths=("/x[ab]?*",))))
    assert judge.permission("a.example", 80, "GET", "/x[ab]?1").rule
    assert not judge.permission("a.example", 80, "GET", "/xa11").rule


def test_n1_a_path_that_is_too_long_is_refused_where_rules_are_about_paths() -> None:
    long = "/" + "a" * LONGEST_PATH
    judge = Judge(rules([Allow("a.example", paths=("/*",)), Allow("b.example")]))
    assert "characters" in judge.permission("a.example", 80, "GET", long).why
    assert judge.permission("b.example", 80, "GET", long).rule


@given(
    pattern=st.text("ab/*", max_size=8).map("/".__add__),
    path=st.text("ab/", max_size=10).map("/".__add__),
)
def test_n1_a_star_stands_for_anything(pattern: str, path: str) -> None:
    assert matches(path, pattern.split("*")) == fnmatch.fnmatchcase(path, pattern)


NAMES = st.sampled_from(
    ("a.example", "b.a.example", "*.a.example", "*.b.a.example", "*.b.a.example:80", "a.example:81")
)


@given(
    hosts=st.lists(st.lists(NAMES, min_size=1, max_size=3), max_size=4),
    host=st.sampled_from(("a.example", "b.a.example", "c.b.a.example", "example", "xa.example")),
    port=st.sampled_from((80, 81, 443)),
)
def test_n1_the_first_rule_that_names_a_host_is_found(
    hosts: list[list[str]], host: str, port: int
) -> None:
    found = rules([Allow(*one) for one in hosts])
    wanted = next((name for rule in found if (name := rule.covers(host, port))), "")
    assert Judge(found).permission(host, port).rule == wanted


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ([Allow(*(f"h{n}.example" for n in range(MOST_HOSTS)))] * 100, "hosts"),
        ([Allow("a.example", paths=("/*a",) * MOST_PATHS)] * 100, "paths"),
        ([Allow("a.example", paths=("/" + "*a" * 499,) * MOST_PATHS)] * 100, "paths|characters"),
        ([Allow("a.example", paths=("/" + "*a" * 499,) * 11)], "characters"),
    ],
)
def test_f2_rules_that_cost_too_much_are_not_accepted(asked: list[Allow], what: str) -> None:
    with pytest.raises(InvalidRequest, match=what) as caught:
        rules(asked)
    assert caught.value.hint


def test_f2_parts_of_a_rule_are_counted() -> None:
    for more in ({"methods": ("GET",) * (MOST_METHODS + 1)}, {"paths": ("/",) * (MOST_PATHS + 1)}):
        with pytest.raises(InvalidRequest, match="at most"):
            Allow("a.example", **more)
    with pytest.raises(InvalidRequest, match="is not the name"):
        host_name("ü" * 1_000_000)  # not encoded, which takes long
    assert MOST_PATHS_TOGETHER <= 1_000 and MOST_PATH_CHARACTERS <= 10_000
    assert MOST_HOSTS_TOGETHER <= 2_000


def test_f2_a_server_counts_before_it_looks() -> None:
    from belljar.server.schemas_network import Rule
    from belljar.server.schemas_network import rules as of_server

    many = [Rule(hosts=["not a name of any host"] * MOST_HOSTS)] * 100
    with pytest.raises(InvalidRequest, match="together"):
        of_server(many)


def test_f2_names_are_counted_before_they_are_encoded() -> None:
    """Encoding takes time by the character, and a server has one loop for all tenants."""
    from belljar.server.schemas_network import Rule
    from belljar.server.schemas_network import rules as of_server

    # None of these is a name: whoever encoded one first would say so.
    names = [f"ü{number} .example" for number in range(MOST_NOT_ASCII + 1)]
    asked: list[object] = [
        names,
        [{"hosts": [name]} for name in names],
        [{"hosts": names}],
        (name for name in names),
    ]
    for one in asked:
        with pytest.raises(InvalidRequest, match="not ASCII"):
            rules(one)
    with pytest.raises(InvalidRequest, match="not ASCII"):
        Allow(*names)
    for given_rules in (names, [Rule(hosts=[name]) for name in names], [Rule(hosts=names)]):
        with pytest.raises(InvalidRequest, match="not ASCII"):
            of_server(given_rules)
    assert MOST_NOT_ASCII <= 20
    few = rules([f"ü{number}.example" for number in range(MOST_NOT_ASCII)])
    assert few[1].hosts == ("xn--1-dha.example",)


def test_f2_secrets_are_bounded_together() -> None:
    from belljar.egress.secrets import MOST_TOGETHER, hold

    def given(count: int) -> dict[str, Secret]:
        return {f"K{n}": Secret("v" * 4096, host="a.example") for n in range(count)}

    held = hold(given(MOST_TOGETHER // 4096))
    assert len({one.placeholder for one in held}) == len(held)
    assert all(len(one.placeholder) == 4096 and one.placeholder.isalnum() for one in held)
    with pytest.raises(InvalidRequest, match="together"):
        hold(given(MOST_TOGETHER // 4096 + 1))


def test_f2_endless_rules_are_not_read_to_their_end() -> None:
    def endless() -> object:
        while True:
            yield "a.example"

    with pytest.raises(InvalidRequest, match="at most"):
        rules(endless())
