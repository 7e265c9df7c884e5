"""The process that becomes the user's code.

Python code runs here, in the forked interpreter; every other program is executed over it.
"""

from __future__ import annotations

import builtins
import gc
import io
import json
import os
import resource
import signal
import sys
import time
import types

from . import ending, reporting, seeds
from .forking import Job, announce

# Modules of an interpreter that has only just started.
AT_START = frozenset(
    (
        "__main__",
        "_collections_abc",
        "_sitebuiltins",
        "abc",
        "builtins",
        "codecs",
        "encodings",
        "genericpath",
        "io",
        "marshal",
        "os",
        "posix",
        "posixpath",
        "site",
        "stat",
        "sys",
        "time",
        "zipimport",
    )
)


def become(job: Job) -> None:
    """Never returns."""
    if job.reseed:
        seeds.renew()
        seeds.renew_libraries()
    _apply_rlimits(job.rlimits)
    os.environ.clear()
    os.environ.update(job.env)
    if "TZ" in job.env:
        time.tzset()
    more_threads(job.env.get("OMP_NUM_THREADS", "1"))
    os.chdir(os.path.dirname(job.path))
    if job.argv is not None:
        _execute(job.argv)
    _run_python(job.path, job.report)


def more_threads(count: str) -> None:
    """Numeric libraries were loaded with one thread, since threads do not survive a fork."""
    if count != "1" and "threadpoolctl" in sys.modules:
        sys.modules["threadpoolctl"].threadpool_limits(int(count))


def _apply_rlimits(rlimits: dict[str, int]) -> None:
    for name, value in rlimits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


def _execute(argv: list[str]) -> None:
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them; a new program expects the default
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(argv[0], argv, os.environ)
    except OSError as error:
        os.write(2, ("belljar: cannot execute %s: %s\n" % (argv[0], error.strerror)).encode())
        ending.leave(126)


def _standard_streams() -> None:
    """Like those of a new start whose three descriptors are pipes."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        raw = io.FileIO(descriptor, mode, closefd=False)
        raw.name = "<%s>" % name
        buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            buffer,
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "surrogateescape",
            newline=None if mode == "r" else "\n",
            line_buffering=name == "stderr",
        )
        stream.mode = mode  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)


def make_streams_ahead() -> None:
    """Makes the standard streams for pipes that come later: the objects hold the descriptors'
    numbers, and what they found out about the files behind. Leaves /dev/null behind all three."""
    source, sink = os.pipe()
    for descriptor, end in ((0, source), (1, sink), (2, sink)):
        os.dup2(end, descriptor)
    _standard_streams()
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for descriptor in (source, sink, null):
        os.close(descriptor)


def prepare(*, hidden: list[str]) -> None:
    """What can be done before the code is known.

    `hidden`: modules to forget, so that the code cannot import the agent. They come as a list made
    in the zygote: looking through all modules here would write to each one's reference count."""
    reporting.trusted_path[:] = sys.path
    for name in hidden:
        sys.modules.pop(name, None)
    seeds.renew()
    sys.dont_write_bytecode = True
    gc.enable()


def rehearse(rehearsal: str) -> None:
    """Walks once through what every run does. A fork shares its parent's memory until a page is
    written, and each first write costs microseconds: better now than when somebody waits.

    `rehearsal`: a typical first use of the environment's packages."""
    sink = io.StringIO()
    source = "import sys\ndef f(x):\n    return [str(x)]\nprint(*f(1), file=sink)\n"
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, sink=sink)
    with open("/etc/passwd", "rb") as file:
        file.read()
    try:
        source += rehearsal
        exec(compile(source.encode(), "rehearsal", "exec", dont_inherit=True), module.__dict__)
        raise SystemExit
    except SystemExit as leave:
        ending.exit_status(leave.code)
    os.environ.update(dict(os.environ))
    json.loads(json.dumps({"rehearsal": [1, None, "text"]}))
    ending.clear(module)
    ending.collect()
    ending.flush_files()


def _run_python(path: str, report: object) -> None:
    sys.argv = [path]
    sys.orig_argv = [sys.executable, path]
    for folder in os.environ.get("PYTHONPATH", "").split(":"):  # as a new start would
        if folder and folder not in sys.path:
            sys.path.append(folder)
    sys.path.insert(0, os.path.dirname(path))
    _make_room(os.path.dirname(path))
    known = len(sys.modules)
    status = ending.finish(_run_main(path, report), known)
    announce(report, status)
    ending.leave(status)


def _run_main(path: str, report: object) -> int:
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins, __cached__=None)
    if sys.version_info < (3, 14):  # since then they are made when somebody asks for them
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    try:
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as leave:
        return ending.exit_status(leave.code)
    except BaseException as error:
        return ending.uncaught(error, report)
    return 0


def _make_room(folder: str) -> None:
    """A caller's own module goes before one of the same name that is only here because it was
    imported ahead; those that every interpreter has at its start stay, as they do there."""
    for entry in os.listdir(folder):
        name = entry[:-3] if entry.endswith(".py") else entry
        if name in sys.modules and name not in AT_START:
            for loaded in [n for n in sys.modules if n == name or n.startswith(name + ".")]:
                del sys.modules[loaded]
