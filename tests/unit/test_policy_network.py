"""N1, N2 before anything starts: what may be asked for of the network, and with which secrets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.engines.base import Capabilities
from belljar.engines.choice import Wanted, check, choose, lacks
from belljar.errors import InvalidRequest, InvalidVariable, NetworkRefused, Unsupported
from belljar.model import Request
from belljar.network import Allow, Secret, rules
from belljar.policy.decide import decide
from belljar.policy.network import allowed_hosts, check_inside, check_network
from belljar.runtimes import languages
from belljar.settings import Settings

SETTINGS = Settings(home=Path("unused"))
KEY = Secret("literally-a-secret", host="api.example.com")
API = Allow("api.example.com")


def judge(settings: Settings = SETTINGS, **fields: Any) -> Request:
    request = Request(code="print(1)", **fields)
    return decide(request, settings, languages=languages.get, engines=("auto", "jail")).request


def settings(**given: Any) -> Settings:
    return dataclasses.replace(SETTINGS, **given)


def test_n1_no_network_is_the_default_and_rules_come_out_in_one_form() -> None:
    assert judge().network == () and judge().secrets == {}
    for asked in ("API.example.com", API, [API], {"hosts": ["api.example.com"]}):
        assert judge(network=asked).network == (API,)
    assert judge(network=None).network == judge(network=False).network == ()


@pytest.mark.parametrize("asked", [True, 5, "127.0.0.1", "https://api.example.com/", "*", "*.com"])
def test_n1_what_is_no_rule_is_refused_with_an_example(asked: object) -> None:
    with pytest.raises(InvalidRequest, match="network: ") as refusal:
        judge(network=asked)
    assert refusal.value.hint


@pytest.mark.parametrize(
    ("allowed", "asked", "inside"),
    [
        (("api.example.com",), "api.example.com", True),
        (("api.example.com",), "api.example.com:443", True),
        (("api.example.com:443",), "api.example.com:443", True),
        (("api.example.com:443",), "api.example.com", False),
        (("api.example.com:443", "api.example.com:80"), "api.example.com", True),
        (("api.example.com",), "api.example.com:8443", False),
        (("api.example.com",), "*.api.example.com", False),
        (("*.example.com",), "api.example.com", True),
        (("*.example.com",), "a.b.example.com", True),
        (("*.example.com",), "*.example.com", True),
        (("*.example.com",), "*.b.example.com", True),
        (("*.example.com",), "example.com", False),
        (("*.example.com",), "badexample.com", False),
        (("*.b.example.com",), "*.example.com", False),
        (("*.example.com:443",), "*.example.com", False),
        ((), "api.example.com", False),
    ],
)
def test_n1_every_host_on_every_port_must_be_inside_the_operators_maximum(
    allowed: tuple[str, ...], asked: str, inside: bool
) -> None:
    limited = settings(network_allowed=allowed)
    if inside:
        assert judge(limited, network=asked).network
        return
    with pytest.raises(NetworkRefused, match="the operator does not allow") as refusal:
        judge(limited, network=asked)
    assert all(host in refusal.value.hint for host in allowed) and refusal.value.hint


NAMES = st.lists(st.sampled_from("abc"), min_size=2, max_size=4).map(".".join)
PATTERNS = st.builds(
    lambda star, name, port: f"{'*.' if star else ''}{name}{port}",
    st.booleans(),
    NAMES,
    st.sampled_from(["", ":80", ":443", ":99"]),
)


@given(st.lists(PATTERNS, min_size=1, max_size=4), PATTERNS, NAMES)
def test_n1_what_passes_allows_nothing_that_the_maximum_does_not(
    most: list[str], asked: str, name: str
) -> None:
    rule, maximum = Allow(asked), Allow(*most)
    try:
        check_inside((rule,), tuple(most), setting="network_allowed")
    except NetworkRefused:
        return
    for host in (name, f"x.{name}"):
        for port in (80, 443, 99):
            assert not rule.covers(host, port) or maximum.covers(host, port)


def test_n1_one_host_too_many_refuses_the_whole() -> None:
    limited = settings(network_allowed=("api.example.com",))
    with pytest.raises(NetworkRefused, match=r"evil\.example"):
        judge(limited, network=[API, Allow("api.example.com", "evil.example")])


def test_n1_denied_hosts_are_refused_whatever_is_allowed() -> None:
    limited = settings(network_denied=("*.internal.example", "bad.example"))
    for asked in ("a.internal.example", "*.internal.example", "bad.example:443"):
        with pytest.raises(NetworkRefused, match="denies"):
            judge(limited, network=asked)
    assert judge(limited, network="*.example.org").network
    # A wildcard around a denied name stays: the gateway refuses that one name.
    assert check_network("*.example.org", settings(network_denied=("bad.example.org",)))


def test_a_setting_that_is_no_list_of_hosts_is_told_by_its_name() -> None:
    with pytest.raises(InvalidRequest, match=r"settings\.network_allowed"):
        judge(settings(network_allowed=("10.0.0.1",)), network=API)
    with pytest.raises(InvalidRequest, match="must be a tuple of names"):
        settings(network_denied="bad.example")


# -- secrets ---------------------------------------------------------------------------------------


def test_n2_a_secret_needs_a_rule_for_its_host() -> None:
    assert judge(network=API, secrets={"KEY": KEY}).secrets == {"KEY": KEY}
    assert judge(network="*.example.com", secrets={"KEY": KEY}).secrets
    assert judge(network="api.example.com:8443", secrets={"KEY": KEY}).secrets
    for network in ((), "other.example", "api.example.com:80"):
        with pytest.raises(NetworkRefused, match="which no rule of network allows") as refusal:
            judge(network=network, secrets={"KEY": KEY})
        assert 'Allow("api.example.com:443")' in refusal.value.hint


def test_n2_nothing_that_is_not_looked_into_beside_a_secret() -> None:
    opaque = Allow("other.example", inspect=False)
    assert judge(network=opaque).network == (opaque,)
    with pytest.raises(NetworkRefused, match="inspect=False"):
        judge(network=[API, opaque], secrets={"KEY": KEY})


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "PYTHONPATH", "PATH", "HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE"]
)
def test_n2_a_secret_cannot_take_the_name_of_what_the_sandbox_needs(name: str) -> None:
    with pytest.raises(InvalidVariable):
        judge(network=API, secrets={name: KEY})


def test_n2_a_variable_is_given_once() -> None:
    with pytest.raises(InvalidVariable, match="in env, too"):
        judge(network=API, secrets={"KEY": KEY}, env={"KEY": "x"})


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "NO_PROXY", "CURL_CA_BUNDLE"])
def test_n1_with_a_network_the_way_to_the_gateway_is_not_the_callers(name: str) -> None:
    assert judge(env={name: "x"}).env == {name: "x"}
    with pytest.raises(InvalidVariable, match="with network"):
        judge(network=API, env={name: "x"})


@pytest.mark.parametrize(
    "wrong", [None, [KEY], {"KEY": "text-of-a-secret"}, {5: KEY}, {"a b": KEY}]
)
def test_n2_what_is_no_secret_is_refused_and_never_repeated(wrong: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        judge(network=API, secrets=wrong)
    assert "text-of-a-secret" not in str(refusal.value)
    assert "literally" not in str(refusal.value)
    assert "literally" not in repr(Request(code="", secrets={"KEY": KEY}))


# -- walls -----------------------------------------------------------------------------------------


def wanted(**given: Any) -> Wanted:
    return Wanted((), "python", "base", False, False, False, False, False)._replace(**given)


def test_i6_only_a_wall_with_a_way_to_the_gateway_gets_a_run_with_rules() -> None:
    able, unable = Capabilities(network=True), Capabilities()
    assert not lacks(able, wanted(network=True))
    assert "network" in lacks(unable, wanted(network=True))
    chosen = choose(
        wanted(network=True),
        capabilities=lambda name: able if name == "gvisor" else unable,
        why_not=lambda name: None,
    )
    assert chosen.engine == "gvisor"
    with pytest.raises(Unsupported, match="wasm cannot give a network") as refusal:
        check("wasm", unable, wanted(network=True), others=lambda: [("jail", able)])
    assert "jail" in refusal.value.hint


# -- packages --------------------------------------------------------------------------------------

INDEX = settings(
    package_index="https://index.example/simple/", package_hosts=("files.example:443",)
)


def test_n1_the_word_for_the_index_is_its_hosts_to_be_read() -> None:
    asked = judge(INDEX, network=[":packages:", "api.example.com"])
    index = Allow("index.example:443", "files.example:443", methods=("GET", "HEAD"))
    assert asked.network == (API, index)
    assert asked.env["PIP_INDEX_URL"] == asked.env["UV_INDEX_URL"] == INDEX.package_index
    assert judge(INDEX, network=Allow(":packages:", "api.example.com")).network == (API, index)
    assert judge(INDEX, network=API).env == {}
    given = {"PIP_INDEX_URL": "https://other.example/"}
    assert (
        judge(INDEX, network=":packages:", env=given).env["PIP_INDEX_URL"].startswith("https://o")
    )


def test_n1_the_word_is_granted_as_a_word_or_by_its_hosts() -> None:
    for allowed in ((":packages:",), ("index.example", "files.example:443"), "any"):
        limited = dataclasses.replace(INDEX, network_allowed=allowed)  # type: ignore[arg-type]
        assert judge(limited, network=":packages:").network
    assert allowed_hosts(
        dataclasses.replace(INDEX, network_allowed=(":packages:", "a.example"))
    ) == (
        *("a.example", "index.example:443"),
        "files.example:443",
    )
    for allowed in ((), ("index.example",), ("api.example.com",)):
        with pytest.raises(NetworkRefused):
            judge(dataclasses.replace(INDEX, network_allowed=allowed), network=":packages:")
    check_inside(rules(":packages:"), (":packages:",), setting="x")
    with pytest.raises(NetworkRefused):
        check_inside(rules([":packages:", "a.example"]), (":packages:",), setting="x")


@pytest.mark.parametrize(
    "index", ["", "http://a.example/", "https://me:pw@a.example/", "https://", "x"]
)
def test_n1_an_index_that_is_none_or_holds_a_password_is_told(index: str) -> None:
    with pytest.raises(InvalidRequest, match=r"package_index|none is set") as refusal:
        judge(settings(package_index=index), network=":packages:")
    assert "pw" not in str(refusal.value)


HOSTS = st.sampled_from(
    ("a.example", "b.a.example", "*.a.example", "*.b.a.example:80", "example.org:81", ":packages:")
)


@given(asked=HOSTS, most=st.lists(HOSTS, max_size=4))
def test_n1_inside_means_every_host_on_every_port(asked: str, most: list[str]) -> None:
    """Judged by another way: each name that the pattern may stand for, one by one."""

    def names(pattern: str, host: str, port: int) -> bool:
        return pattern != ":packages:" and bool(Allow(pattern).covers(host, port))

    candidates = [
        (host, port)
        for host in ("a.example", "b.a.example", "c.b.a.example", "x.a.example", "example.org")
        for port in (80, 81, 443)
    ]
    wanted = [place for place in candidates if names(asked, *place)]
    inside = all(any(names(one, *place) for one in most) for place in wanted)
    if asked == ":packages:":
        inside = asked in most
    try:
        check_inside((Allow(asked),), most, setting="network_allowed")
        found = True
    except NetworkRefused:
        found = False
    assert found == inside


def test_f2_many_ports_and_many_secrets_are_no_pairs() -> None:
    """As pairs they would be looked at for minutes, in a server's loop."""
    hosts = [f"h{n}.example:{n + 1000}" for n in range(1_999)]
    many = [Allow(*hosts[start : start + 250]) for start in range(0, len(hosts), 250)]
    keys = {f"K{n}": Secret("a-value-of-its-own", host="last.example") for n in range(32)}
    found = rules([*many, Allow("last.example:8443")])
    assert judge(network=found, secrets=keys).secrets == keys
    with pytest.raises(NetworkRefused, match="K0 is for last"):
        judge(network=rules([*many, Allow("last.example:80")]), secrets=keys)
    below = {"K": Secret("a-value-of-its-own", host="a.last.example")}
    assert judge(network=Allow("*.last.example:9000"), secrets=below).secrets == below
    allowed = tuple(f"h{n}.example:{n + 1000}" for n in range(1_999))
    assert judge(settings(network_allowed=allowed), network=many).network == tuple(many)
