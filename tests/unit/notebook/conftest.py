"""A notebook in a process of its own, as it is in a sandbox: it owns `__main__` and the standard
streams there."""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from belljar.environments import catalogue, folders
from belljar.runtimes import guest
from belljar.settings import Settings

DRIVER = Path(__file__).with_name("driver.py")
# Another Python that the guest must run on (3.9 and later) can be tried by naming it here.
PYTHON = os.environ.get("BELLJAR_TEST_GUEST_PYTHON", sys.executable)


@dataclass
class Ran:
    status: str
    exit_code: int
    error: dict[str, str] | None
    value: str | None
    dropped_outputs: int
    outputs: list[dict[str, Any]]
    stdout: str
    stderr: str

    def data(self, mime: str, index: int = -1) -> Any:
        """Of one output; bytes if it was base64."""
        content = self.outputs[index]["data"][mime]
        if isinstance(content, dict):
            (text,) = content.values()
            return base64.b64decode(text, validate=True)
        return content

    def json(self, mime: str = "application/json") -> Any:
        return json.loads(self.data(mime), parse_constant=lambda name: pytest.fail(name))


@dataclass
class Cells:
    process: subprocess.Popen[bytes]
    orders: int
    answers: int
    said: bytes = b""
    runs: int = 0
    streams: dict[int, bytearray] = field(default_factory=dict)

    def __call__(self, code: str, *, stdin: str | None = None, interrupt: str = "") -> Ran:
        """Runs a cell. `interrupt`: what it prints when it is to be interrupted."""
        self.runs += 1
        order = {"code": code, "name": f"<run {self.runs}>"}
        if stdin is not None:
            order["stdin"] = stdin
        os.write(self.orders, json.dumps(order).encode() + b"\n")
        if interrupt:
            self.until(interrupt)
            self.process.send_signal(signal.SIGINT)
        outputs = []
        while True:
            kind, content = self.answer()
            if kind == "end":
                break
            outputs.append(content)
        self.drain(0.0)
        stdout, stderr = (bytes(stream).decode() for stream in self.streams.values())
        for stream in self.streams.values():
            stream.clear()
        assert set(content) == {"status", "exit_code", "error", "value", "dropped_outputs"}
        return Ran(**content, outputs=outputs, stdout=stdout, stderr=stderr)

    def answer(self) -> tuple[str, Any]:
        """Reads its output meanwhile, so that it never waits for a full pipe."""
        while b"\n" not in self.said:
            self.drain(10.0, once=True)
        line, _, self.said = self.said.partition(b"\n")
        kind, content = json.loads(line)
        return kind, content

    def drain(self, timeout_s: float, *, once: bool = False) -> None:
        while ready := select.select([self.answers, *self.streams], [], [], timeout_s)[0]:
            for descriptor in ready:
                data = os.read(descriptor, 1 << 20)
                if descriptor == self.answers:
                    assert data, f"the notebook's process ended: {self.process.wait()}"
                    self.said += data
                else:
                    self.streams[descriptor] += data
            if once:
                return

    def until(self, text: str) -> None:
        stdout = self.process.stdout
        assert stdout
        while text.encode() not in self.streams[stdout.fileno()]:
            self.drain(0.01)


Start = Callable[..., Cells]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process with a notebook, in a folder of the test's own."""
    started: list[Cells] = []

    def begin(
        *, output_bytes: int = 1 << 22, outputs: int = 100, packages: tuple[Path, ...] = ()
    ) -> Cells:
        order_in, order_out = os.pipe()
        answer_in, answer_out = os.pipe()
        folder = Path(guest.__file__).parent
        process = subprocess.Popen(
            [
                *(PYTHON, "-s", str(DRIVER), str(folder), str(order_in), str(answer_out)),
                *(str(output_bytes), str(outputs), *map(str, packages)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "MPLBACKEND": "Agg"},
            pass_fds=(order_in, answer_out),
        )
        os.close(order_in)
        os.close(answer_out)
        assert process.stdout and process.stderr
        streams = {stream.fileno(): bytearray() for stream in (process.stdout, process.stderr)}
        cells = Cells(process, order_out, answer_in, streams=streams)
        started.append(cells)
        assert cells.answer()[0] == "ready"
        return cells

    yield begin
    for cells in started:
        os.close(cells.orders)
        cells.process.kill()
        cells.process.wait()
        os.close(cells.answers)
        for stream in (cells.process.stdout, cells.process.stderr):
            assert stream
            stream.close()


@pytest.fixture
def cell(start: Start) -> Cells:
    return start()


@pytest.fixture(scope="session")
def data_packages() -> Path:
    """The data environment's folder."""
    home = os.environ.get("BELLJAR_TEST_HOME")
    settings = Settings(home=Path(home)) if home else Settings()
    found = folders.locate(catalogue.get("data"), settings)
    if found is None:
        pytest.skip("the data environment is not built: belljar env build data")
    return found


@pytest.fixture
def data_cell(start: Start, data_packages: Path) -> Cells:
    return start(packages=(data_packages,))
