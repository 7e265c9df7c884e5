"""The process that holds a kept sandbox's Python state: it runs one cell after the other.

It talks to the keeper on descriptor 3, in JSON lines:
    keeper → here   {"set_up": {env, rlimits, folder, …}}; with a driver it is another language's
                    state that is held, by translator.py
                    {"cell": {code, name}} with a descriptor for standard input
                    {"packages": folders} that can be imported from now on
                    {"leave": run}: a checkpoint, before that run
                    {"fork": …} with the namespaces and a socket
                    {"streams": 2} with the two: a branch goes on here, {"back": …}: a checkpoint
    here → keeper   {"checkpoint": run} with a socket, {"output": …}, {"progress": …},
                    {"extend": seconds}, {"done": …}; and first of all from a copy: {"hello": pid},
                    and from a branch that goes on {"settled": why not}

A copy of this process that waits is a checkpoint; a copy that moved into the namespaces of another
sandbox is a branch. Either goes on from the same place as the original, with a socket of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import types
from collections.abc import Callable, Container

from . import belongings, runner, seeds, translator
from .found import make_importable
from .lines import Broken, Crowded, Lines
from .notebook import Notebook

_CONTROL = 3
_CHECKPOINT_OOM = b"900"
_NOBODY = -1
_LIKE_A_RUN = {"cell": {"code": "1 + 1", "name": ""}, "done": {"value": "2", "error": None}}
_PR_CAPBSET_DROP, _PR_SET_SECUREBITS = 24, 28
_SECUREBITS = 0b1110_1111
_NO_WARNING = ("ignore", None, DeprecationWarning, None, 0)

_libc = ctypes.CDLL(None, use_errno=True)
_capset = getattr(_libc, "capset", None)
_cap_header = (ctypes.c_uint32 * 2)(0x2008_0522, 0)
_no_capabilities = (ctypes.c_uint32 * 6)()


def live(*, rehearse: bool) -> None:
    """Never returns."""
    interpreter = _Interpreter()
    if rehearse:
        interpreter.rehearse()
    while True:
        try:
            interpreter.serve()
        except KeyboardInterrupt:
            continue  # came when the cell had just ended
        except Broken:
            os._exit(0)


class _Interpreter:
    def __init__(self) -> None:
        self._lines = Lines(_CONTROL)
        self._rehearsing = False
        self._parting = 0
        self._pids = {1, os.getpid()}
        """Of all that this process is a copy of, and of itself."""
        self._noted: tuple[dict[int, belongings.Position], str] | None = None
        """In a copy that waits: how far its files were, and its folder."""
        self._moving: _Moving | None = None
        """In a copy that has moved to another sandbox, until the files are there, too."""
        self._notebook = Notebook(self._emit, output_bytes=16 << 20)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # until a run allows it
        sys.modules["belljar_guest"] = _guest_module(self._tell)

    def rehearse(self) -> None:
        """Walks once through what every cell does, so that its memory is our own when one comes."""
        self._rehearsing = True
        self._notebook.run("rehearsal = [1]\nrehearsal + [2]", "<rehearsal>")
        self._notebook.reset()
        self._rehearsing = False

    def serve(self) -> None:
        while True:
            talk = self._lines
            orders = talk.fill()
            while orders:
                order = orders.pop(0)
                if "cell" in order:
                    self._cell(order["cell"])
                elif "set_up" in order:
                    _set_up(order["set_up"])
                    if order["set_up"].get("driver"):
                        translator.live(talk, order["set_up"]["driver"], orders)
                elif "packages" in order:
                    make_importable(order["packages"])
                elif "leave" in order:
                    self._leave(order["leave"])
                elif "fork" in order:
                    self._fork(order["fork"])
                elif "streams" in order:
                    _take_streams(self._lines.take(2))
                    self._settle()
                elif "back" in order:
                    self._come_back()
                if self._lines is not talk:
                    break  # we are a copy: what else was said was said to the original

    def _emit(self, output: dict) -> None:  # type: ignore[type-arg]
        if not self._rehearsing:
            self._lines.send({"output": output})

    def _tell(self, news: dict) -> None:  # type: ignore[type-arg]
        with self._notebook.interrupts:
            self._lines.send(news)

    def _cell(self, cell: dict) -> None:  # type: ignore[type-arg]
        self._reap()
        for stdin in self._lines.take(1):  # none when the code holds all descriptors there are
            os.dup2(stdin, 0)
            os.close(stdin)
        ended = self._notebook.run(cell["code"], cell["name"])
        ended["threads"] = _threads() - 1
        self._lines.send({"done": ended, "run": cell["run"]})

    # -- copies ----------------------------------------------------------------------------------

    def _leave(self, run: int) -> None:
        """Leaves a copy behind that waits: after one run for the next, when nobody waits for us."""
        self._reap()
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            return  # the code holds all descriptors there are: no way back to here
        # Now: the next run may move on in the files before the copy has looked.
        noted = (belongings.positions(), _folder())
        with ours, theirs:
            try:
                self._parting = _orphan()
            except OSError:
                return  # or all processes
            if self._parting == 0:
                ours.close()
                self._continue_on(theirs.detach())
                self._noted = noted
                _prefer_to_kill(_CHECKPOINT_OOM)
                self._lines.send({"hello": os.getpid()})
                return
            try:
                self._lines.send({"checkpoint": run}, (ours.fileno(),))
            except Crowded:
                return  # nobody hears of the copy: it ends
        self._own_memory()

    def _own_memory(self) -> None:
        """What a run touches is shared with the copy now; making it ours takes most of a short
        run's time, so it is done while nobody waits."""
        if _threads() > 1 or sys.gettrace() or sys.getprofile():
            return  # they would notice
        if select.select([_CONTROL], [], [], 0)[0]:
            return
        try:
            json.loads(json.dumps(_LIKE_A_RUN))
            stdin, other = os.pipe2(os.O_CLOEXEC)  # as each run has a new one
            os.close(other)
            os.dup2(stdin, 0)
            os.close(stdin)
            self._notebook.rehearse()
        except Exception:
            pass  # the code has put something of its own in our way

    def _reap(self) -> None:
        """The process between us and the latest copy has exited by now; code must not see it."""
        if self._parting:
            try:
                if self._parting != _NOBODY:
                    os.waitpid(self._parting, 0)
            except ChildProcessError:
                pass  # code that reaps everything has reaped it
            self._parting = 0

    def _fork(self, order: dict) -> None:  # type: ignore[type-arg]
        """A copy of this process goes on in another sandbox."""
        namespaces = self._lines.take(order["namespaces"])
        (control,) = self._lines.take(1)
        moving = _Moving(self._noted)

        self._reap()
        try:
            self._parting = _orphan(lambda: _join(namespaces), unlike=self._pids)
        except OSError:  # the code holds all processes there are: the other keeper hears nothing
            self._parting = _NOBODY
        for descriptor in namespaces:
            os.close(descriptor)
        if self._parting:
            os.close(control)
            self._reap()
            return
        self._continue_on(control)
        _drop_capabilities()
        self._moving = moving  # the new keeper lays out the files meanwhile, and then answers
        self._noted = None
        seeds.renew()
        seeds.renew_libraries()
        self._lines.send({"hello": os.getpid()})

    def _settle(self) -> None:
        """In another sandbox, whose files are there now."""
        moving, self._moving = self._moving, None
        if moving is None:
            return
        try:
            belongings.stay_behind(
                moving.held,
                moving.noted,
                moving.device,
                current=moving.current,
                spared=_CONTROL,
            )
            belongings.return_to(moving.folder)
        except Exception as error:
            self._lines.send({"settled": getattr(error, "strerror", None) or repr(error)})
            os._exit(1)
        self._notebook.streams.begin()
        self._lines.send({"settled": ""})

    def _come_back(self) -> None:
        """A rollback has made this checkpoint the current state, and put its files back."""
        if self._noted:
            (noted, folder), self._noted = self._noted, None
            belongings.come_back(noted, folder)
            seeds.renew_libraries()

    def _continue_on(self, control: int) -> None:
        self._pids.add(os.getpid())
        os.setsid()  # what is meant for the original's group must not hit the copy
        self._lines.close()
        os.dup2(control, _CONTROL, inheritable=False)
        if control != _CONTROL:
            os.close(control)
        self._lines = Lines(_CONTROL)


class _Moving:
    """What a branch needs to know of the sandbox that it comes from."""

    def __init__(self, noted: tuple[dict[int, belongings.Position], str] | None) -> None:
        self.held = belongings.held()
        self.current = noted is None
        self.noted, self.folder = noted or (belongings.positions(), _folder())
        self.device = os.stat("/workspace").st_dev


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return "/workspace"


def _orphan(before: Callable[[], None] = lambda: None, *, unlike: Container[int] = ()) -> int:
    """Forks off a process that is not our child, so that the code never waits for it by accident.
    Returns 0 in it, and here the process between the two, which exits. `unlike`: pids that it must
    not have: that a process is a copy, libraries notice by nothing else."""
    pid = _fork_unseen()
    if pid:
        return pid
    try:
        os.setsid()  # once we are reaped, nothing that is meant for the original's group hits it
        before()
        if os.fork():
            os._exit(0)
        while os.getpid() in unlike:
            if os.fork():
                os._exit(0)
    except BaseException:
        os._exit(1)
    return 0


def _fork_unseen() -> int:
    """Since Python 3.12 a fork beside threads warns; it is not the code that forks here. The filter
    is put in front by hand: `warnings.catch_warnings` would also make the code's own warnings that
    were shown once appear again."""
    filters = getattr(sys.modules.get("warnings"), "filters", None)
    if _threads() == 1 or not isinstance(filters, list):
        return os.fork()
    filters.insert(0, _NO_WARNING)
    try:
        return os.fork()
    finally:
        filters.remove(_NO_WARNING)


def _take_streams(ends: list[int]) -> None:
    for target, end in ((1, ends[0]), (2, ends[1])):
        os.dup2(end, target)
        os.close(end)


def _join(namespaces: list[int]) -> None:
    for namespace in namespaces:
        if _libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), "setns")


def _drop_capabilities() -> None:
    """Joining a user namespace gives every capability in it; the new keeper checks."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            break
    _libc.prctl(_PR_SET_SECUREBITS, _SECUREBITS, 0, 0, 0)
    if _capset is None or _capset(_cap_header, _no_capabilities):
        os._exit(1)


# -- around the cells ----------------------------------------------------------------------------


def _set_up(order: dict) -> None:  # type: ignore[type-arg]
    for name, value in order["rlimits"].items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))
    if order["reseed"]:
        seeds.renew()
        seeds.renew_libraries()
    os.environ.clear()
    os.environ.update(order["env"])
    runner.more_threads(order["env"].get("OMP_NUM_THREADS", "1"))
    make_importable(order["package_path"])
    os.chdir(order["folder"])
    sys.path.insert(0, order["folder"])
    sys.argv = [""]


def _threads() -> int:
    return len(sys._current_frames())


def _prefer_to_kill(how_much: bytes) -> None:
    try:
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, how_much)
        os.close(descriptor)
    except OSError:
        pass


def _guest_module(tell: Callable[[dict], None]) -> types.ModuleType:  # type: ignore[type-arg]
    """What code inside can ask of the sandbox: `import belljar_guest`."""
    module = types.ModuleType("belljar_guest", "What a run can tell the one who waits for it.")

    def progress(fraction: float, message: str = "") -> None:
        """Reports how far the run is: 0.0 to 1.0, and a few words."""
        tell({"progress": {"fraction": float(fraction), "message": str(message)[:1000]}})

    def extend(seconds: float) -> None:
        """Asks for more time, within the operator's maximum."""
        tell({"extend": float(seconds)})

    module.__dict__.update(progress=progress, extend=extend)
    return module
