"""The agent and its runner in a Python of their own: what containers and machines start.

    python3 -I standalone.py CONFIGURATION

The configuration is one JSON object:
    stream        a path to open (a serial port), or [in, out]: descriptors
    roots         {"workspace": path, "input": path, "output": path}; for a kept sandbox also "tmp"
                  and "store", where checkpoints have their files. Or descriptors instead of paths
    user          [uid, gid] to give the code when we are root; null when we are nobody already
    package_path  folders with packages
    preload       modules to import before the first run
    rehearsal     a typical first use of them
    rehearse      there is time, since nobody waits yet
    snapshot      optional: say READY, then wait for one byte while copies are made of us. Each copy
                  that gets one (REHEARSE or AT_ONCE) says READY for itself
    kept          optional: the sandbox lives from run to run, and `resident` is loaded

Must be pid 1 of its pid namespace: it kills and reaps everything in it. Also loadable as
`belljar_guest.standalone` or from any other folder that holds this package's files.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
import types
from collections.abc import Callable

if __name__ == "__main__":  # a file among its neighbours: make the folder a package
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, os.path.dirname(_folder))
    __package__ = os.path.basename(_folder)
    importlib.import_module(__package__)
    del sys.path[0]

from . import agent, forking, protocol, reporting, runner, seeds, watch

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38

AT_ONCE, REHEARSE = b"w", b"r"
"""To a copy: somebody waits, or there is time to touch the memory that a run will need."""


class Place:
    """What a wall adds from inside; this one adds nothing."""

    watched: Callable[[int, int], watch.Watched] = watch.Watched

    def enter(self) -> None:
        """In each process for the code, while it is still root (if it ever was)."""

    def seal(self) -> None:
        """The same, as the last thing before it waits."""

    def awake(self, stream: int) -> None:
        """In each copy of a snapshot: takes what its host says before all else."""

    def keep(self) -> None:
        """In pid 1 of a kept sandbox: what it does to files from now on it does as the code."""

    def name_hosts(self, text: str) -> None:
        """Makes it /etc/hosts. Where that cannot be, who knows of no proxy finds no name."""

    def own_modules(self) -> list[str]:
        """What the code must not find imported."""
        own = __name__.rpartition(".")[0] or str(__package__)
        return [name for name in sys.modules if name == own or name.startswith(own + ".")]


def main(text: str, place: Place | None = None) -> None:
    """Never returns."""
    place = place or Place()
    configuration = json.loads(text)
    stream, out = _open(configuration["stream"])
    try:
        roots = {
            name: path
            if isinstance(path, int)
            else os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for name, path in configuration["roots"].items()
        }
        if os.getpid() != 1:
            raise RuntimeError("the agent must be pid 1, so that everything inside ends with it")
        resident = _resident() if configuration.get("kept") else None
        _warm_up(configuration)
        harden = _hardening(configuration, place)
        asleep = configuration.get("snapshot", False)
        first = forking.fork_runner(
            lambda walls_stand: _copied(configuration, harden) if asleep else harden()
        )
        if isinstance(first, forking.Waiting):
            if resident:
                resident.be_interpreter(rehearse=configuration["rehearse"] and not asleep)
            return runner.become(first.job())
        prctl()(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        rehearse = _sleep(stream, out, first, place) if asleep else configuration["rehearse"]
        if resident:
            place.keep()
    except BaseException as error:
        fault = {"step": "agent", "message": "%s: %s" % (type(error).__name__, error), "hint": ""}
        os.write(out, protocol.message(protocol.FAULT, fault))
        os._exit(1)
    if resident:
        resident.live(
            stream,
            out,
            roots,
            first,
            harden=harden,
            watched=place.watched,
            name_hosts=place.name_hosts,
        )
    waiting = agent.serve(
        stream,
        roots,
        first,
        harden=harden,
        rehearse=rehearse,
        out=out,
        watched=place.watched,
        owner=configuration["user"],
        name_hosts=place.name_hosts,
    )
    if waiting is None:
        os._exit(0)
    runner.become(waiting.job())


def _resident() -> types.ModuleType:
    """Loaded for sandboxes that need it: it is most of what the guest consists of."""
    from . import resident

    return resident


def _open(stream: object) -> tuple[int, int]:
    """Away from the standard descriptors, which the code's output must not reach the host by."""
    if isinstance(stream, str):
        both = os.open(stream, os.O_RDWR | os.O_CLOEXEC)
        found = (both, both)
    else:
        found = (os.dup(stream[0]), os.dup(stream[1]))  # type: ignore[index]
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    return found


def _warm_up(configuration: dict) -> None:  # type: ignore[type-arg]
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN and number not in (
            signal.SIGPIPE,
            signal.SIGXFSZ,
        ):
            signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MPLBACKEND="Agg")
    sys.path += [path for path in configuration["package_path"] if path not in sys.path]
    for name in configuration["preload"]:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # another version of a package may lack one of its parts
    if configuration["rehearse"]:  # else somebody waits
        reporting.rehearse()
    runner.rehearse(configuration["rehearsal"])
    runner.make_streams_ahead()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.collect()
    gc.freeze()
    gc.disable()


def _hardening(configuration: dict, place: Place) -> Callable[[], None]:  # type: ignore[type-arg]
    hidden = place.own_modules()

    def harden() -> None:
        call = prctl()
        place.enter()
        if configuration["user"]:
            uid, gid = configuration["user"]
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        if call(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError("no-new-privileges was refused")
        call(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        _no_core_dump()
        _prefer_to_kill()
        runner.prepare(hidden=hidden)
        place.seal()
        if configuration["rehearse"] and not configuration.get("kept"):
            runner.rehearse(configuration["rehearsal"])

    return harden


def _sleep(stream: int, out: int, first: forking.Runner, place: Place) -> bool:
    """Returns in each copy of us; True if it is to rehearse."""
    if os.read(first.job, 1) != b"s":
        raise RuntimeError("the process for the code could not be prepared")
    os.write(out, protocol.message(protocol.READY, {}))
    place.awake(stream)
    wish = os.read(stream, 1)
    if not wish:
        os._exit(0)
    os.write(first.job, wish)
    return wish == REHEARSE


def _copied(configuration: dict, harden: Callable[[], None]) -> None:  # type: ignore[type-arg]
    """The runner's part of `_sleep`."""
    harden()
    os.write(3, b"s")
    wish = os.read(3, 1)
    seeds.renew()
    seeds.renew_libraries()
    if wish == REHEARSE:
        runner.rehearse(configuration["rehearsal"])


def _no_core_dump() -> None:
    """One byte, not none: a dump piped to a helper of the kernel's ignores any other limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    most = hard if 0 <= hard < 1 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


def _prefer_to_kill() -> None:
    """The kernel's choice when memory runs out should be the code, not the agent."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def prctl() -> Callable[..., int]:
    """Loaded when needed; without it the agent cannot be hidden from the code, and nothing runs."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl


if __name__ == "__main__":
    main(sys.argv[1])
