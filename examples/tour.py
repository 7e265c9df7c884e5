"""The library in a minute: `.venv/bin/python examples/tour.py`."""

from __future__ import annotations

from belljar import Belljar

TABLE = "city,visitors\nBern,120\nBasel,80\nBern,60\n"

ANALYSIS = """
import pandas

visitors = pandas.read_csv("/data/input/visitors.csv").groupby("city").visitors.sum()
visitors.to_json("/data/output/by_city.json")
print(visitors.to_string())
"""


def main() -> None:
    with Belljar() as jar:
        result = jar.run(ANALYSIS, inputs={"visitors.csv": TABLE})
        print(f"{result.status} in environment {result.environment!r}:\n{result.stdout}")
        for file in result.files:
            print("brought back:", file.path, file.content)

        print("\nWhat goes wrong is a status, never an exception:")
        for name, code, timeout_s in (
            ("a mistake", "print(undefined)", 30),
            ("an endless loop", "while True: pass", 1),
            ("too much memory", "x = bytearray(2_000_000_000)", 30),
            ("a fork bomb", "import os\nwhile True: os.fork()", 30),
        ):
            result = jar.run(code, timeout_s=timeout_s)
            print(f"  {name}: {result.status} (exit {result.exit_code}, signal {result.signal})")

        print("\nWhat this wall was made of:")
        for control, mechanism in result.isolation.items():
            print(f"  {control}: {mechanism}")


if __name__ == "__main__":
    main()
