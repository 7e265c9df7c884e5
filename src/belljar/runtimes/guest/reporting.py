"""What an interpreter imports only when it has something to report.

To report an error or a warning, CPython imports modules of its own; which ones depends on the
version and on the error. The code's folder comes first on the path, so reporting an error would run
a file called `tokenize.py` there. Two things prevent that: a warm interpreter has reported
everything once (`rehearse`), and what is still missing is looked for among the interpreter's own
modules first (`OwnModulesFirst`).
"""

from __future__ import annotations

import io
import linecache
import sys
import traceback
import types
import warnings

_format_exception = traceback.format_exception

trusted_path = list(sys.path)
"""Where the interpreter's own modules and the packages are; filled in before code can change it."""

# One for each part of CPython that imports on demand: suggestions for names, keywords and modules,
# errors of the parser, groups, and warnings about an object that was never closed or awaited.
_REPORTED = (
    "prnt(1)",
    "import os; os.pth",
    "from os import pth",
    "import no_such_module",
    "compile('whille True:\\n    pass\\n', '<rehearsal>', 'exec')",
    "compile('if True:\\npass', '<rehearsal>', 'exec')",
    "raise BaseExceptionGroup('rehearsal', [ValueError(1)])",
    "try:\n    {}[1]\nexcept KeyError as error:\n    raise SystemError from error",
)


class OwnModulesFirst:
    """A context in which no file of the code's can stand in for one of the interpreter's modules.
    The code's folder stays on the path, at its end: an exception may need a module from there to
    describe itself."""

    def __enter__(self) -> None:
        self._path: list[str] = getattr(sys, "path", [])  # unless the code made it something else
        sys.path = [*trusted_path, *(self._path if type(self._path) is list else ())]

    def __exit__(self, *failure: object) -> None:
        sys.path = self._path


def rehearse() -> None:
    """Reports every kind of error once, to nobody, so that all forks have what that imports."""
    for source in _REPORTED:
        try:
            # With a file to quote lines from, which is read: a short one.
            exec(compile(source, io.__file__, "exec", dont_inherit=True), {})
        except BaseException as error:
            trace = error.__traceback__
            _format_exception(type(error), error, trace and trace.tb_next)
    warnings.formatwarning("rehearsal", UserWarning, io.__file__, 1)
    _unclosed()
    linecache.clearcache()


def _unclosed() -> None:
    """A warning that comes with its object also says how to find where that was made."""
    message = warnings.WarningMessage(
        "rehearsal", ResourceWarning, io.__file__, 1, source=types.SimpleNamespace()
    )
    getattr(warnings, "_formatwarnmsg", repr)(message)
