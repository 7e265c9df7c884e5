"""P2: a damaged database is told, line by line, and never keeps anybody from what is whole."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from belljar.errors import TrailError
from belljar.model import Caller, Request, Result
from belljar.network import Egress
from belljar.settings import Settings
from belljar.testing.served import served
from belljar.trail import chain
from belljar.trail.entry import Recorder
from belljar.trail.trail import Trail, open_writer

RUNS = 30
COLUMNS = ("kind", "id", "time", "tenant", "status", "body", "hash")
DAMAGES = {
    **{f"{name} is a BLOB": f"{name} = cast({name} AS blob)" for name in COLUMNS},
    **{f"{name} is not UTF-8": f"{name} = cast(x'ff7b7d' AS text)" for name in COLUMNS},
    "body is a list": "body = '[1]'",
    "body is an object of nothing": "body = '{}'",
    "body has a number that is none": 'body = replace(body, \'"seq":\', \'"x":NaN,"seq":\')',
    "body is deep": "body = replace(hex(zeroblob(50000)), '0', '[')",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A trail of RUNS runs, each with an attempt over the network; closed."""
    path = tmp_path / "trail" / "trail.db"

    async def play() -> None:
        settings = Settings(trail=f"sqlite:///{path}")
        writer = open_writer(settings)
        recorder = Recorder(writer, settings, Caller(tenant="t"))
        for number in range(RUNS):
            async with await recorder.entry("run", Request(code=str(number))) as entry:
                told = entry.tried(Egress(at=0.0, host="a.example", port=1, verdict="allowed"))
                assert told is not None
                await told
                await entry.end(Result(status="ok", exit_code=0))
        await asyncio.to_thread(writer.close)

    asyncio.run(play())
    return path


def change(file: Path, *statements: str) -> None:
    with sqlite3.connect(file) as database:
        for statement in statements:
            assert database.execute(statement).rowcount != 0, "nothing was changed"
    database.close()


def belljar(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "belljar.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("at", [44, 45, 46])  # an end, an attempt and what it tried
def test_p2_a_damaged_line_is_named_and_the_rest_is_read(file: Path, damage: str, at: int) -> None:
    change(file, f"UPDATE trail_lines SET {DAMAGES[damage]} WHERE seq = {at}")
    with Trail(f"sqlite:///{file}") as trail:
        verdict = trail.verify()
        found = trail.recent(limit=1000)
        tried = trail.egress(limit=1000)
        exports = [chain.exported(line) for line in trail.lines()]
    assert not verdict.sound and str(at) in verdict.problem
    assert {problem.at for problem in verdict.problems} <= {at, at + 1, at + 2}
    assert verdict.lines + verdict.after >= 3 * RUNS + 1 - 4
    json.dumps([one.to_dict() for one in found])
    assert len(found) >= RUNS - 1 and len(tried) >= RUNS - 1
    assert len(exports) == 3 * RUNS + 1
    for line in exports:
        assert line.isascii() and json.loads(line)["line"]["seq"]


def test_p2_the_command_line_tells_of_damage_without_a_traceback(
    file: Path, tmp_path: Path
) -> None:
    change(
        file,
        "UPDATE trail_lines SET body = cast(x'ff7b7d' AS text) WHERE seq IN (44, 45, 46)",
        "UPDATE trail_lines SET time = cast(time AS blob) WHERE seq = 50",
        "UPDATE trail_lines SET seq = 'one' WHERE seq = 53",
    )
    where = ("--trail", f"sqlite:///{file}")
    verified = belljar("trail", "verify", *where)
    assert verified.returncode == 1
    for told in ("line 44", "line 45", "line 46", "line 50", "one for its number"):
        assert told in verified.stdout, verified.stdout
    assert belljar("trail", "list", *where).returncode == 0
    listed = belljar("trail", "list", "--egress", *where)
    assert listed.returncode == 0 and "a.example" in listed.stdout
    for one in json.loads(belljar("trail", "list", "--json", *where).stdout)[-3:]:
        assert belljar("trail", "show", one["attempt"]["id"], *where).returncode == 0
    exported = tmp_path / "export"
    done = belljar("trail", "export", "--output", str(exported), *where)
    assert done.returncode == 1 and "line 44 is damaged" in done.stderr
    verified = belljar("trail", "verify", "--file", str(exported))
    assert verified.returncode == 1 and "line 44" in verified.stdout


def test_p2_an_index_that_leads_elsewhere_is_trouble_of_its_own(file: Path) -> None:
    """What is searched for goes by the indexes, and no line's hash covers those."""
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE other (id VARCHAR(64) NOT NULL)")
        database.execute("CREATE INDEX empty ON other (id)")
        database.execute("PRAGMA writable_schema=ON")
        database.execute(
            "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master "
            "WHERE name = 'empty') WHERE name = 'ix_trail_lines_id'"
        )
    database.close()
    url = f"sqlite:///{file}"
    with Trail(url) as trail:
        verdict = trail.verify()
    assert verdict.problems == () and verdict.lines == 3 * RUNS + 1
    assert any("ix_trail_lines_id" in told for told in verdict.file) and not verdict.sound
    done = belljar("trail", "verify", "--trail", url)
    assert done.returncode == 1 and "the database file: " in done.stdout
    told = json.loads(belljar("trail", "verify", "--json", "--trail", url).stdout)
    assert told["file_problems"] and told["problems"] == [] and not told["sound"]


def test_p2_a_page_that_cannot_be_read_keeps_nobody_from_the_next(file: Path) -> None:
    with Trail(f"sqlite:///{file}") as trail:
        hash_ = [line.hash for line in trail.lines()][45].encode()
    content = bytearray(file.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    page = content.index(hash_) // size * size
    content[page : page + size] = b"\xff" * size
    file.write_bytes(content)
    with Trail(f"sqlite:///{file}") as trail:
        verdict = trail.verify()
    assert not verdict.sound and verdict.file
    assert verdict.lines > 20 and verdict.after > 20
    assert belljar("trail", "verify", "--trail", f"sqlite:///{file}").returncode == 1


def test_p2_nothing_follows_a_line_whose_hash_is_gone(file: Path) -> None:
    change(
        file, "UPDATE trail_lines SET hash = x'ff' WHERE seq = (SELECT max(seq) FROM trail_lines)"
    )
    with pytest.raises(TrailError, match="is damaged"):
        open_writer(Settings(trail=f"sqlite:///{file}"))
    with Trail(f"sqlite:///{file}") as trail, pytest.raises(TrailError, match="cannot be pruned"):
        trail.prune(before="9999", by="t")


def test_p2_a_server_reads_on_behind_damage() -> None:
    with served() as server:
        ids = [server.execute("print(1)").json()["execution_id"] for _ in range(3)]
        change(
            server.home / "trail" / "trail.db",
            f"UPDATE trail_lines SET body = x'ff' WHERE id = '{ids[1]}'",
        )
        lines: list[Any] = server.ask("GET", "/v1/trail").json()["lines"]
        assert [line["attempt"]["id"] for line in lines] == ids[::-1]
        assert ["damaged" in line["attempt"] for line in lines] == [False, True, False]
        assert server.ask("GET", f"/v1/trail/{ids[1]}").status == 200
