"""What a person sees of it. Whatever comes out of the sandbox or a model is made harmless first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.text import Text
from table import Table

from belljar.agents import Answer, Step
from belljar.cli.terminal import harmless
from belljar.kept import events

CODE_LINES = 12
MIB = 1 << 20


class Show:
    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._bar: Progress | None = None

    @contextmanager
    def bar(self, title: str) -> Iterator[Callable[[float], None]]:
        with self._progress() as progress:
            task = progress.add_task(title, total=1.0)
            yield lambda fraction: progress.update(task, completed=fraction)

    def build(self, text: str, fraction: float | None) -> None:
        self._move(f"building the environment: {text}", fraction or 0.0)

    def table(self, table: Table) -> None:
        size = table.path.stat().st_size / MIB
        self._console.print(
            f"[bold]{table.path}[/bold]: {size:,.0f} MiB, {table.rows:,} rows, into a sandbox with"
            " 4 GB, 2 cores, 120 s and at most 10 runs"
        )

    def task(self, task: str) -> None:
        self._console.rule(f"[bold]{task}", align="left")

    def event(self, event: events.Event) -> None:
        """While code runs, on the sandbox's thread."""
        if isinstance(event, events.Progress):
            self._move(harmless(event.message), event.fraction)

    def answer(self, answer: Answer, pictures: list[str]) -> None:
        self._stop()
        for step in answer.steps:
            self._step(step)
        text = Text(harmless(answer.text) or "(no answer)", style="bold green")
        self._console.print(text)
        for picture in pictures:
            self._console.print(f"[dim]picture: {picture}")

    def end(self, report: dict[str, Any], output: Path) -> None:
        peaks, forecast = report["peaks"], report["forecast"]
        counted, written = report["description"].get("rows"), report["rows_written"]
        mended = sum(question["mended"] for question in report["questions"].values())
        lines = [
            f"rows: {written:,} written, {counted:,} counted inside",
            f"mended by reading the error: {mended}",
            f"the better model: {forecast['best']}",
            f"peak memory: {peaks['host']} MiB here, {peaks['sandbox']} MiB in the sandbox"
            f" (counted by {peaks['sandbox_counted_by']})",
            f"{report['seconds']} s in all; results are in {output}",
        ]
        self._console.print(Panel("\n".join(lines), title="done", expand=False))

    def _step(self, step: Step) -> None:
        lines = step.code.strip().splitlines()
        left_out = len(lines) - CODE_LINES
        shown = "\n".join(lines[:CODE_LINES]) + (f"\n# … {left_out} more" if left_out > 0 else "")
        result = step.result
        said = result.stderr if result.error else result.stdout
        last = said.strip().splitlines()[-1 if result.error else -3 :]
        body = Group(
            Syntax(harmless(shown), "python", background_color="default"),
            Text(harmless("\n".join(last)), style="red" if result.error else "cyan"),
        )
        title = f"run {result.run_id}: {result.status}, {result.duration_ms / 1000:.1f} s"
        self._console.print(Panel(body, title=title, title_align="left", border_style="dim"))

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )

    def _move(self, text: str, fraction: float) -> None:
        if self._bar is None:
            self._bar = self._progress()
            self._bar.add_task(text, total=1.0)
            self._bar.start()
        task = self._bar.tasks[0]
        self._bar.update(task.id, description=text, completed=fraction)

    def _stop(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None
