"""A model without a network: what it will say is written here, except where it must read an error.

It is called as any model is, with the messages so far, and knows nothing else. It makes a mistake
that people make, too: it believes that a column of prices holds nothing but numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from belljar.agents import Message

INPUT = "/data/input/sales.csv"
DESCRIBE = (
    f"Describe {INPUT}: bytes, rows, columns with their types, a sample."
    " Put that into /data/output/description.json, too."
)
MONTHS = "How did revenue develop month by month, and which month was the best?"
RETURNS = "Which category is sent back most often, and how much revenue does that cost?"
DISCOUNTS = "Do discounts pay: what does an order bring in at each discount?"
DAYS = "Prepare a table of revenue per day with what may explain it, to be forecast."
MODELS = {
    "ridge": "Forecast the last 90 days with a ridge regression; end with its mean absolute error.",
    "boosting": "Forecast the last 90 days with gradient boosting; end with its mean absolute"
    " error.",
}
QUESTIONS = (MONTHS, RETURNS, DISCOUNTS)


def model(messages: list[Message]) -> str:
    """The next line of the script for the latest task, given what was told last."""
    at = max(i for i, message in enumerate(messages) if message["content"] in SCRIPT)
    replies = SCRIPT[messages[at]["content"]]
    said = sum(message["role"] == "assistant" for message in messages[at:])
    return replies[min(said, len(replies) - 1)](messages[-1]["content"])


def code(text: str) -> Callable[[str], str]:
    return lambda told: f"```python\n{text.strip()}\n```"


def answer(text: str) -> Callable[[str], str]:
    """What was told of the run, in words: `{line}` is what it printed last."""

    def reply(told: str) -> str:
        printed = told.partition("Standard output:\n")[2].partition("\nStandard error:")[0]
        lines = re.split(r"\n(?:Value of|Pictures shown)", printed)[0].strip().splitlines()
        return text.format(line=lines[-1] if lines else "")

    return reply


_DESCRIBE = f"""
import json, os
import pandas as pd

PATH = "{INPUT}"
sample = pd.read_csv(PATH, nrows=1000)
rows = -1  # the head
with open(PATH, "rb") as file:
    while piece := file.read(1 << 22):
        rows += piece.count(b"\\n")
description = {{
    "bytes": os.path.getsize(PATH),
    "rows": rows,
    "columns": {{name: str(kind) for name, kind in sample.dtypes.items()}},
    "sample": sample.head(5).to_dict("records"),
}}
with open("/data/output/description.json", "w") as file:
    json.dump(description, file, indent=2)
print(f"{{rows:,}} rows, {{len(description['columns'])}} columns")
sample.head(5)
"""

_LOAD = """
import belljar_guest
import numpy as np
from pandas.api.types import union_categoricals

kinds = {name: "category" for name in sample.columns} | {
    "units": "int8", "discount_percent": "int8", "unit_price": "float64",
}
chunks = []
with open(PATH, "rb") as file:
    for chunk in pd.read_csv(file, dtype=kinds, chunksize=500_000%(more)s):
        chunks.append(chunk)
        belljar_guest.progress(file.tell() / description["bytes"], "reading")
sales = pd.DataFrame({
    name: union_categoricals([chunk[name] for chunk in chunks]) if kind == "category"
    else np.concatenate([chunk[name].to_numpy() for chunk in chunks])
    for name, kind in kinds.items()
})
del chunks, chunk
sales["revenue"] = sales.units * sales.unit_price * (1 - sales.discount_percent / 100)
print(f"{len(sales):,} rows in {sales.memory_usage(deep=True).sum() / 2**20:.0f} MiB")
"""

_MONTHS = """
import matplotlib.pyplot as plt

by_day = sales.groupby("ordered_on", observed=True).revenue.sum()
by_day.index = pd.to_datetime(by_day.index.astype(str))
by_month = by_day.sort_index().groupby(by_day.sort_index().index.to_period("M")).sum()
by_month.index.name = "month"
by_month.round(2).to_csv("/data/output/revenue_by_month.csv")
best = by_month.idxmax()
figure, axes = plt.subplots(figsize=(8, 3.2))
colours = ["#c2562d" if month == best else "#4c78a8" for month in by_month.index]
axes.bar(by_month.index.astype(str), by_month / 1e6, color=colours)
axes.set_title("Revenue by month")
axes.set_ylabel("millions")
axes.tick_params(axis="x", rotation=90, labelsize=7)
figure.tight_layout()
print(f"{best} was the best month with {by_month.max():,.2f}")
"""


def _mend_prices(told: str) -> str:
    """From the error itself: which text stood where a number was expected."""
    found = re.search(r"could not convert string to float: '([^']+)'", told)
    if not found:
        return "I do not understand that error."
    more = f", na_values=[{found[1]!r}]"
    said = f"Some prices are {found[1]!r} instead of a number. They are missing values."
    return f"{said}\n" + code(_LOAD % {"more": more} + _MONTHS)(told)


_RETURNS = """
known = sales.dropna(subset=["unit_price"])
returned = known.returned == "yes"
by_category = pd.DataFrame({
    "orders": known.groupby("category", observed=True).size(),
    "returned_percent": returned.groupby(known.category, observed=True).mean() * 100,
    "revenue_lost": known[returned].groupby("category", observed=True).revenue.sum(),
}).sort_values("returned_percent", ascending=False)
by_category.round(4).to_csv("/data/output/returns_by_category.csv")
figure, axes = plt.subplots(figsize=(6, 3.2))
axes.barh(by_category.index.astype(str)[::-1], by_category.returned_percent[::-1], color="#4c78a8")
axes.set_title("Orders sent back")
axes.set_xlabel("percent of orders")
figure.tight_layout()
worst = by_category.iloc[0]
print(f"{by_category.index[0]}: {worst.returned_percent:.2f} % sent back,"
      f" {worst.revenue_lost:,.2f} lost")
"""

_DISCOUNTS = """
by_discount = known.groupby("discount_percent").agg(
    orders=("revenue", "size"), units=("units", "mean"), revenue=("revenue", "mean"))
by_discount.round(4).to_csv("/data/output/orders_by_discount.csv")
figure, axes = plt.subplots(figsize=(6, 3.2))
axes.plot(by_discount.index, by_discount.revenue, marker="o", label="revenue of an order")
axes.set_xlabel("discount in percent")
axes.set_ylim(0)
axes.legend()
axes.set_title("What an order brings in")
figure.tight_layout()
print("; ".join(f"{row.Index} %: {row.revenue:.2f}" for row in by_discount.itertuples()))
"""

_DAYS = """
# Branches share what was imported before them.
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import Ridge

days = pd.DataFrame({"revenue": by_day.sort_index()})
days["day"] = np.arange(len(days))
days["weekday"] = days.index.day_of_week
turn = days.index.day_of_year / 365.25 * 2 * np.pi
for wave in range(1, 9):
    days[f"sin{wave}"], days[f"cos{wave}"] = np.sin(wave * turn), np.cos(wave * turn)
for weekday in range(7):
    days[f"weekday{weekday}"] = (days.weekday == weekday).astype(float)
past, future = days.iloc[:-90], days.iloc[-90:]
features = [name for name in days.columns if name != "revenue"]
print(f"{len(past)} days to learn from, {len(future)} to forecast")
"""

_FORECAST = """
%(estimator)s
estimator.fit(past[features], past.revenue)
forecast = pd.Series(estimator.predict(future[features]), index=future.index)
table = pd.DataFrame({"actual": future.revenue, "forecast": forecast}).rename_axis("day")
table.round(2).to_csv("/data/output/forecast.csv")
figure, axes = plt.subplots(figsize=(8, 3.2))
axes.plot(future.index, future.revenue / 1e6, label="actual")
axes.plot(future.index, forecast / 1e6, label="%(name)s")
axes.set_title("The last 90 days")
axes.set_ylabel("revenue in millions")
axes.legend()
figure.tight_layout()
error = float((future.revenue - forecast).abs().mean())
print(f"mean absolute error {error:,.2f} a day, {error / future.revenue.mean():.1%%} of the mean")
error
"""

_ESTIMATORS = {
    "ridge": "estimator = Ridge(alpha=1.0)",
    "boosting": "estimator = GradientBoostingRegressor(random_state=0)",
}

SCRIPT: dict[str, list[Callable[[str], str]]] = {
    DESCRIBE: [code(_DESCRIBE), answer("The table has {line}.")],
    MONTHS: [code(_LOAD % {"more": ""} + _MONTHS), _mend_prices, answer("{line}.")],
    RETURNS: [code(_RETURNS), answer("{line}.")],
    DISCOUNTS: [code(_DISCOUNTS), answer("Mean revenue of an order: {line}.")],
    DAYS: [code(_DAYS), answer("There are {line}.")],
} | {
    task: [
        code(_FORECAST % {"estimator": _ESTIMATORS[name], "name": name}),
        answer(f"{name}: {{line}}."),
    ]
    for name, task in MODELS.items()
}
