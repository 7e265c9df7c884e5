"""A table of sales, as large as wished, the same on every machine; written once and kept.

Lines are put together from pieces that are made once a month, so that a gigabyte takes seconds.
A few prices are "unknown": real tables have such things, and not where one looks first.
"""

from __future__ import annotations

import datetime
import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from belljar.settings import default_home

VERSION = 1
HEAD = "ordered_on,region,store,category,product,channel,units,unit_price,discount_percent,returned"
FIRST, DAYS = datetime.date(2022, 1, 1), 1096
PIECES = 4096
"""Different lines of one month."""
MIB = 1 << 20

CATEGORIES = {  # name: (price, share of orders, chance of a return, products)
    "kitchen": (60.0, 30, 0.04, ("kettle", "toaster", "pan", "knife set", "scale")),
    "garden": (45.0, 20, 0.03, ("hose", "spade", "seeds", "bench", "lantern")),
    "clothing": (35.0, 25, 0.18, ("jacket", "boots", "scarf", "shirt", "gloves")),
    "electronics": (180.0, 15, 0.09, ("headphones", "speaker", "tablet", "charger", "camera")),
    "books": (18.0, 10, 0.01, ("novel", "atlas", "cookbook", "comic", "dictionary")),
}
REGIONS = {"north": 30, "south": 25, "east": 20, "west": 15, "islands": 10}
DISCOUNTS = {0: 60, 5: 15, 10: 15, 20: 10}
UNITS = {0: 1.6, 5: 1.7, 10: 2.1, 20: 3.2}
"""What is sold on average at that discount."""


@dataclass(frozen=True, kw_only=True)
class Table:
    path: Path
    rows: int
    """As they were written; the file is not read on the host."""


def make(megabytes: float, *, progress: Callable[[float], None]) -> Table:
    """The table from the cache, or a new one."""
    folder = default_home() / "demo"
    path = folder / f"sales-{VERSION}-{megabytes:g}.csv"
    count = path.with_suffix(".rows")
    if not (path.exists() and count.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            rows = write(unfinished, int(megabytes * MIB), progress=progress)
            count.write_text(str(rows))
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return Table(path=path, rows=int(count.read_text()))


def write(path: Path, size: int, *, progress: Callable[[float], None]) -> int:
    """Writes about `size` bytes day by day; returns the number of rows."""
    chance = random.Random(VERSION)
    weights = [_demand(day) * chance.uniform(0.92, 1.08) for day in range(DAYS)]
    pieces = _pieces(chance, FIRST)
    line = len("2022-01-01,") + sum(map(len, pieces)) / PIECES + 1
    scale = size / line / sum(weights)
    rows = written = 0
    with path.open("w", encoding="ascii", newline="\n") as file:
        file.write(HEAD + "\n")
        for day, weight in enumerate(weights):
            date = FIRST + datetime.timedelta(days=day)
            if date.day == 1:
                pieces = _pieces(chance, date)
            orders = chance.choices(pieces, k=max(1, round(scale * weight)))
            text = f"{date}," + f"\n{date},".join(orders) + "\n"
            file.write(text)
            rows += len(orders)
            written += len(text)
            progress(min(1.0, written / size))
    return rows


def _demand(day: int) -> float:
    """Growth, a peak before the end of the year, and busy week-ends."""
    date = FIRST + datetime.timedelta(days=day)
    season = 1 + 0.35 * math.exp(-(((date.timetuple().tm_yday - 345) / 18) ** 2))
    summer = 1 + 0.12 * math.sin((date.timetuple().tm_yday - 100) / 365 * 2 * math.pi)
    week = (0.90, 0.88, 0.92, 0.97, 1.10, 1.30, 1.05)[date.weekday()]
    return (1 + 0.3 * day / DAYS) * season * summer * week


def _pieces(chance: random.Random, month: datetime.date) -> list[str]:
    return list(_orders(chance, months=(month - FIRST).days // 30))


def _orders(chance: random.Random, *, months: int) -> Iterator[str]:
    shares = [share for _, share, _, _ in CATEGORIES.values()]
    for _ in range(PIECES):
        category = chance.choices(list(CATEGORIES), shares)[0]
        base, _, returns, products = CATEGORIES[category]
        region = chance.choices(list(REGIONS), list(REGIONS.values()))[0]
        discount = chance.choices(list(DISCOUNTS), list(DISCOUNTS.values()))[0]
        price = base * (1 + 0.004 * months) * chance.uniform(0.6, 1.4)
        units = 1 + min(8, int(chance.expovariate(1 / (UNITS[discount] - 0.6))))
        unknown = months >= 12 and chance.random() < 0.002
        yield ",".join(
            (
                region,
                f"{region}-{chance.randint(1, 12):02d}",
                category,
                chance.choice(products),
                chance.choice(("shop", "shop", "online", "phone")),
                str(units),
                "unknown" if unknown else f"{price:.2f}",
                str(discount),
                "yes" if chance.random() < returns else "no",
            )
        )
