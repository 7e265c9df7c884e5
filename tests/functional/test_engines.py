"""Several walls behind one Belljar: named, chosen, refused (I5, I6)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from belljar import Belljar, EngineError, EngineUnavailable, InvalidRequest, Settings, Unsupported
from belljar.aio import Belljar as AsyncBelljar
from belljar.engines import registry
from belljar.engines.base import Capabilities, Missing
from belljar.engines.jail.engine import JailEngine
from belljar.errors import Closed, UnknownEngine


class Second(JailEngine):
    """The jail by another name, with less: a second wall wherever there is a first."""

    name = "second"
    capabilities = Capabilities(languages=frozenset({"python"}), fresh_exec=False)
    made: ClassVar[list[Second]] = []
    closed = False
    failing = False
    missing: ClassVar[Missing | None] = None

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.made.append(self)

    @staticmethod
    def why_not(settings: Settings) -> Missing | None:
        return Second.missing

    async def create(self, *args: Any, **options: Any) -> Any:
        if self.failing:
            raise EngineError("the wall fell")
        return await super().create(*args, **options)

    async def close(self) -> None:
        self.closed = True
        await super().close()


class _Point:
    name, value = "second", f"{__name__}:Second"

    def load(self) -> type[Second]:
        return Second


@pytest.fixture(autouse=True)
def second(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_plug_ins", lambda: {"second": _Point()})
    monkeypatch.setattr(Second, "made", [])
    yield
    assert all(engine.closed for engine in Second.made)


def test_i5_several_walls_in_one_belljar() -> None:
    with Belljar() as jar:
        ran = [jar.run("print(1)", engine=name) for name in ("jail", "second", "jail", "second")]
        assert [result.engine for result in ran] == ["jail", "second", "jail", "second"]
        assert [result.stdout for result in ran] == ["1\n"] * 4
        assert len(Second.made) == 1, "one engine, made once"


def test_i5_a_wall_is_made_only_when_it_is_needed() -> None:
    with Belljar() as jar:
        jar.run("print(1)")
        assert not Second.made
        jar.warm("base", 1, engine="second")
        assert len(Second.made) == 1


def test_i6_the_result_says_which_wall_and_why() -> None:
    with Belljar() as jar:
        assert jar.run("pass").engine_reason
        assert jar.run("pass", engine="jail").engine_reason == ""
        chosen = jar.run("pass", need=["fastest", "files"])
        assert chosen.engine == "jail" and "fastest" in chosen.engine_reason
        assert json.loads(chosen.to_json())["engine_reason"] == chosen.engine_reason


@pytest.mark.parametrize("need", ["quick", ["fastest", "x"], 3, {"fastest": 1, "y": 2}, None, [[]]])
def test_i6_unknown_needs_are_refused(need: Any) -> None:
    with Belljar() as jar, pytest.raises(InvalidRequest, match="need"):
        jar.run("pass", need=need)


def test_i6_a_network_is_refused_plainly() -> None:
    settings = Settings(engines=("wasm",))
    with Belljar(settings) as jar, pytest.raises(Unsupported, match="cannot give a network"):
        jar.run("pass", need=("no_io", "network"))


def test_i6_engine_and_need_contradict_each_other() -> None:
    with Belljar() as jar, pytest.raises(InvalidRequest, match="already named"):
        jar.run("pass", engine="jail", need="fastest")


def test_i5_what_a_wall_lacks_is_refused_before_it_is_made() -> None:
    with Belljar() as jar:
        for options in ({"language": "bash"}, {"fresh_exec": True}):
            with pytest.raises(Unsupported) as refused:
                jar.run("echo 1", engine="second", **options)  # type: ignore[arg-type]
            assert refused.value.hint.startswith("engines that can: jail")
        assert not Second.made


def test_i5_a_wall_that_is_not_there_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Second, "missing", Missing(why="no clay", hint="dig"))
    with Belljar() as jar:
        with pytest.raises(EngineUnavailable, match="no clay") as refused:
            jar.run("pass", engine="second")
        assert refused.value.hint == "dig"
        monkeypatch.setattr(Second, "missing", None)
        assert jar.run("print(1)", engine="second").stdout == "1\n", "it was asked again"


def test_the_operators_engine() -> None:
    with Belljar(Settings(engine="second")) as jar:
        result = jar.run("pass")
        assert (result.engine, result.engine_reason) == ("second", "the operator's setting")
        assert jar.run("pass", engine="jail").engine == "jail"
    with (
        Belljar(Settings(engine="cardboard")) as jar,
        pytest.raises(UnknownEngine, match="setting"),
    ):
        jar.run("pass")


def test_the_operator_can_bound_the_choice() -> None:
    with Belljar(Settings(engines=("second",), engine="second")) as jar:
        assert jar.run("pass").engine == "second"
        with pytest.raises(InvalidRequest, match="does not allow jail"):
            jar.run("pass", engine="jail")
        with pytest.raises(Unsupported, match="allows none"):
            jar.run("pass", need="fastest")
    with pytest.raises(InvalidRequest, match="tuple"):
        Settings(engines="jail")  # type: ignore[arg-type]


def test_a_wall_that_fails_is_looked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with Belljar(Settings(engine="second", pool_size=0)) as jar:
        jar.run("pass")
        monkeypatch.setattr(Second, "failing", True)
        with pytest.raises(EngineError, match="the wall fell"):
            jar.run("pass")
        monkeypatch.setattr(Second, "failing", False)
        assert jar.run("print(1)").stdout == "1\n"


def test_an_unknown_engine_cannot_be_warmed() -> None:
    with Belljar() as jar, pytest.raises(UnknownEngine, match="cardboard"):
        jar.warm("base", 1, engine="cardboard")


# -- runs belong to their caller's task -----------------------------------------------------


def test_closing_does_not_wait_for_what_the_caller_does_next() -> None:
    async def main() -> str:
        jar = AsyncBelljar()
        up = asyncio.Event()

        async def caller() -> str:
            try:
                await jar.run(
                    "import time; print(1, flush=True); time.sleep(60)",
                    on_output=lambda stream, data: up.set(),
                )
            except Closed:
                task = asyncio.current_task()
                assert task and task.cancelling() == 0, "the cancellation was ours, and is over"
                await asyncio.sleep(5)
                return "went on"
            return "ended"

        task = asyncio.create_task(caller())
        await up.wait()
        await asyncio.wait_for(jar.close(), 4)
        assert not task.done(), "it still sleeps"
        return await task

    assert asyncio.run(main()) == "went on"


def test_the_callers_own_time_out_is_no_closing() -> None:
    async def main() -> None:
        async with AsyncBelljar() as jar:
            await jar.run("pass")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await jar.run("import time; time.sleep(60)")
            assert (await jar.run("print(1)")).stdout == "1\n"

    asyncio.run(main())


def test_cancelled_by_both_sides_is_cancelled() -> None:
    """Whoever cancels a task expects it to end so, whatever else happens."""

    async def main() -> bool:
        jar = AsyncBelljar()
        up = asyncio.Event()
        task = asyncio.create_task(
            jar.run(
                "import time; print(1, flush=True); time.sleep(60)",
                on_output=lambda stream, data: up.set(),
            )
        )
        await up.wait()
        task.cancel()
        await jar.close()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(main())


# -- the command line ------------------------------------------------------------------------


def belljar(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "belljar.cli.main", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )


def test_i6_engines_are_shown() -> None:
    done = belljar("engines", "--no-measure", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert done.returncode == 0 and set(rows) >= set(registry.BUILT_IN)
    jail = rows["jail"]
    assert jail["available"] and jail["start_ms"] is None and jail["capabilities"]["processes"]
    for row in rows.values():
        assert row["purpose"] and (row["available"] or row["why_not"])
    table = belljar("engines", "--no-measure")
    assert table.returncode == 0
    for name in registry.BUILT_IN:
        assert name.encode() in table.stdout


def test_i6_the_need_is_met_and_told() -> None:
    done = belljar("run", "-c", "print(1)", "--need", "fastest,files", "--need", "any_language")
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert done.stderr.startswith(b"belljar: behind jail: ")
    as_json = json.loads(belljar("run", "-c", "1", "--need", "fastest", "--json").stdout)
    assert as_json["engine"] == "jail" and as_json["engine_reason"]
    refused = belljar("run", "-c", "1", "--engine", "wasm", "--allow-host", "a.example")
    assert refused.returncode == 125 and b"network" in refused.stderr


def test_i8_several_walls_are_proven_in_one_table() -> None:
    done = belljar("prove", "--engine", "jail,cardboard", "--only", "PV-01")
    assert done.returncode == 125 and b"cardboard" in done.stderr
    done = belljar("prove", "--engine", "jail,jail", "--only", "PV-01", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["ok"] and found["unavailable"] == {}
    assert found["reports"]["jail"]["held"] == 1
    table = belljar("prove", "--engine", "jail,jail", "--only", "PV-01")
    assert table.returncode == 0 and b"1/1" in table.stdout and b"privilege" in table.stdout


def test_doctor_knows_the_other_walls() -> None:
    findings = json.loads(belljar("doctor", "--json").stdout)
    rows = {row["name"]: row for row in findings["engines"]}
    assert findings["engine"] == "jail" and set(rows) >= set(registry.BUILT_IN)
    assert all(row["available"] or row["why_not"] for row in rows.values())
    assert belljar("doctor", "--engine", "cardboard").returncode == 125
