"""An engine of another package, exactly as docs/engines.md shows it, found by its entry point and
judged by the same suite (I5)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import belljar
from belljar.engines import registry
from belljar.errors import Unsupported
from belljar.testing import EngineConformance

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


def shown(start: str) -> str:
    """The block of the page that begins so."""
    blocks = re.findall(r"```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return next(block for block in blocks if block.startswith(start))


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What pip leaves of a package: its module and its metadata."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "borrowed.py").write_text(shown("# borrowed.py"))
    metadata = folder / "borrowed-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: borrowed\nVersion: 1.0\n")
    points = shown('[project.entry-points."belljar.engines"]').replace('"', "")
    (metadata / "entry_points.txt").write_text(points.replace("project.entry-points.", ""))
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("borrowed", None)


class TestBorrowed(EngineConformance):
    engine = "borrowed"

    def test_it_is_found_and_never_chosen(self) -> None:
        assert "borrowed" in registry.names()
        assert belljar.run("print(1)").engine == "jail"

    def test_the_refusal_names_those_that_can(self) -> None:
        with pytest.raises(Unsupported) as refused:
            belljar.run("echo 1", language="bash", engine="borrowed")
        assert refused.value.hint.startswith("engines that can: jail")


def test_the_suite_that_is_shown_is_one() -> None:
    namespace: dict[str, type] = {}
    exec(shown("# test_borrowed.py"), namespace)
    assert issubclass(namespace["TestBorrowed"], EngineConformance)


def test_a_required_engine_that_is_missing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it is skipped, with the reason."""
    import borrowed  # type: ignore[import-not-found]

    from belljar.engines.base import Missing

    missing = Missing(why="no moon", hint="wait")
    monkeypatch.setattr(borrowed.BorrowedEngine, "why_not", staticmethod(lambda s: missing))
    monkeypatch.delenv("BELLJAR_REQUIRE_ENGINES", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"no moon \(wait\)"):
        TestBorrowed.check_available()
    for names in ("all", "jail,borrowed"):
        monkeypatch.setenv("BELLJAR_REQUIRE_ENGINES", names)
        with pytest.raises(pytest.fail.Exception, match="no moon"):
            TestBorrowed.check_available()
