"""The same attacks from inside a sandbox that is kept, where there is a next run to poison.

A probe that tells itself runs twice in one sandbox, and both verdicts count: whatever the first run
left behind must not have loosened anything for the second. One that asks whether something of a
sandbox reaches the next (`runs`) gets a new sandbox for each run, as ever.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from belljar.errors import SandboxFileError, SandboxLost
from belljar.jar import Belljar
from belljar.kept import events
from belljar.kept.files import MOST_DEPTH
from belljar.kept.sync import Sandbox
from belljar.model import OutputFile, Result
from belljar.probes.fixtures import Fixtures
from belljar.probes.probe import KEPT, Probe
from belljar.probes.prover import Prover

OF_A_RUN = ("on_output", "stdin", "timeout_s")
PLACES = ("/workspace", "/data/output")
MOST_AT_ONCE = 16
MOST_ENTRIES = 1000


class KeptProver(Prover):
    """Runs in kept sandboxes, each destroyed before its result is judged."""

    kept = True

    def __init__(self, jar: Belljar, fixtures: Fixtures, *, engine: str) -> None:
        super().__init__(jar, fixtures, engine=engine)
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="belljar-kept")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown(cancel_futures=True)
        super().__exit__(kind, error, trace)

    @property
    def walls(self) -> tuple[str, ...]:
        return (*super().walls, KEPT, f"{self.engine}+{KEPT}")

    def run_each(self, probe: Probe) -> list[Result]:
        if probe.runs > 1:
            return super().run_each(probe)
        code = self.code(probe)
        return self._in_one(probe, (code, code))

    def run_then(self, probe: Probe, code: str) -> tuple[Result, Result]:
        first, then = self._in_one(probe, (self.code(probe), code))
        return first, then

    def _in_one(self, probe: Probe, codes: Sequence[str]) -> list[Result]:
        options = {"engine": self.engine, "timeout_s": self.timeout_s(20)}
        return _run_in_one(self.jar, codes, {**options, **self._options(probe, {})})

    def _begin(self, jar: Belljar, code: str, options: Mapping[str, Any]) -> Future[Result]:
        return self._threads.submit(_run, jar, code, options)


def _run(jar: Belljar, code: str, options: Mapping[str, Any]) -> Result:
    return _run_in_one(jar, (code,), options)[0]


def _run_in_one(jar: Belljar, codes: Sequence[str], options: Mapping[str, Any]) -> list[Result]:
    """One run after the other, as long as there is a state to run in."""
    call = {name: options[name] for name in OF_A_RUN if name in options}
    see = call.pop("on_output", None)

    def on_event(event: events.Event) -> None:
        if see and isinstance(event, events.Printed):
            see(event.stream, event.data)

    results: list[Result] = []
    described = {name: value for name, value in options.items() if name not in OF_A_RUN}
    if "inputs" in described:  # a text would be a path of the host there
        described["inputs"] = {
            name: content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
            for name, content in described["inputs"].items()
        }
    with Sandbox(jar, timeout_s=call["timeout_s"], **described) as box:
        for code in codes:
            try:
                result = box.run(code, on_event=on_event, **call)
            except SandboxLost as lost:
                if results:
                    break
                result = _gone(str(lost))
            results.append(dataclasses.replace(result, files=_files(box, options)))
    return results


def _gone(why: str) -> Result:
    """The sandbox itself fell while the code ran."""
    status = "out_of_memory" if "memory" in why else "killed"
    return Result(status=status, exit_code=None, signal=9, warnings=(why,))  # type: ignore[arg-type]


def _files(box: Sandbox, options: Mapping[str, Any]) -> tuple[OutputFile, ...]:
    """What a caller would fetch who takes everything there is, within the limits of a result."""
    left, room = options.get("result_files", 100), 32 << 20
    found: list[OutputFile] = []
    try:
        for place in PLACES:
            for entry in box.files.entries(place, depth=MOST_DEPTH):
                if len(found) >= MOST_ENTRIES:
                    return tuple(found)
                if entry.is_folder:
                    continue
                content: bytes | None = None
                why: str = entry.kind
                if entry.is_file and left > 0:
                    content, why = _content(box, entry.path, room)
                    left, room = left - 1, room - len(content or b"")
                found.append(
                    OutputFile(path=entry.path, size=entry.size, content=content, skipped=why)
                )
    except (SandboxLost, SandboxFileError):
        pass  # gone, or too deep: what was found is what there is
    return tuple(found)


def _content(box: Sandbox, path: str, most_bytes: int) -> tuple[bytes | None, str]:
    try:
        return box.files.read(path, most_bytes=most_bytes), ""
    except SandboxFileError as refused:
        return None, str(refused)
