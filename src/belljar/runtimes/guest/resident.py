"""The kept way of life of `standalone`: the keeper, and the processes of the code that it forks."""

from __future__ import annotations

import os
from collections.abc import Callable

from . import interpreter, protocol, runner
from .forking import Runner
from .hostlink import HostGone
from .keeper import Become, Keeper
from .watch import Watched


def be_interpreter(*, rehearse: bool) -> None:
    """In the process that was forked first. Never returns."""
    interpreter.live(rehearse=rehearse)


def live(
    stream: int,
    out: int,
    roots: dict[str, int],
    first: Runner,
    *,
    harden: Callable[[], None],
    watched: Callable[[int, int], Watched],
    name_hosts: Callable[[str], None],
) -> None:
    """Never returns. The last lines are reached in processes of the code, on a clean stack."""
    become = _keep(stream, out, roots, first, harden, watched, name_hosts)
    if become.interpreter:
        interpreter.live(rehearse=False)
    runner.become(become.waiting.job())


def _keep(
    stream: int,
    out: int,
    roots: dict[str, int],
    first: Runner,
    harden: Callable[[], None],
    watched: Callable[[int, int], Watched],
    name_hosts: Callable[[str], None],
) -> Become:
    keeper = Keeper(stream, out, roots, first, harden, watched=watched, name_hosts=name_hosts)
    try:
        keeper.loop()
    except HostGone:
        pass
    except Become as become:
        return become
    except Exception as slip:  # ours: the host must learn what it was
        fault = {"step": "agent", "message": repr(slip)[:2000], "hint": ""}
        os.write(out, protocol.message(protocol.FAULT, fault))
    os._exit(0)
