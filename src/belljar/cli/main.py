"""The entry point: from arguments to a verb, and from every error to a line and an exit status."""

from __future__ import annotations

import gc
import io
import os
import sys
import warnings

from belljar import linux_only
from belljar.cli import run, table
from belljar.cli.say import REFUSED, problem, say
from belljar.errors import BelljarError

VERBS = (
    *("run", "shell", "fetch", "engines", "doctor", "prove", "serve", "keys", "mcp"),
    *("env", "image", "trail", "version"),
)
USAGE = 2
_ANYWHERE = ("run", "shell", "fetch", "version")
"""They say themselves what needs Linux, and can be done at a server."""
INTERRUPTED = 130
UNREAD = 141
"""Nobody reads our output any more: what a shell says of a program that SIGPIPE ended."""
_NO_THREAD = ("can't start new thread",)
"""Python's words: the error has no type of its own."""


def call(arguments: list[str]) -> int:
    """Runs one command; returns its exit status."""
    verb = arguments[0] if arguments else ""
    if arguments in ([], ["env"], ["image"], ["keys"], ["trail"]):
        arguments = [*arguments, "--help"]
    try:
        if verb == "run" and (values := table.parse(run.OPTIONS, arguments[1:])) is not None:
            gc.disable()  # until all is loaded (session.py): looking for garbage in it is in vain
            return run.run(**values)
        if verb in VERBS and verb not in _ANYWHERE and not {"--help", "-h"} & set(arguments):
            linux_only.check()
        from belljar.cli import app

        return app.call(arguments)
    except BelljarError as error:
        say(error.full_message, hint=error.hint)
        if "--json" in arguments:
            import json

            print(json.dumps(problem(error)))
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return UNREAD
    except OSError as error:
        say(str(error))
        return REFUSED
    except Exception as error:
        if error.args == _NO_THREAD:
            say(_NO_THREAD[0], hint="are processes used up (ulimit -u), or is clone3 refused?")
            return REFUSED
        message = getattr(error, "format_message", None)  # typer's words for a usage error
        if message is None:
            raise
        say(message(), hint=f"belljar {verb} --help" if verb in VERBS else "belljar --help")
        # A usage error of `run` must not look like an exit status of the code.
        return REFUSED if verb == "run" else USAGE


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):  # neither closed nor somebody else's
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal need not know our marks
    warnings.showwarning = lambda message, *_, **__: say(str(message))
    status = call(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            status = status or UNREAD
        except (AttributeError, OSError):  # it is closed, or its disk is full
            status = status or REFUSED
    # Everything is closed by now; taking the interpreter apart would take as long as starting it.
    os._exit(status)


if __name__ == "__main__":
    main()
