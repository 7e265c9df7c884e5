"""Which wall a run gets, and what is refused before one is built (I5, I6)."""

from __future__ import annotations

import pytest

from belljar.engines import choice, registry
from belljar.engines.base import Capabilities, Missing
from belljar.engines.choice import ORDERS, REQUIREMENTS, Choice, Wanted, check, choose, lacks
from belljar.errors import EngineUnavailable, Unsupported
from belljar.model import NEEDS

EVERYTHING = Capabilities(kept=True)
PLAIN = Wanted(
    needs=(),
    language="python",
    environment="base",
    fresh_exec=False,
    live_stdin=False,
    processes=False,
    files=False,
    disk_files=False,
)
WASM = Capabilities(
    languages=frozenset({"python", "javascript"}),
    environments=frozenset({"base"}),
    processes=False,
    fresh_exec=False,
    live_stdin=False,
    files=False,
    disk_files=False,
)


def _choose(
    *needs: str,
    missing: tuple[str, ...] = (),
    allowed: tuple[str, ...] = tuple(registry.BUILT_IN),
    docker_runtime: str = "",
    wanted: Wanted = PLAIN,
) -> Choice:
    return choose(
        wanted._replace(needs=needs),
        capabilities=lambda name: WASM if name == "wasm" else EVERYTHING,
        why_not=lambda name: Missing(why="gone", hint="get it") if name in missing else None,
        allowed=lambda name: name in allowed,
        docker_runtime=docker_runtime,
    )


@pytest.mark.parametrize(
    ("needs", "missing", "engine"),
    [
        ((), (), "jail"),
        ((), ("jail",), "gvisor"),
        ((), ("jail", "gvisor"), "docker"),
        (("fastest",), (), "jail"),
        (("strongest",), (), "microvm"),
        (("strongest",), ("microvm",), "gvisor"),
        (("strongest",), ("microvm", "gvisor"), "jail"),
        (("strongest",), ("microvm", "gvisor", "jail"), "docker"),
        (("no_io",), (), "wasm"),
        (("no_io",), ("wasm",), "jail"),
        (("files",), (), "jail"),
        (("any_language",), (), "jail"),
        (("any_language", "no_io"), (), "jail"),
        (("no_io", "strongest"), (), "microvm"),
        (("fastest", "strongest"), (), "microvm"),
    ],
)
def test_i6_the_table_decides(
    needs: tuple[str, ...], missing: tuple[str, ...], engine: str
) -> None:
    found = _choose(*needs, missing=missing)
    assert found.engine == engine
    assert found.reason


def test_i6_webassembly_only_for_callers_who_allow_it() -> None:
    for needs in ((), ("fastest",), ("strongest",), ("files",)):
        assert "wasm" not in {name for name, _ in ORDERS[needs[0] if needs[:1] in ORDERS else ""]}
        assert _choose(*needs).engine != "wasm"


@pytest.mark.parametrize(
    ("runtime", "missing", "engine"),
    [
        ("runsc", ("microvm", "gvisor"), "docker"),
        ("runsc-kvm", ("microvm", "gvisor"), "docker"),
        ("kata", ("microvm",), "docker"),
        ("runc", ("microvm", "gvisor"), "jail"),
    ],
)
def test_i6_a_container_is_as_strong_as_its_runtime(
    runtime: str, missing: tuple[str, ...], engine: str
) -> None:
    assert _choose("strongest", missing=missing, docker_runtime=runtime).engine == engine


@pytest.mark.parametrize(
    "uses",
    [
        {"language": "go"},
        {"environment": "data"},
        {"fresh_exec": True},
        {"live_stdin": True},
        {"processes": True},
        {"files": True},
        {"disk_files": True},
        {"kept": True},
    ],
)
def test_i6_what_a_wall_cannot_do_is_passed_over(uses: dict[str, object]) -> None:
    assert _choose("no_io", wanted=PLAIN._replace(**uses)).engine == "jail"  # type: ignore[arg-type]


def test_i6_no_wall_has_a_network_yet() -> None:
    with pytest.raises(Unsupported, match="need='network'") as refused:
        _choose("network")
    assert "belljar engines" in refused.value.hint


def test_i6_all_missing_says_why_and_what_to_do() -> None:
    with pytest.raises(EngineUnavailable, match=r"microvm: gone.*gvisor: gone.*jail: gone") as none:
        _choose("strongest", missing=tuple(registry.BUILT_IN))
    assert none.value.hint == "for microvm: get it"


def test_i6_only_what_the_operator_allows() -> None:
    assert _choose("strongest", allowed=("jail", "docker")).engine == "jail"
    with pytest.raises(Unsupported, match="allows none"):
        _choose("strongest", allowed=("wasm",))


@pytest.mark.parametrize(
    ("uses", "says"),
    [
        ({"language": "go"}, "cannot run go, only javascript, python"),
        ({"environment": "data"}, "cannot give the environment 'data', only base"),
        ({"fresh_exec": True}, "fresh_exec"),
        ({"kept": True}, "from run to run"),
        ({"live_stdin": True}, "stdin_descriptor"),
        ({"processes": True}, "processes"),
        ({"files": True}, "files, inputs"),
        ({"disk_files": True}, "disk_files"),
        ({"needs": ("any_language",)}, "every language"),
    ],
)
def test_i5_a_named_wall_refuses_and_names_those_that_can(
    uses: dict[str, object], says: str
) -> None:
    wanted = PLAIN._replace(**uses)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=says) as refused:
        check("wasm", WASM, wanted, others=lambda: [("wasm", WASM), ("jail", EVERYTHING)])
    assert refused.value.hint == "engines that can: jail"


def test_i5_what_a_wall_can_do_is_not_refused() -> None:
    assert lacks(WASM, PLAIN) == ""
    assert lacks(EVERYTHING, PLAIN._replace(language="go", fresh_exec=True, live_stdin=True)) == ""


def test_the_tables_are_about_what_exists() -> None:
    rows = [name.partition("+")[0] for order in ORDERS.values() for name, _ in order]
    assert set(rows) == set(choice.PURPOSES) == set(registry.BUILT_IN)
    assert {*ORDERS, *REQUIREMENTS} - {""} == set(NEEDS)
