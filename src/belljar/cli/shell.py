"""`belljar shell`: a prompt in a sandbox that is kept."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from belljar.cli import network, numbers, run, there
from belljar.cli.say import REFUSED, say
from belljar.cli.table import Option
from belljar.errors import BelljarError, InvalidRequest

if TYPE_CHECKING:
    from belljar.cli.shell_session import Session
    from belljar.model import Result

_SHARED = (
    "environment", "engine", "need", "timeout", "memory", "cpus", "processes", "disk", "disk_files",
    "open_files", "output_bytes", "env", "files",
)  # fmt: skip
OPTIONS = (
    Option(
        "language",
        "--language -l",
        "NAME",
        "python, javascript, typescript or bash.",
        default="python",
    ),
    *(option for option in run.OPTIONS if option.keyword in _SHARED),
    Option(
        "inputs",
        "--input -i",
        "PATH",
        "A file or folder to see, read-only and not copied, in /data/input. Repeatable.",
        "many",
    ),
    Option("packages", "--package", "REQUIREMENT", "A package to have. Repeatable.", "many"),
    *network.OPTIONS,
    Option("pictures", "--pictures", "DIR", "Where pictures go. Default: a temporary folder."),
    Option(
        "images",
        "--images",
        "HOW",
        "Pictures on the terminal: auto, kitty, iterm2, sixel or none.",
        default="auto",
    ),
    *there.OPTIONS,
)
EPILOG = """\
Variables, imports and files stay from line to line. Lines that begin with % branch the sandbox
(%fork, %switch), go back (%rollback) and move files (%files, %upload, %download): %help lists them.
Ctrl-C interrupts the code, Ctrl-D ends the shell.

Without a terminal the code on standard input is run, and the first failure ends it with the exit
statuses of belljar run.

\b
Examples:
  belljar shell
  belljar shell --environment data --input table.csv
  belljar shell --language bash --timeout 5
  belljar shell --allow-host "*.example.com"
  belljar shell < script.py
  belljar shell --url https://belljar.example
"""
LEAVE = ("exit", "quit", "exit()", "quit()")
HISTORY_LINES = 10_000
SIGNALLED = 128


class _Stopped(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def shell(
    *,
    language: str,
    environment: str,
    engine: str,
    need: list[str],
    timeout: str | None,
    memory: str | None,
    cpus: str | None,
    processes: str | None,
    disk: str | None,
    disk_files: str | None,
    open_files: str | None,
    output_bytes: str | None,
    env: list[str],
    files: list[str],
    inputs: list[str],
    packages: list[str],
    allow_host: list[str],
    allow_method: list[str],
    allow_path: list[str],
    secret: list[str],
    secret_header: list[str],
    pictures: str | None,
    images: str,
    url: str | None,
    key: str | None,
) -> int:
    """Open a prompt in a sandbox that is kept until you leave."""
    options: dict[str, Any] = {
        "language": language,
        "environment": environment,
        "engine": engine,
        "need": tuple(name for item in need for name in item.split(",")),
        "timeout_s": numbers.number("--timeout", timeout),
        "memory_bytes": numbers.size("--memory", memory),
        "cpus": numbers.number("--cpus", cpus),
        "processes": numbers.count("--processes", processes),
        "disk_bytes": numbers.size("--disk", disk),
        "disk_files": numbers.count("--disk-files", disk_files),
        "open_files": numbers.count("--open-files", open_files),
        "output_bytes": numbers.size("--output-bytes", output_bytes),
        "env": run.variables(env),
        "files": run.read_files("--file", files),
        "inputs": _mounted(inputs),
        "packages": tuple(packages),
        **network.options(allow_host, allow_method, allow_path, secret, secret_header),
    }
    from belljar.cli import shell_pictures

    if images not in shell_pictures.HOW:
        raise InvalidRequest(f"--images: {images!r} is none of {', '.join(shell_pictures.HOW)}")
    if pictures is not None:
        from belljar.cli.files import make_folder

        make_folder("--pictures", pictures)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # Windows has but the first
            signal.signal(getattr(signal, name), _stop)
    try:
        return _shell(options, there.place(url, key), pictures=pictures, images=images)
    except _Stopped as stopped:
        return SIGNALLED + stopped.number


def _mounted(paths: list[str]) -> dict[str, Path]:
    """Each under its own name."""
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        name = Path(os.path.abspath(path)).name
        if name in found:
            raise InvalidRequest(
                f"--input: two are called {name!r}", hint="put them into one folder"
            )
        found[name] = path
    return found


def _shell(
    options: dict[str, Any], where: dict[str, str], *, pictures: str | None, images: str
) -> int:
    from belljar.cli.progress import Bar
    from belljar.cli.shell_screen import Screen
    from belljar.cli.shell_session import PERSON, PERSON_THERE, Session
    from belljar.jar import Belljar
    from belljar.runtimes import languages
    from belljar.settings import Settings

    language = languages.get(options["language"]).name
    progress = Bar(title="building the environment")
    settings = None if where else Settings(pool_size=0)
    options = {**PERSON_THERE, **there.sendable(options)} if where else {**PERSON, **options}
    url, key = where.get("url", ""), where.get("key", "")
    with Belljar(settings, on_progress=progress.update, url=url, key=key) as jar:
        try:
            session = Session(jar, options, Screen(folder=pictures, how=images))
        finally:
            progress.close()
        try:
            if sys.stdin is not None and sys.stdin.isatty():
                return _talk(session, language)
            return _script(session)
        finally:
            session.close()


# -- with a person ---------------------------------------------------------------------------------


def _talk(session: Session, language: str) -> int:
    session.screen.line(f"{language} in a sandbox; %help says what else there is, Ctrl-D leaves")
    history = _History(language)
    try:
        while True:
            try:
                text = _read(session, language)
                if text is None or text.strip() in LEAVE:
                    return 0
                _act(session, text)
            except KeyboardInterrupt:
                session.screen.line("")
            except BelljarError as error:
                say(error.full_message, hint=error.hint)
            except OSError as error:
                if isinstance(error, BrokenPipeError):
                    raise
                say(str(error))
    finally:
        history.save()


def _read(session: Session, language: str) -> str | None:
    """One piece of code, or one command; None at the end."""
    from belljar.cli import shell_commands, shell_lines

    where = "" if len(session.branches) == 1 else f"{session.current} "
    prompt = f"{where}[{session.branch.runs + 1}]> "
    try:
        text = input(prompt)
    except EOFError:
        session.screen.line("")
        return None
    if shell_commands.find(text):
        return text
    try:
        while not shell_lines.complete(language, text):
            text += "\n" + input("." * (len(prompt) - 1) + " ")
    except EOFError:
        session.screen.line("")
    return shell_lines.unwrap(text)


def _act(session: Session, text: str) -> Result | None:
    from belljar.cli import shell_commands

    if found := shell_commands.find(text):
        shell_commands.do(session, *found)
        return None
    if not text.strip():
        return None
    result = session.run(text)
    for line in _explain(result):
        say(line)
    return result


def _explain(result: Result) -> Iterator[str]:
    lost = "; variables are lost, %rollback brings earlier ones back"
    end = "" if result.state_kept else lost
    if result.status == "timeout":
        yield f"timed out (see --timeout){end}"
    elif result.status == "out_of_memory":
        yield f"out of memory (see --memory){end}"
    elif result.status == "denied":
        yield "refused by the static filter, nothing was run"
    elif not result.state_kept:
        yield f"the code ended its interpreter{end}"
    for name in ("stdout", "stderr"):
        if getattr(result.dropped, name):
            yield f"{name}: some of the middle was dropped (see --output-bytes)"
    from belljar.cli import verdict

    yield from verdict.kept_out(result)
    for warning in result.warnings:
        yield f"warning: {warning}"


class _History:
    """What was typed, in a file that nobody else can read. Without readline there is none."""

    def __init__(self, language: str) -> None:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        self._path = Path(state) / "belljar" / f"shell-{language}"
        try:
            import readline
        except ImportError:
            return
        readline.parse_and_bind('"\\t": "    "')
        readline.set_history_length(HISTORY_LINES)
        try:
            readline.read_history_file(self._path)
        except OSError:
            pass

    def save(self) -> None:
        if "readline" not in sys.modules:
            return
        import readline

        before = os.umask(0o077)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            self._path.chmod(0o600)
            readline.write_history_file(self._path)
        except OSError as error:
            say(f"the history was not saved: {error}")
        finally:
            os.umask(before)


# -- without one -----------------------------------------------------------------------------------


def _script(session: Session) -> int:
    """Runs what is on standard input. It is cut at commands and separators, never parsed here."""
    from belljar.cli import verdict

    for piece in _pieces(run.read_code(None, "-")):
        result = _act(session, piece)
        if result is not None and not result.success:
            return verdict.exit_status(result) or REFUSED
    return 0


def _pieces(text: str) -> Iterator[str]:
    from belljar.cli import shell_commands, shell_lines

    lines: list[str] = []
    for line in text.splitlines():
        separator = line.strip() == shell_lines.SEPARATOR
        if separator or shell_commands.find(line):
            yield "\n".join(lines)
            lines = []
            if not separator:
                yield line
        else:
            lines.append(line)
    yield "\n".join(lines)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped(number)
