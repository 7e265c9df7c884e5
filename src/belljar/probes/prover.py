"""What judges work with: runs through the public API, watched from the host."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import Any, Self

from belljar.engines import registry
from belljar.environments import catalogue, folders
from belljar.jar import Belljar
from belljar.model import Result
from belljar.probes.fixtures import Fixtures
from belljar.probes.probe import Probe

TIMEOUT_S = 20.0
WORK = "x = 0\nfor n in range(300_000):\n    x += n * n % 7"
USUAL_S = 0.3
"""What that takes at most, with a sandbox around it, where nothing is emulated."""
MOST_PATIENCE = 10.0
RUNTIMES = ("runsc", "kata")
"""Of Docker, that make it another wall."""
GRACE_S = 20.0
"""How much later than the run's own time-out an answer may come before we call it a hang."""


class NoAnswer(Exception):
    """The library did not come back: itself a finding."""


class Live:
    """A run under way: what it has printed so far, and its result."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.deadline_s = TIMEOUT_S + GRACE_S
        self.future: Future[Result] | None = None
        self._printed = bytearray()
        self._news = threading.Condition()

    def saw(self, text: str) -> bool:
        """Waits until the run has printed `text`; not when it is over without having done so."""
        wanted = text.encode()
        with self._news:
            self._news.wait_for(
                lambda: wanted in self._printed or not self.running, self.deadline_s
            )
            return wanted in self._printed

    @property
    def running(self) -> bool:
        return self.future is not None and not self.future.done()

    def result(self) -> Result:
        assert self.future is not None
        try:
            return self.future.result(self.deadline_s)
        except FutureTimeout as error:
            raise NoAnswer(f"no result after {self.deadline_s:.0f} s") from error

    def over(self, _: object) -> None:
        with self._news:
            self._news.notify_all()

    def on_output(self, stream: str, data: bytes) -> None:
        with self._news:
            if len(self._printed) < 1 << 20:
                self._printed += data
            self._news.notify_all()


class Prover:
    """One engine of one Belljar, with the fixtures in place."""

    kept = False
    """Whether its sandboxes are kept ones (see `kept.KeptProver`)."""

    def __init__(self, jar: Belljar, fixtures: Fixtures, *, engine: str) -> None:
        self.jar = jar
        self.fixtures = fixtures
        self.engine = engine
        self.patience = 1.0
        self._later: Belljar | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.patience = self._measure()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._later:
            self._later.close()

    def run(self, probe: Probe, values: Mapping[str, str] | None = None, **options: Any) -> Result:
        """The probe's code in a fresh sandbox. `values` add to the fixtures."""
        return self.run_code(self.code(probe, values), **self._options(probe, options))

    def start(self, probe: Probe, values: Mapping[str, str] | None = None, **options: Any) -> Live:
        """The same, to be watched while it runs."""
        live = Live()
        chosen = self._options(probe, options)
        self._submit(
            live, self.jar, self.code(probe, values), chosen | {"on_output": live.on_output}
        )
        return live

    def run_code(self, code: str, *, jar: Belljar | None = None, **options: Any) -> Result:
        """Any code, in a fresh sandbox."""
        return self.start_code(code, jar=jar, **options).result()

    def start_code(self, code: str, *, jar: Belljar | None = None, **options: Any) -> Live:
        """The same, to be watched while it runs."""
        live = Live()
        self._submit(live, jar or self.jar, code, options)
        return live

    def run_each(self, probe: Probe) -> list[Result]:
        """Every run of a probe that tells itself; all verdicts on them count."""
        results = [self.run(probe) for _ in range(probe.runs)]
        return results[1:] or results

    def run_then(self, probe: Probe, code: str) -> tuple[Result, Result]:
        """The probe, and then other code among the files it left."""
        first = self.run(probe)
        left = {file.name: file.content for file in first.files if file.content is not None}
        return first, self.run_code(code, files=left)

    def code(self, probe: Probe, values: Mapping[str, str] | None = None) -> str:
        return probe.render({**self.fixtures.values, **(values or {})})

    @property
    def walls(self) -> tuple[str, ...]:
        """Whose exceptions count: behind Docker also those of the runtime it was given."""
        if self.engine != "docker":
            return (self.engine,)
        runtime = self.jar.settings.docker_runtime
        return (self.engine, *(f"docker+{name}" for name in RUNTIMES if runtime.startswith(name)))

    def seconds(self, native: float) -> float:
        """How long something may take behind this wall that takes so long on the bare machine."""
        return native * self.patience

    def timeout_s(self, native: float) -> float:
        """The same for a run's time-out, as far as the operator allows."""
        return min(self.seconds(native), self.jar.settings.maxima.timeout_s)

    def _measure(self) -> float:
        """An emulated machine must not be judged by the clock of a real one."""
        started = time.monotonic()
        for _ in range(2):  # the first also builds what later ones find
            started = time.monotonic()
            self.run_code(WORK, timeout_s=self.jar.settings.maxima.timeout_s)
        return min(MOST_PATIENCE, max(1.0, (time.monotonic() - started) / USUAL_S))

    def later_jar(self) -> Belljar:
        """A Belljar opened after the fixtures were planted: its zygotes start among them."""
        with self._lock:
            if self._later is None:
                self._later = Belljar(self.jar.settings)
            return self._later

    def is_built(self, environment: str) -> bool:
        """Proving builds no environment that only some probe could use as well."""
        can = registry.capabilities(self.engine)
        if can.environments is not None and environment not in can.environments:
            return False
        wanted = catalogue.get(environment)
        return can.own_environments or folders.locate(wanted, self.jar.settings) is not None

    def works(self, jar: Belljar | None = None) -> str:
        """Empty when the next ordinary run is as it should be, else what is wrong."""
        result = self.run_code("print(6 * 7)", jar=jar)
        if result.status == "ok" and result.stdout == "42\n":
            return ""
        return (
            f"the next run went wrong: {result.status}, {result.stdout!r}, {result.stderr[-200:]!r}"
        )

    def _options(self, probe: Probe, options: Mapping[str, Any]) -> dict[str, Any]:
        chosen = {"language": probe.language, **probe.options, **options}
        for name, maximum in vars(self.jar.settings.maxima).items():
            if name in chosen:  # an operator who allows less than a probe asks for
                chosen[name] = min(chosen[name], maximum)
        return chosen

    def _submit(self, live: Live, jar: Belljar, code: str, options: Mapping[str, Any]) -> None:
        usual_s = self.timeout_s(TIMEOUT_S)
        chosen = {"engine": self.engine, "timeout_s": usual_s, **options}
        live.deadline_s = _number(chosen["timeout_s"], usual_s) + self.seconds(GRACE_S)
        live.future = self._begin(jar, code, chosen)
        live.future.add_done_callback(live.over)

    def _begin(self, jar: Belljar, code: str, options: Mapping[str, Any]) -> Future[Result]:
        return jar.submit(code, **options)


def _number(value: object, otherwise: float) -> float:
    """Judges pass nonsense as a time-out on purpose."""
    sensible = isinstance(value, int | float) and 0 < value < 600
    return float(value) if sensible else otherwise  # type: ignore[arg-type]
