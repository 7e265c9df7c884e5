"""S4, A5: the data analyst's job from end to end, its results beside what is computed here."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from belljar.cli.shell_pictures import Picture, read_png
from belljar.settings import default_home

ROOT = Path(__file__).resolve().parents[2]
MEGABYTES = 20


class Demo:
    """A finished demo: what it printed and left."""

    def __init__(self, output: Path, *, megabytes: int) -> None:
        self.output = output
        self.done = subprocess.run(
            [
                sys.executable,
                str(ROOT / "examples/data_analyst"),
                f"--megabytes={megabytes}",
                f"--output={output}",
            ],
            capture_output=True,
            text=True,
            timeout=900,
            env={**os.environ, "COLUMNS": "100"},
        )
        assert self.done.returncode == 0, self.done.stdout + self.done.stderr
        self.report: dict[str, Any] = json.loads((output / "report.json").read_text())

    def table(self, name: str) -> list[dict[str, str]]:
        with (self.output / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def picture(self, name: str) -> Picture:
        picture = read_png((self.output / name).read_bytes())
        assert picture, name
        return picture


class Truth:
    """The answers, worked out without pandas and without a sandbox."""

    def __init__(self, table: Path) -> None:
        self.rows = 0
        self.months: dict[str, float] = defaultdict(float)
        self.orders: dict[str, int] = defaultdict(int)
        self.returned: dict[str, int] = defaultdict(int)
        self.lost: dict[str, float] = defaultdict(float)
        self.discounts: dict[str, list[float]] = defaultdict(list)
        self.days: dict[str, float] = defaultdict(float)
        with table.open(newline="") as file:
            reader = csv.DictReader(file)
            self.columns = list(reader.fieldnames or ())
            for row in reader:
                self.rows += 1
                if row["unit_price"] != "unknown":
                    self._count(row)

    def _count(self, row: dict[str, str]) -> None:
        discount = int(row["discount_percent"])
        revenue = int(row["units"]) * float(row["unit_price"]) * (1 - discount / 100)
        self.months[row["ordered_on"][:7]] += revenue
        self.days[row["ordered_on"]] += revenue
        self.orders[row["category"]] += 1
        self.discounts[row["discount_percent"]].append(revenue)
        if row["returned"] == "yes":
            self.returned[row["category"]] += 1
            self.lost[row["category"]] += revenue


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return Demo(tmp_path_factory.mktemp("demo"), megabytes=MEGABYTES)


@pytest.fixture(scope="module")
def truth(demo: Demo) -> Truth:
    return Truth(default_home() / "demo" / f"sales-1-{MEGABYTES}.csv")


def test_s4_the_table_is_described_inside(demo: Demo, truth: Truth) -> None:
    described = demo.report["description"]
    assert described["rows"] == truth.rows == demo.report["rows_written"]
    assert list(described["columns"]) == truth.columns
    assert described["columns"]["unit_price"] == "float64"
    assert len(described["sample"]) == 5 and list(described["sample"][0]) == truth.columns


def test_s4_the_answers_are_right(demo: Demo, truth: Truth) -> None:
    months = {row["month"]: float(row["revenue"]) for row in demo.table("revenue_by_month.csv")}
    assert months == pytest.approx(truth.months, abs=0.01)
    returns = {row["category"]: row for row in demo.table("returns_by_category.csv")}
    assert set(returns) == set(truth.orders)
    for category, row in returns.items():
        share = 100 * truth.returned[category] / truth.orders[category]
        assert float(row["returned_percent"]) == pytest.approx(share, abs=1e-3)
        assert float(row["revenue_lost"]) == pytest.approx(truth.lost[category], abs=0.01)
    discounts = {row["discount_percent"]: row for row in demo.table("orders_by_discount.csv")}
    for percent, revenues in truth.discounts.items():
        mean = sum(revenues) / len(revenues)
        assert float(discounts[percent]["revenue"]) == pytest.approx(mean, abs=1e-3)
    best = max(truth.months, key=truth.months.__getitem__)
    answers = [question["answer"] for question in demo.report["questions"].values()]
    assert answers[1] == f"{best} was the best month with {truth.months[best]:,.2f}."
    assert answers[2].startswith("clothing: ")


def test_s4_the_pictures_are_pictures(demo: Demo) -> None:
    pictures = [demo.picture(name) for name in ("1.png", "2.png", "3.png")]
    for picture in pictures:
        colours = {picture.rgb[at : at + 3] for at in range(0, len(picture.rgb), 3)}
        assert picture.width > 300 and picture.height > 200 and len(colours) > 20
    blue = bytes.fromhex("4c78a8")  # the bars
    pixels = [pictures[0].rgb[at : at + 3] for at in range(0, len(pictures[0].rgb), 3)]
    assert 0.1 < pixels.count(blue) / len(pixels) < 0.8
    assert len({picture.rgb for picture in pictures}) == 3


def test_a5_the_mistake_was_mended_from_its_error(demo: Demo) -> None:
    first, second, *_ = list(demo.report["questions"].values())[1:]
    assert (first["runs"], first["mended"]) == (2, 1)
    assert (second["runs"], second["mended"]) == (1, 0)
    assert "could not convert string to float: 'unknown'" in demo.done.stdout


def test_s4_two_branches_and_the_better_one_is_kept(demo: Demo, truth: Truth) -> None:
    forecast = demo.report["forecast"]
    errors = forecast["mean_absolute_errors"]
    assert set(errors) == {"ridge", "boosting"} and len(set(errors.values())) == 2
    assert errors[forecast["best"]] == min(errors.values())
    rows = demo.table("forecast.csv")
    assert len(rows) == 90
    actual = {row["day"][:10]: float(row["actual"]) for row in rows}
    assert actual == pytest.approx({day: truth.days[day] for day in actual}, abs=0.01)
    kept = sum(abs(float(row["actual"]) - float(row["forecast"])) for row in rows) / 90
    assert kept == pytest.approx(errors[forecast["best"]], abs=0.02)
    one, other = (demo.picture(f"forecast-{name}.png") for name in errors)
    assert one.rgb != other.rgb


def test_s4_memory_is_told(demo: Demo) -> None:
    peaks = demo.report["peaks"]
    assert 0 < peaks["host"] < 400 and 0 < peaks["sandbox"] < 4096
    assert f"{peaks['host']} MiB here" in demo.done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_s4_a_gigabyte_stays_below_400_mb_here_and_4_gb_inside(tmp_path: Path) -> None:
    demo = Demo(tmp_path, megabytes=1024)
    path = default_home() / "demo" / "sales-1-1024.csv"
    assert path.stat().st_size > 0.99 * 2**30
    assert demo.report["description"]["rows"] == demo.report["rows_written"] > 15_000_000
    assert demo.report["peaks"]["host"] < 400 and demo.report["peaks"]["sandbox"] < 4096
