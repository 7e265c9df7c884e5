"""What begins with % in the shell: branches, going back, files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from belljar.cli.shell_session import Session
from belljar.errors import InvalidRequest
from belljar.policy.quote import size

Lines = Iterator[str]
_COMMAND = re.compile(r"%(\w+)(?:\s+(.*))?\s*")


@dataclass(frozen=True)
class Command:
    usage: str
    help: str
    most: int
    """Arguments."""
    do: Callable[[Session, list[str]], Lines]


def find(line: str) -> tuple[Command, str] | None:
    """A command and the rest of its line; None for what is code, such as a magic of Python's."""
    match = _COMMAND.fullmatch(line.strip())
    if not match or match[1] not in COMMANDS:
        return None
    return COMMANDS[match[1]], match[2] or ""


def do(session: Session, command: Command, rest: str) -> None:
    try:
        arguments = shlex.split(rest)
    except ValueError as error:
        raise InvalidRequest(f"{command.usage}: {error}") from None
    if len(arguments) > command.most:
        raise InvalidRequest(f"{arguments[command.most]!r} is too much", hint=command.usage)
    for line in command.do(session, arguments):
        session.screen.line(line)


def _fork(session: Session, arguments: list[str]) -> Lines:
    names = session.fork(_whole(arguments, "%fork [COUNT]") or 1)
    yield f"{', '.join(names)}: as {session.current} is now; %switch {names[0]} goes there"


def _branches(session: Session, arguments: list[str]) -> Lines:
    for name, branch in session.branches.items():
        mark = "*" if name == session.current else " "
        yield f"{mark} {name:8} {branch.runs} runs"


def _switch(session: Session, arguments: list[str]) -> Lines:
    session.switch(_needed(arguments, "%switch NAME"))
    yield f"in {session.current}"


def _close(session: Session, arguments: list[str]) -> Lines:
    name = _needed(arguments, "%close NAME")
    session.end_branch(name)
    yield f"{name} has ended"


def _rollback(session: Session, arguments: list[str]) -> Lines:
    run_id = session.rollback(_whole(arguments, "%rollback [RUN]"))
    yield f"variables and files are as before run {run_id}"


def _checkpoints(session: Session, arguments: list[str]) -> Lines:
    known = session.box.checkpoints()
    if not known:
        yield "there is nothing to go back to yet"
    for run_id in known:
        lines = session.branch.codes.get(run_id, "").strip().splitlines()
        yield f"{run_id:4}  {lines[0][:70] if lines else ''}".rstrip()


def _restart(session: Session, arguments: list[str]) -> Lines:
    session.restart()
    yield f"{session.current} is a new sandbox"


def _files(session: Session, arguments: list[str]) -> Lines:
    count = 0
    for info in session.box.files.list(arguments[0] if arguments else "/workspace"):
        count += 1
        name = info.printable + ("/" if info.is_folder else "")
        yield f"{size(info.size) if info.is_file else info.kind:>12}  {name}"
    if not count:
        yield "no files"


def _upload(session: Session, arguments: list[str]) -> Lines:
    local = Path(_needed(arguments, "%upload LOCAL [PATH]"))
    path = arguments[1] if len(arguments) > 1 else f"/workspace/{local.name}"
    yield f"{path}: {size(session.box.files.upload(local, path))}"


def _download(session: Session, arguments: list[str]) -> Lines:
    path = _needed(arguments, "%download PATH [LOCAL]")
    local = arguments[1] if len(arguments) > 1 else path.rpartition("/")[2]
    if local in ("", ".", ".."):
        raise InvalidRequest(f"{path!r} names no file", hint="%download PATH [LOCAL]")
    yield f"{local}: {size(session.box.files.download(path, local))}"


def _install(session: Session, arguments: list[str]) -> Lines:
    _needed(arguments, "%install PACKAGE…")
    for name, version in session.box.install(*arguments).items():
        yield f"{name} {version}"


def _help(session: Session, arguments: list[str]) -> Lines:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        yield f"{command.usage:{width}}  {command.help}"
    yield ""
    yield "Ctrl-C interrupts a run, twice kills it; Ctrl-D or exit ends the shell."
    yield "A line of nothing but %% begins, and ends, code that is run as it is."


MANY = 1000
COMMANDS: dict[str, Command] = {
    "fork": Command("%fork [COUNT]", "branch this sandbox", 1, _fork),
    "branches": Command("%branches", "the sandboxes there are", 0, _branches),
    "switch": Command("%switch NAME", "go to another one", 1, _switch),
    "close": Command("%close NAME", "end one", 1, _close),
    "rollback": Command("%rollback [RUN]", "back to before a run, or the last", 1, _rollback),
    "checkpoints": Command("%checkpoints", "runs that can be undone", 0, _checkpoints),
    "restart": Command("%restart", "a new sandbox in this place", 0, _restart),
    "files": Command("%files [FOLDER]", "what is in a folder (/workspace)", 1, _files),
    "upload": Command("%upload LOCAL [PATH]", "copy a file into the sandbox", 2, _upload),
    "download": Command("%download PATH [LOCAL]", "copy one out of it", 2, _download),
    "install": Command("%install PACKAGE…", "add packages", MANY, _install),
    "help": Command("%help", "this list", 0, _help),
}


def _needed(arguments: list[str], usage: str) -> str:
    if not arguments:
        raise InvalidRequest("something is missing", hint=usage)
    return arguments[0]


def _whole(arguments: list[str], usage: str) -> int | None:
    if not arguments:
        return None
    if not re.fullmatch(r"\d{1,9}", arguments[0]):
        raise InvalidRequest(f"{arguments[0]!r} is not a whole number", hint=usage)
    return int(arguments[0])
