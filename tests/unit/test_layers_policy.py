"""Which packages may be asked for, and how a text that asks is read (S5)."""

from __future__ import annotations

import re
import sys
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from belljar.environments import catalogue, layers
from belljar.errors import InvalidRequest, PackageRefused
from belljar.policy import packages
from belljar.policy.known_packages import COMMON, DISTRIBUTIONS, INSTEAD
from belljar.policy.packages import check_packages, hint_for, parse
from belljar.settings import Settings

COMMONS = Settings()
ANY = Settings(packages_allowed="any")
NONE = Settings(packages_allowed=())


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("humanize", "humanize"),
        ("humanize==4.*", "humanize==4.*"),
        (" Humanize >= 4 , < 5 ", "humanize<5,>=4"),
        ("Ruamel.YAML", "ruamel-yaml"),
        ("zope__interface~=5.0", "zope-interface~=5.0"),
        ("pandas[Excel, plot]>=2", "pandas[excel,plot]>=2"),
        ("pandas[plot,plot]", "pandas[plot]"),
        ("x!=1!2.0rc1.post3.dev4+local.1", "x!=1!2.0rc1.post3.dev4+local.1"),
        ("x==1.0-1", "x==1.0-1"),
        ("x==2.0RC1", "x==2.0rc1"),
        ("x<2,<2", "x<2"),
    ],
)
def test_S5_a_name_with_versions_is_taken_in_one_spelling(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert str(parse(canonical)) == canonical


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("humanize @ https://example.org/x.whl", "address"),
        ("humanize@file:///etc/passwd", "address"),
        ("https://example.org/x.whl", "address"),
        ("git+ssh://example.org/x", "address"),
        ("./humanize", "path"),
        ("../x", "path"),
        ("/etc/passwd", "path"),
        ("~/x", "path"),
        ("a\\b", "path"),
        ("humanize-4.0-py3-none-any.whl", "path"),
        ("requirements.txt", "path"),
        ("x.tar.gz", "path"),
        ("-r requirements.txt", "option"),
        ("--index-url=x", "option"),
        ("-e .", "option"),
        ("humanize --hash=sha256:00", "not a name with versions"),
        ("humanize; python_version > '3'", "marker"),
        ("humanize\n--pre", "character"),
        ("humanize\r", "character"),
        ("humanize\0", "character"),
        ("humanize\x1b[31m", "character"),
        ("ｈumanize", "character"),
        ("\u212aivy", "character"),
        ("humanize\u2028", "character"),
        ("humanize===4", "as text"),
        ("humanize=4", "not a name with versions"),
        ("humanize 4", "not a name with versions"),
        ("humanize>4.*", "not a name with versions"),
        ("humanize==4.*.*", "not a name with versions"),
        ("humanize==", "not a name with versions"),
        ("humanize,rich", "not a name with versions"),
        ("humanize rich", "not a name with versions"),
        ("humanize (>=4)", "not a name with versions"),
        ("humanize[", "not a name with versions"),
        ("humanize[]", "not a name with versions"),
        ("$(id)", "not a name with versions"),
        ("_x", "not a name with versions"),
        ("x-", "not a name with versions"),
        ("", "empty"),
        ("  ", "empty"),
        ("a" * 201, "longer"),
        ("a" * 101, "not a name with versions"),
        (4, "not text"),
        (None, "not text"),
        (b"humanize", "not text"),
    ],
)
def test_S5_everything_else_is_refused_with_what_is_wrong(text: object, told: str) -> None:
    with pytest.raises(PackageRefused) as caught:
        check_packages([text], ANY)
    assert told in caught.value.message
    assert caught.value.hint
    assert isinstance(caught.value, InvalidRequest)
    assert not re.search(r"[\x00-\x1f]", caught.value.message)


@given(st.text(max_size=220))
@example("a[a]==1,")
@example("a" + "!=1" * 60)
@example("a==1" + ",==1" * 40 + "@")
def test_what_passes_is_harmless_to_whatever_reads_it_next(text: str) -> None:
    started = time.perf_counter()
    try:
        (canonical,) = check_packages([text], ANY)
    except PackageRefused:
        pass
    else:
        assert re.fullmatch(r"[a-z0-9][a-z0-9\[\],.*+!_<>=~-]*", canonical)
        assert check_packages([canonical], ANY) == (canonical,)
        layers.check([canonical], catalogue.BASE)
    assert time.perf_counter() - started < 1


_NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True)
_CLAUSES = st.from_regex(r"(==|!=|~=|<=|>=|<|>) ?[0-9]{1,3}(\.[0-9]{1,3}){0,3}", fullmatch=True)


@given(_NAMES, st.lists(_NAMES, max_size=3), st.lists(_CLAUSES, max_size=4))
def test_what_is_well_formed_passes_both_gates(
    name: str, extras: list[str], clauses: list[str]
) -> None:
    text = name + (f"[{','.join(extras)}]" if extras else "") + ", ".join(clauses)
    if len(text) > packages.CHARACTERS or packages._looks_like_a_file(text):
        return
    layers.check(check_packages([text], ANY), catalogue.BASE)


@pytest.mark.parametrize("text", ["-r x", "a @ b", "A", "a ; b", "a\nb", "", "a==", "a<1," * 9])
def test_the_builder_takes_nothing_that_policy_did_not_write(text: str) -> None:
    with pytest.raises(ValueError, match="policy"):
        layers.check([text], catalogue.BASE)


def test_equal_sets_are_equal() -> None:
    one = check_packages(["rich>=13, <15", "Humanize", "humanize"], COMMONS)
    other = check_packages({"humanize", "rich<15,>=13"}, COMMONS)
    assert one == other == ("humanize", "rich<15,>=13")


def test_no_packages_are_no_packages() -> None:
    assert check_packages([], NONE) == ()


@pytest.mark.parametrize("given", ["humanize", b"humanize", None, 7, {"humanize": 1}])
def test_what_is_no_list_is_refused(given: object) -> None:
    with pytest.raises(PackageRefused, match="must be a list"):
        check_packages(given, ANY)


def test_more_than_fifty_are_refused() -> None:
    assert len(check_packages([f"p{n}" for n in range(50)], ANY)) == 50
    with pytest.raises(PackageRefused, match="51 are more than 50"):
        check_packages([f"p{n}" for n in range(51)], ANY)


# --- the operator's list


@pytest.mark.parametrize(
    ("entries", "name", "may"),
    [
        (("humanize",), "humanize", True),
        (("Humanize",), "humanize", True),
        (("ruamel.yaml",), "ruamel_yaml", True),
        (("humanize",), "humanize2", False),
        (("types-*",), "types-requests", True),
        (("types-*",), "types", False),
        (("*-stubs",), "pandas-stubs", True),
        (("*",), "anything", True),
        ((":common:",), "humanize", True),
        ((":common:",), "common", False),
        ((":common:", "torch"), "torch", True),
        ((), "humanize", False),
    ],
)
def test_S5_names_and_patterns(entries: tuple[str, ...], name: str, may: bool) -> None:
    settings = Settings(packages_allowed=entries)
    if may:
        assert check_packages([name], settings)
    else:
        with pytest.raises(PackageRefused, match="not allowed here"):
            check_packages([name], settings)


@pytest.mark.parametrize("entry", ["humanize>=4", "", "a b", "[a-z]", "?", "-x", 5])
def test_a_list_that_is_none_allows_nothing(entry: str) -> None:
    with pytest.raises(PackageRefused, match="packages_allowed"):
        check_packages(["humanize"], Settings(packages_allowed=(entry,)))


def test_a_list_that_is_one_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="packages_allowed"):
        Settings(packages_allowed="humanize")  # type: ignore[arg-type]


def test_what_the_environment_has_may_always_be_named() -> None:
    assert check_packages(["NumPy"], NONE, provided=["numpy"]) == ("numpy",)
    with pytest.raises(PackageRefused):
        check_packages(["numpy"], NONE)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("humanise", "did you mean humanize?"),
        ("pands", "did you mean pandas"),
        ("sklearn", "ask for scikit-learn"),
        ("opencv-python", "ask for opencv-python-headless"),
        ("json", "standard library"),
        ("sqlite3", "standard library"),
        ("no-such-thing-at-all", "allowed are altair, arrow"),
    ],
)
def test_S5_a_refusal_says_what_would_be_allowed(name: str, hint: str) -> None:
    with pytest.raises(PackageRefused) as caught:
        check_packages([name], COMMONS)
    assert hint in caught.value.hint
    assert len(caught.value.hint) < 300


def test_an_operator_who_allows_nothing_is_named() -> None:
    with pytest.raises(PackageRefused) as caught:
        check_packages(["humanize"], NONE)
    assert "packages_allowed" in caught.value.hint


# --- hints for a failed import


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("humanize", "humanize"),
        ("humanize.time", "humanize"),
        ("cv2", "opencv-python-headless"),
        ("PIL.Image", "pillow"),
        ("yaml", "pyyaml"),
        ("dateutil", "python-dateutil"),
        ("bs4", "beautifulsoup4"),
        ("more_itertools", "more-itertools"),
    ],
)
@pytest.mark.parametrize("settings", [COMMONS, ANY], ids=["common", "any"])
def test_S5_a_failed_import_hints_at_the_package(
    module: str, package: str, settings: Settings
) -> None:
    hint = hint_for(module, settings)
    assert hint is not None and f"packages=['{package}']" in hint


@pytest.mark.parametrize(
    "module", ["reqeusts", "nonsense", "json", "os", "", ".", "a b", "x'\n", "é", "a" * 10_000]
)
@pytest.mark.parametrize("settings", [COMMONS, ANY, NONE], ids=["common", "any", "none"])
def test_a_package_that_nobody_listed_is_not_suggested(module: str, settings: Settings) -> None:
    assert hint_for(module, settings) is None


def test_what_is_not_allowed_is_not_suggested() -> None:
    assert hint_for("humanize", NONE) is None
    assert hint_for("torch", COMMONS) is None
    assert "torch" in (hint_for("torch", Settings(packages_allowed=("torch",))) or "")


# --- the tables


def test_the_tables_are_in_normal_form() -> None:
    for name in [*COMMON, *DISTRIBUTIONS.values(), *INSTEAD, *INSTEAD.values()]:
        assert packages.normal(name) == name
    assert all(name.isidentifier() for name in DISTRIBUTIONS)
    assert set(DISTRIBUTIONS.values()) <= COMMON
    assert not COMMON & sys.stdlib_module_names
    assert not COMMON & set(INSTEAD)


def test_what_the_data_environment_has_is_common() -> None:
    for text in catalogue.DATA.packages:
        assert parse(text).name in COMMON
