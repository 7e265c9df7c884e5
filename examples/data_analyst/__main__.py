"""A data analyst in a sandbox: `make demo`, or `python examples/data_analyst --megabytes 100`.

One gigabyte of sales goes in, is described, three questions are answered with pictures, and two
branches of the same sandbox try a model each. The table is never read by this process: it belongs
to code that nobody vouches for, and so does everything that comes back.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import script
import table
from peaks import Peaks
from show import Show

import belljar
from belljar.agents import Agent, Answer, Model, anthropic_model, openai_model
from belljar.policy.names import check_names

LIMITS = {
    "memory_bytes": 4 << 30,
    "cpus": 2,
    "timeout_s": 120,
    "max_runs": 10,
}
MOST_DESCRIPTION_BYTES = 1 << 20


def main() -> None:
    arguments = read_arguments()
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    show = Show()
    started = time.monotonic()
    with show.bar("writing the table (once)") as bar:
        sales = table.make(arguments.megabytes, progress=bar)
    show.table(sales)

    peaks = Peaks()
    with (
        belljar.Belljar(on_progress=show.build) as jar,
        belljar.Sandbox(jar, environment="data", inputs={"sales.csv": sales.path}, **LIMITS) as box,
    ):
        agent = Agent(box, choose_model(arguments), on_event=show.event, on_step=peaks.step)
        report = analyse(agent, show, output)
        report["forecast"] = compare(agent, show, output)
        peaks.ask(box)
    report["rows_written"] = sales.rows
    report["peaks"] = peaks.megabytes()
    report["seconds"] = round(time.monotonic() - started, 1)
    (output / "report.json").write_text(json.dumps(report, indent=2))
    show.end(report, output)


def analyse(agent: Agent, show: Show, output: Path) -> dict[str, object]:
    """Describes the table and asks the questions, all in one sandbox."""
    answers: dict[str, object] = {}
    for number, task in enumerate((script.DESCRIBE, *script.QUESTIONS)):
        show.task(task)
        answer = agent.ask(task)
        pictures = save_pictures(answer, output, f"{number}")
        show.answer(answer, pictures)
        answers[task] = {
            "answer": answer.text,
            "runs": len(answer.steps),
            "mended": answer.mended,
            "pictures": pictures,
        }
    described = agent.box.files.read(
        "/data/output/description.json", most_bytes=MOST_DESCRIPTION_BYTES
    )
    return {"questions": answers, "description": json.loads(described)}


def compare(agent: Agent, show: Show, output: Path) -> dict[str, object]:
    """Two branches of the sandbox, a model in each, side by side; the better one's files are
    kept."""
    show.task(script.DAYS)
    show.answer(agent.ask(script.DAYS), [])
    branches = dict(zip(script.MODELS, agent.fork(len(script.MODELS)), strict=True))
    try:
        with ThreadPoolExecutor(len(branches)) as threads:
            asked = {
                name: threads.submit(branch.ask, script.MODELS[name])
                for name, branch in branches.items()
            }
        errors = {}
        for name, future in asked.items():
            show.task(script.MODELS[name])
            answer = future.result()
            show.answer(answer, save_pictures(answer, output, f"forecast-{name}"))
            errors[name] = number(answer.steps[-1].result.value if answer.steps else None)
        best = min(errors, key=errors.__getitem__)
        files = download(branches[best].box, output)
    finally:
        for branch in branches.values():
            branch.box.close()
    return {"mean_absolute_errors": errors, "best": best, "files": files}


def number(value: str | None) -> float:
    """The value of a last expression is text that the code chose."""
    try:
        return float(value or "inf")
    except ValueError:
        return float("inf")


def save_pictures(answer: Answer, output: Path, name: str) -> list[str]:
    """Under names of our own."""
    pictures = [found.data["image/png"] for found in answer.outputs if "image/png" in found.data]
    names = []
    for number, content in enumerate(pictures):
        if isinstance(content, bytes):
            names.append(f"{name}-{number}.png" if number else f"{name}.png")
            (output / names[-1]).write_bytes(content)
    return names


def download(box: belljar.Sandbox, output: Path) -> list[str]:
    """What the code left in /data/output. Its names are the code's, and looked at first."""
    found = [info for info in box.files.list("/data/output") if info.is_file]
    check_names("output", [info.name for info in found])
    for info in found:
        box.files.download(info.path, output / info.name)
    return sorted(info.name for info in found)


def choose_model(arguments: argparse.Namespace) -> Model:
    """`scripted`, or a real one by the shape of its interface: `openai:NAME`, `anthropic:NAME`."""
    shape, _, name = arguments.model.partition(":")
    if shape == "scripted":
        return script.model
    make = {"openai": openai_model, "anthropic": anthropic_model}[shape]
    server = {"url": arguments.url} if arguments.url else {}
    return make(name, api_key=read_key(arguments.key_file), **server)


def read_key(file: Path | None) -> str:
    return file.read_text().strip() if file else ""


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="data_analyst", description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=1024, help="size of the table (1024)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="results' folder")
    parser.add_argument(
        "--model", default="scripted", help="scripted, openai:NAME or anthropic:NAME"
    )
    parser.add_argument("--url", default="", help="of the model's server, if not the usual one")
    parser.add_argument("--key-file", type=Path, help="a file with the key for the model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
