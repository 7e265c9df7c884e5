"""The magics, and the other lines that only notebooks understand. `cells` turns each into a call
of a method of Magics."""

from __future__ import annotations

import os
import shlex
import sys
import time
import types
from typing import Any, Protocol

from . import shell
from .imports import library
from .outputs import Outputs
from .plain import plain
from .shell import UsageError

_say = print  # the code may give the name another meaning


class Interpreter(Protocol):
    """What magics need of the notebook."""

    namespace: dict[str, Any]
    outputs: Outputs
    name: str

    def execute(self, text: str, name: str, *, line: int = 0) -> Any: ...

    def reset(self) -> None: ...


class Magics:
    def __init__(self, notebook: Interpreter) -> None:
        self._notebook = notebook
        self._before = ""

    # -- the doors -------------------------------------------------------------------------------

    def line(self, name: str, text: str) -> Any:
        caller = sys._getframe(1)
        method = getattr(self, "_line_" + name, None)
        if method is not None:
            return method(text, caller.f_lineno)
        if name in _COMMANDS:
            return self._run_command("%s %s" % (name, shell.expand(text, caller)))
        if name in _NOTHING:
            if _NOTHING[name]:
                _say("belljar: %%%s %s" % (name, _NOTHING[name]), file=sys.stderr)
            return None
        if hasattr(self, "_cell_" + name):
            raise UsageError("%%%s is for a whole cell: %%%%%s in its first line" % (name, name))
        raise UsageError("%%%s is not known here. Known: %s" % (name[:40], _known(type(self))))

    def cell(self, name: str, text: str, body: str, above: int) -> Any:
        """`above`: how many lines there are before the body."""
        if name in _SHOWN:
            return self._notebook.outputs.send("display", {_SHOWN[name]: body}, {})
        method = getattr(self, "_cell_" + name, None)
        if method is None:
            raise UsageError(
                "%%%%%s is not known here. Known: %s" % (name[:40], _known(type(self)))
            )
        return method(text, body, above)

    def system(self, command: str) -> None:
        self._run_command(shell.expand(command, sys._getframe(1)))

    def output(self, command: str) -> shell.Lines:
        command = shell.expand(command, sys._getframe(1))
        shell.refuse_install(command)
        _flush()
        status, output = shell.run(command, capture=True)
        self._notebook.namespace["_exit_code"] = status
        return shell.Lines(output.decode("utf-8", "replace").splitlines())

    def _run_command(self, command: str, program: str = "") -> int:
        shell.refuse_install(command)
        _flush()
        status, _ = shell.run(command, capture=False, program=program)
        self._notebook.namespace["_exit_code"] = status
        return status

    def help(self, name: str, detailed: bool) -> None:
        found = self._find(name, sys._getframe(1))
        _say(describe(name, found, detailed=detailed))

    def _find(self, name: str, frame: types.FrameType) -> Any:
        first, *rest = name.strip(".").split(".")
        for scope in (frame.f_locals, frame.f_globals, vars(sys.modules["builtins"])):
            if first in scope:
                found = scope[first]
                for part in rest:
                    found = getattr(found, part)
                return found
        raise NameError("name %r is not defined" % first)

    # -- time ------------------------------------------------------------------------------------

    def _line_time(self, text: str, line: int) -> Any:
        return self._timed("\n" * (line - 1) + text, line)

    def _cell_time(self, text: str, body: str, above: int) -> Any:
        if text:
            self._notebook.execute("\n" * (above - 1) + text, self._notebook.name, line=above)
        return self._timed("\n" * above + body, 0)

    def _timed(self, text: str, line: int) -> Any:
        before, wall = os.times(), time.perf_counter()
        try:
            return self._notebook.execute(text, self._notebook.name, line=line)
        finally:
            elapsed, after = time.perf_counter() - wall, os.times()
            user, system = after.user - before.user, after.system - before.system
            spans = tuple(_span(seconds) for seconds in (user, system, user + system, elapsed))
            _say("CPU times: user %s, sys: %s, total: %s\nWall time: %s" % spans)

    def _line_timeit(self, text: str, line: int) -> None:
        options, statement = _timeit_options(text)
        self._measure(statement, "pass", options)

    def _cell_timeit(self, text: str, body: str, above: int) -> None:
        options, setup = _timeit_options(text)
        self._measure(body, setup or "pass", options)

    def _measure(self, statement: str, setup: str, options: dict[str, int]) -> None:
        timer = library("timeit").Timer(statement, setup, globals=self._notebook.namespace)
        loops = options.get("-n") or timer.autorange()[0]
        spans = [seconds / loops for seconds in timer.repeat(options.get("-r", 7), loops)]
        mean = sum(spans) / len(spans)
        deviation = (sum((span - mean) ** 2 for span in spans) / len(spans)) ** 0.5
        _say(
            "%s ± %s per loop (mean ± std. dev. of %d runs, %s loops each)"
            % (_span(mean), _span(deviation), len(spans), format(loops, ","))
        )

    # -- folders, variables of the environment ---------------------------------------------------

    def _line_pwd(self, text: str, line: int) -> str:
        return os.getcwd()

    def _line_cd(self, text: str, line: int) -> None:
        target = " ".join(shlex.split(text)) or "~"
        here = os.getcwd()
        os.chdir(self._before if target == "-" and self._before else os.path.expanduser(target))
        self._before = here
        _say(os.getcwd())

    def _line_env(self, text: str, line: int) -> Any:
        if not text:
            return dict(os.environ)
        name, found, value = text.partition("=")
        if not found:
            name, found, value = text.partition(" ")
        name, value = name.strip(), value.strip()
        if not found:
            if name not in os.environ:
                raise UsageError("there is no environment variable %s" % name)
            return os.environ[name]
        os.environ[name] = value
        _say("env: %s=%s" % (name, value))
        return None

    _line_set_env = _line_env

    # -- the namespace ---------------------------------------------------------------------------

    def _line_who(self, text: str, line: int) -> None:
        names = self._names(text)
        _say("\t".join(names) if names else "Nothing is defined yet.")

    def _line_whos(self, text: str, line: int) -> None:
        rows = [("Variable", "Type", "Data/Info")]
        for name in self._names(text):
            value = self._notebook.namespace[name]
            rows.append((name, type(value).__name__, _short(value)))
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        for row in rows:
            _say("%-*s  %-*s  %s" % (widths[0], row[0], widths[1], row[1], row[2]))

    def _names(self, kinds: str) -> list[str]:
        wanted = set(kinds.split())
        return sorted(
            name
            for name, value in self._notebook.namespace.items()
            if not name.startswith("_") and (not wanted or type(value).__name__ in wanted)
        )

    def _line_reset(self, text: str, line: int) -> None:
        self._notebook.reset()

    # -- files -----------------------------------------------------------------------------------

    def _line_run(self, text: str, line: int) -> None:
        """A program of its own, whose variables are here afterwards."""
        words = shlex.split(text)
        shares = words[:1] == ["-i"]
        if not words[shares:]:
            raise UsageError("%run needs a file: %run [-i] file.py [arguments]")
        path, *arguments = words[shares:]
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        kept = sys.argv, sys.modules["__main__"], list(sys.path)
        main = types.ModuleType("__main__")
        if shares:
            main.__dict__.update(self._notebook.namespace)
        main.__dict__["__file__"] = path
        sys.argv, sys.modules["__main__"] = [path, *arguments], main
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        try:
            exec(code, main.__dict__)
        except SystemExit as leave:
            if leave.code:
                raise
        finally:
            sys.argv, sys.modules["__main__"], sys.path[:] = kept
            self._notebook.namespace.update(
                {name: value for name, value in vars(main).items() if not name.startswith("__")}
            )

    def _cell_writefile(self, text: str, body: str, above: int) -> None:
        words = shlex.split(text)
        adds = words[:1] == ["-a"]
        if len(words) != 1 + adds:
            raise UsageError("%%writefile needs one file name: %%writefile [-a] name")
        path = os.path.expanduser(words[-1])
        said = "Writing" if not os.path.exists(path) else "Appending to" if adds else "Overwriting"
        with open(path, "a" if adds else "w", encoding="utf-8") as file:
            file.write(body if body.endswith("\n") or not body else body + "\n")
        _say("%s %s" % (said, words[-1]))

    # -- other programs --------------------------------------------------------------------------

    def _cell_bash(self, text: str, body: str, above: int) -> None:
        self._script("bash", body)

    def _cell_sh(self, text: str, body: str, above: int) -> None:
        self._script("sh", body)

    def _script(self, program: str, body: str) -> None:
        status = self._run_command(body, program)
        if status:
            raise library("subprocess").CalledProcessError(status, program)

    def _line_pip(self, text: str, line: int) -> None:
        self._run_command("pip " + text)

    _line_conda = _line_pip

    def _line_lsmagic(self, text: str, line: int) -> None:
        _say(_known(type(self)))


_COMMANDS = ("cat", "cp", "head", "ls", "mkdir", "mv", "rm", "rmdir", "tail")

_NOTHING = {
    "matplotlib": "",
    "config": "has no effect here",
    "load_ext": "has no effect here: there are no extensions",
    "autoreload": "has no effect here: importlib.reload(module) takes a changed module",
}

_SHOWN = {
    "html": "text/html",
    "latex": "text/latex",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
}


def _known(magics: type) -> str:
    names = ["%" + name[6:] for name in vars(magics) if name.startswith("_line_")]
    names += ["%" + name for name in (*_COMMANDS, *_NOTHING)]
    cells = ["%%" + name[6:] for name in vars(magics) if name.startswith("_cell_")]
    cells += ["%%" + name for name in _SHOWN]
    return " ".join([*sorted(names), *sorted(cells)])


def _flush() -> None:
    """What was printed before a command comes before what the command prints."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def _timeit_options(text: str) -> tuple[dict[str, int], str]:
    options: dict[str, int] = {}
    while text[:2] in ("-n", "-r"):
        words = text[2:].split(None, 1)
        if not words or not words[0].isdigit():
            raise UsageError("%%timeit: %s needs a number" % text[:2])
        options[text[:2]] = max(1, int(words[0]))
        text = words[1] if len(words) > 1 else ""
    return options, text


def _span(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("μs", 1e-6)):
        if seconds >= size:
            return "%.3g %s" % (seconds / size, unit)
    return "%.3g ns" % (seconds * 1e9)


def _short(value: object) -> str:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return "×".join(str(size) for size in shape) or "a single value"
    if isinstance(value, (list, tuple, dict, set)):
        return "n=%d" % len(value)
    return " ".join(plain(value, limit=60).split())


def describe(name: str, value: object, *, detailed: bool) -> str:
    """What `name?` shows; `detailed`: with the source."""
    inspect = library("inspect")
    lines = []
    if callable(value):
        try:
            lines.append("Signature: %s%s" % (name, inspect.signature(value)))
        except (TypeError, ValueError):
            pass
    else:
        lines.append("Value:     %s" % plain(value, limit=1000))
    lines.append("Type:      %s" % type(value).__name__)
    source = ""
    if detailed:
        try:
            source = inspect.getsource(value)
        except (OSError, TypeError):
            pass
    if source:
        return "\n".join([*lines, "Source:", source])
    return "\n".join([*lines, "Docstring:", inspect.getdoc(value) or "none"])
