"""Sending a zygote on its way: all that happens before it boots by itself.

Loads little, so that the command line can begin here and load the rest of Belljar meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

from belljar.engines.base import Ground
from belljar.engines.linux import cgroups, places, root
from belljar.engines.linux.control import send
from belljar.errors import EngineError, EngineUnavailable
from belljar.runtimes.interpreter import base_interpreter, base_prefix

from . import userns

ZYGOTE_VARIABLES = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "LD_BIND_NOW": "1",  # once in the zygote, not at each function's first use in every sandbox
}
"""The zygote's whole environment; /proc/self/environ shows it to every sandbox."""
PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])
# Every sandbox can read its own command line, which is the zygote's: no path of the host in it.
_START = "import os; exec(os.read({control}, 4096))"
_BOOT = """\
import sys
sys.path[0] = {root!r}
from belljar.engines.jail import zygote
zygote.live(zygote.boot({control}))
"""


class Launch(NamedTuple):
    """An interpreter that has been told to become a zygote."""

    ground: Ground
    control: socket.socket
    process: subprocess.Popen[bytes]
    ids: userns.IdMap
    complaints: int
    """What it complains about while it boots; it lets go of this before it serves."""

    def abandon(self) -> None:
        """Nobody wants it: it ends by itself when it finds its control socket closed."""
        self.control.close()
        self.process.wait()
        os.close(self.complaints)


def launch(ground: Ground, hierarchy: cgroups.Hierarchy | None) -> Launch:
    """Starts an interpreter and tells it what to become. `hierarchy`: where its sandboxes' groups
    will be."""
    _check_place(base_prefix())
    try:
        ids = userns.ours()
    except PermissionError as error:
        from . import advice  # much to load, and needed only where the jail does not work

        raise EngineUnavailable(f"jail: {error}", hint=advice.hint(0, advice.gather())) from error
    with contextlib.ExitStack() as undo:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(ours)
            with theirs:
                complaints = os.memfd_create("belljar-zygote")
                undo.callback(os.close, complaints)
                owner = os.pidfd_open(os.getpid())
                undo.callback(os.close, owner)
                control = theirs.fileno()
                process = subprocess.Popen(
                    [base_interpreter(), "-SsB", "-c", _START.format(control=control)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=complaints,
                    env=ZYGOTE_VARIABLES,
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(control,),
                )
            undo.callback(process.wait)
            ours.setblocking(False)
            if hierarchy:
                hierarchy.admit(process.pid)  # while it waits for its first order, and has no child
            ours.send(_BOOT.format(root=PACKAGE_ROOT, control=control).encode())
            send(ours, _configuration(ground, ids, hierarchy), [owner])
        except OSError as error:
            from . import advice  # as above

            raise EngineError(
                f"the jail's zygote for {ground.key!r} could not be started: {error}",
                hint=advice.hint(error.errno or 0, advice.gather()),
            ) from error
        undo.pop_all()
    os.close(owner)
    return Launch(ground, ours, process, ids, complaints)


def _check_place(prefix: str) -> None:
    """Every sandbox has these places for itself, and does not see what the host has there."""
    for place in (*places.WRITABLE, "/var/tmp", "/data", "/run", "/proc", "/sys", "/dev"):
        if f"{prefix}/".startswith(f"{place}/"):
            raise EngineUnavailable(
                f"jail: this Python is installed below {place}, which sandboxes cannot see",
                hint="use a Python that is installed elsewhere: below /usr, /opt or your home",
            )


def _configuration(
    ground: Ground, ids: userns.IdMap, hierarchy: cgroups.Hierarchy | None
) -> dict[str, Any]:
    prefix = base_prefix()
    exec_prefix = os.path.realpath(sys.base_exec_prefix)
    paths = sysconfig.get_paths(vars={"base": prefix, "platbase": exec_prefix})
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    foreign = {
        paths["purelib"],
        paths["platlib"],
        f"{prefix}/lib/python{version}/site-packages",
        "/usr/lib/python3/dist-packages",
        f"/usr/lib/python{version}/dist-packages",
    }
    own = {paths["stdlib"], paths["platstdlib"]}
    standard = [
        f"{prefix}/lib/python{version.replace('.', '')}.zip",
        *own,
        *(f"{path}/lib-dynload" for path in own),
    ]
    return {
        "ids": vars(ids),
        "root": root.plan_root(
            root.host_facts(base_interpreter(), prefix, foreign),
            (str(ground.folder), ground.mount) if ground.folder else None,
        ),
        "standard_path": standard,
        "package_path": list(ground.package_path),
        "preload": list(ground.preload),
        "rehearsal": ground.rehearsal,
        "env": {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"},
        "counted": hierarchy is not None,
        "affinity": hierarchy is not None and hierarchy.limits_cpu,
        "kept": ground.kept,
    }


# -- ahead of time ---------------------------------------------------------------------------------


class Ahead(NamedTuple):
    hierarchy: cgroups.Hierarchy | None
    launched: Launch


_ahead: Ahead | None = None


def begin(ground: Ground) -> None:
    """Launches a zygote for the engine that this process is about to make."""
    global _ahead
    hierarchy = cgroups.claim_ours(ask_systemd=True)
    _ahead = Ahead(hierarchy, launch(ground, hierarchy))


def take() -> Ahead | None:
    """What was begun, for the first who asks."""
    global _ahead
    begun, _ahead = _ahead, None
    return begun


def abandon() -> None:
    """Undoes `begin` if nobody asked."""
    if begun := take():
        begun.launched.abandon()
        if begun.hierarchy:
            begun.hierarchy.close()
