"""`belljar trail`: what was asked and how it ended; whether that is what was written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from belljar.trail.chain import Verdict
    from belljar.trail.trail import Recorded, Trail

EPILOG = """\
\b
Examples:
  belljar trail list --since 1h --status refused
  belljar trail list --egress --status blocked
  belljar trail show 3f9a
  belljar trail verify --head 1842:6f1c…
  belljar trail export --output trail.jsonl
  belljar trail prune --older-than 90d
"""
BROKEN = 1
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_COLOURS = {"ok": "green", "open": "cyan", "closed": "green", "lost": "red", "failed": "red"}

Where = Annotated[
    str | None,
    typer.Option(
        "--trail",
        metavar="URL",
        help="The trail's database. Default: BELLJAR_TRAIL, or SQLite in the data directory.",
    ),
]
Egress = Annotated[bool, typer.Option("--egress", help="What code tried to reach, allowed or not.")]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]

app = typer.Typer(
    help="Read, verify, export and prune the trail: what was asked, and how it ended.",
    rich_markup_mode=None,
    epilog=EPILOG,
)


@app.callback(invoke_without_command=True)
def all_(context: typer.Context, egress: Egress = False) -> None:
    """`belljar trail --egress` is short for `belljar trail list --egress`."""
    if context.invoked_subcommand is None:
        if not egress:
            print(context.get_help())
            raise typer.Exit(2)
        list_(egress=True)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Only this tenant's.")] = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="STATUS", help="Only those that ended so: ok, refused, lost, open …"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Not older than: 90s, 30m, 12h, 7d, or 2030-01-31."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many, newest first.")] = 50,
    egress: Egress = False,
    json: Json = False,
    trail: Where = None,
) -> int:
    """Show the latest attempts: who, what, behind which wall, how it ended.

    With --egress what code tried to reach; STATUS is then allowed, refused, blocked or failed.
    """
    after = _moment("--since", since) if since else ""
    if egress:
        with _open(trail) as found:
            tried = found.egress(tenant=tenant, verdict=status, since=after, limit=limit)
        _tell_egress(tried, json=json)
        return 0
    with _open(trail) as found:
        entries = found.recent(tenant=tenant, status=status, since=after, limit=limit)
    if json:
        from json import dumps

        print(dumps([entry.to_dict() for entry in entries], indent=2))
    else:
        _draw(entries)
    return 0


@app.command()
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="An execution id, or its beginning.")],
    json: Json = False,
    trail: Where = None,
) -> int:
    """Show everything the trail has about one attempt."""
    from belljar.errors import InvalidRequest

    with _open(trail) as found:
        entry = found.find(id)
        whole = (entry.attempt or entry.end or {}).get("id") if entry else None
        tried = found.egress(id_=whole, limit=1000)[::-1] if whole else []
    if entry is None:
        raise InvalidRequest(
            f"the trail has no attempt, or several, whose id begins with {id[:64]!r}",
            hint="belljar trail list --json shows whole ids",
        )
    if json:
        from json import dumps

        print(dumps({**entry.to_dict(), "egress": tried}, indent=2))
    else:
        _draw_one(entry)
        if tried:
            _tell_egress(tried, json=False)
    return 0


@app.command()
def verify(
    head: Annotated[
        str,
        typer.Option(
            metavar="HEAD",
            help="One that was noted down earlier (NUMBER:HASH, or HASH): must be in the trail.",
        ),
    ] = "",
    allow_pruned: Annotated[
        bool,
        typer.Option("--allow-pruned", help="Do with a HEAD at which the trail was pruned."),
    ] = False,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Verify an export instead.")
    ] = None,
    json: Json = False,
    trail: Where = None,
) -> int:
    """Walk along the whole trail: is every line what was written, and where it was written?

    Ends with status 1 if not, and names the lines that are not; those that follow are checked, too.
    SQLite's file is checked as well: an index that is damaged hides lines from those who search.
    Prints the head, to be noted down where nobody who can write the trail can reach it.
    """
    if file is not None:
        verdict = _verify_file(file, head, allow_pruned)
    else:
        with _open(trail) as found:
            verdict = found.verify(head=head, allow_pruned=allow_pruned)
    if json:
        from json import dumps

        told = {
            "sound": verdict.sound,
            "lines": verdict.lines,
            "first": verdict.first,
            "head": str(verdict.head) if verdict.head else None,
            "open": sorted(verdict.open),
            "problem": verdict.problem,
            "at": verdict.at,
            "problems": [problem._asdict() for problem in verdict.problems],
            "more_problems": verdict.more,
            "after": verdict.after,
            "file_problems": list(verdict.file),
        }
        print(dumps(told, indent=2))
    else:
        _tell(verdict)
    return 0 if verdict.sound else BROKEN


@app.command()
def export(
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="A new file. Default: stdout."),
    ] = None,
    after: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, help="Only lines after this one.")
    ] = 0,
    trail: Where = None,
) -> int:
    """Print every line as it was hashed, one JSON object each: {"hash": …, "line": …}."""
    import sys

    from belljar.cli.say import say
    from belljar.trail.chain import MOST_PROBLEMS, exported, is_legible, shown

    last, damaged = None, 0
    with _open(trail) as found:
        stream = sys.stdout
        if output is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            stream = os.fdopen(os.open(output, flags, 0o600), "w", encoding="ascii")
        try:
            for last in found.lines(after=after):
                stream.write(exported(last) + "\n")
                if not is_legible(last):
                    damaged += 1
                    if damaged <= MOST_PROBLEMS:
                        say(f"line {shown(last.seq)} is damaged: its number and base64 are printed")
            stream.flush()
        finally:
            if output is not None:
                stream.close()
    if last and is_legible(last):
        say(f"the head is {last.seq}:{last.hash}")
    return BROKEN if damaged else 0


@app.command()
def prune(
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="What is older goes: 12h, 90d, 8w, or 2030-01-31.")
    ],
    trail: Where = None,
) -> int:
    """Take the oldest lines out. A new line says so, and the rest still verifies.

    Attempts that are under way stay, and everything after them.
    """
    import getpass

    with _open(trail) as found:
        before = _moment("--older-than", older_than)
        try:
            by = getpass.getuser()
        except (OSError, KeyError):
            by = str(os.getuid())
        removed = found.prune(before=before, by=f"cli, {by}")
    print(f"{removed} lines were taken out")
    return 0


def _open(url: str | None) -> Trail:
    from belljar.trail.opening import open_trail

    return open_trail(url or "")


def _verify_file(path: str, head: str, allow_pruned: bool) -> Verdict:
    from belljar.errors import InvalidRequest
    from belljar.trail import chain

    try:
        with open(path, encoding="ascii") as file:
            pruned = [line.body for line in chain.read_export(file) if line.kind == "pruned"]
        with open(path, encoding="ascii") as file:
            anchor = chain.anchor_of(pruned)
            return chain.verify(
                chain.read_export(file), head=head, anchor=anchor, allow_pruned=allow_pruned
            )
    except ValueError as error:
        raise InvalidRequest(f"--file: {path!r}: {error}") from None


def _moment(option: str, text: str) -> str:
    """An age or a date, as the trail writes times."""
    import re
    from datetime import UTC, datetime, timedelta

    from belljar.errors import InvalidRequest
    from belljar.trail import records

    try:
        if age := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", text, re.ASCII):
            seconds = float(age[1]) * _UNITS[age[2]]
            return records.stamp(datetime.now(UTC) - timedelta(seconds=seconds))
        return records.stamp(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{option}: {text[:40]!r} is neither an age nor a date", hint="90d, 12h, 2030-01-31"
        ) from None


# -- drawing ---------------------------------------------------------------------------------------


def _draw(entries: list[Recorded]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("time", "id"):
        table.add_column(name, no_wrap=True)
    for name in ("tenant", "door", "what", "engine", "status"):
        table.add_column(name, overflow="fold")
    table.add_column("ms", justify="right", no_wrap=True)
    for entry in entries:
        attempt, end = entry.attempt, entry.end or {}
        what = f"{attempt.get('action', 'damaged')} {attempt.get('language') or ''}"
        table.add_row(
            _safe(str(attempt.get("time"))[:19].replace("T", " ")),
            _safe(str(attempt.get("id"))[:12]),
            _safe(attempt.get("tenant")),
            _safe(attempt.get("door")),
            _safe(what),
            _safe(end.get("engine") or ""),
            _coloured(entry),
            f"{end['duration_ms']:.1f}" if isinstance(end.get("duration_ms"), float) else "",
        )
    console.print(table)


def _tell_egress(tried: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        from json import dumps

        print(dumps(tried, indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for one in tried:
        count = f" ({_safe(one['count'])} times)" if one.get("count", 1) != 1 else ""
        what = f"{one.get('method', '')} {one.get('host', '')}:{one.get('port', '')}"
        how = (
            one.get("damaged")
            or one.get("why")
            or (
                f"{one.get('http_status', '')} {one.get('address', '')}, "
                f"{one.get('bytes_sent', 0)} bytes sent, {one.get('bytes_received', 0)} received"
            )
        )
        status = str(one.get("status"))
        colour = {"allowed": "green", "blocked": "red"}.get(status, "yellow")
        console.print(
            f"{_safe(str(one['time'])[:19].replace('T', ' '))}  {_safe(str(one['id'])[:12])}"
            f"  {_safe(one.get('tenant'))}  [{colour}]{_safe(status)}[/]{count}"
            f"  {_safe((what + str(one.get('path', ''))).strip())}: {_safe(str(how).strip())}"
        )


def _draw_one(entry: Recorded) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"{_safe((entry.attempt or entry.end or {}).get('id'))}: {_coloured(entry)}")
    for title, content in (("asked", entry.attempt), ("ended", entry.end)):
        if not content:
            continue
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in sorted(content.items()):
            if name not in ("id", "kind", "code") and value not in (None, "", [], {}):
                table.add_row(name, _safe(_text(value)))
        console.print(table)
    if "code" in entry.attempt:
        console.print(_safe(entry.attempt["code"]))


def _text(value: Any) -> str:
    from json import dumps

    return value if isinstance(value, str) else dumps(value, ensure_ascii=False)


def _coloured(entry: Recorded) -> str:
    status = entry.status
    error = (entry.end or {}).get("error")
    shown = f"{status} ({error})" if error else status
    return f"[{_COLOURS.get(status, 'yellow')}]{_safe(shown)}[/]"


def _safe(value: object) -> str:
    """What a caller or the code chose, for a terminal."""
    from rich.markup import escape

    from belljar.cli.terminal import harmless

    text = str(value if value is not None else "").encode("utf-8", "backslashreplace").decode()
    return escape(harmless(text))


def _tell(verdict: Verdict) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    if verdict.sound:
        since = f", from {verdict.first} on" if verdict.first > 1 else ""
        console.print(f"[green]✓[/] {verdict.lines} lines{since}, each what was written")
        if verdict.open:
            console.print(f"  {len(verdict.open)} attempts have no end yet")
        console.print(f"  head: {verdict.head}")
        return
    for trouble in verdict.file:
        console.print(f"[red]✗[/] the database file: {escape(trouble)}")
    if verdict.problems:
        for problem in verdict.problems:
            console.print(f"[red]✗[/] {escape(problem.what)}")
        if verdict.more:
            console.print(f"  and {verdict.more} more problems")
        console.print(
            f"  {verdict.lines} lines before the first problem are what was written, "
            f"and {verdict.after} after it"
        )
    else:
        console.print(
            f"  {verdict.lines} lines are what was written, but searching may miss some; "
            "belljar trail export reads them all"
        )
