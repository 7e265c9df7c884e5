"""A sandbox that is kept: how its two processes live. Loaded by zygotes of such sandboxes only."""

from __future__ import annotations

import os
import signal

from belljar.runtimes.guest import forking, hostlink, interpreter, keeper, protocol, runner, watch

from . import contain, given

_STREAM, _FAMILY = 3, 4


def live(sandbox: contain.Sandbox, stream: int) -> None:
    """Never returns. The last lines are reached in processes of the code, on a clean stack."""
    waiting = _processes(sandbox, stream)
    if waiting is None:
        interpreter.live(rehearse=sandbox.rehearse)
    else:
        runner.become(waiting.job())


def _processes(sandbox: contain.Sandbox, stream: int) -> forking.Waiting | None:
    """Returns in each process of the code: None in an interpreter, else what it waits for."""
    branch = sandbox.family >= 0
    os.dup2(stream, _STREAM, inheritable=False)
    if branch:
        os.dup2(sandbox.family, _FAMILY, inheritable=False)
    given.close_others(_FAMILY + branch, sandbox.given)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    first = None
    try:
        contain.begin(sandbox)
        if not branch:
            forked = forking.fork_runner(lambda walls_stand: contain.join(sandbox, walls_stand))
            if isinstance(forked, forking.Waiting):
                return None
            first = forked
        contain.build(sandbox)
        if first:
            first.walls_stand()
    except contain.StepFailed as failure:
        fault = {"step": failure.step, "message": str(failure), "hint": failure.hint}
        os.write(_STREAM, protocol.message(protocol.FAULT, fault))
        os._exit(1)
    kept = keeper.Keeper(
        _STREAM,
        _STREAM,
        sandbox.roots,
        first,
        lambda: contain.harden_runner(sandbox),
        watched=watch.Watched,
    )
    try:
        if branch:
            kept.branches.offer(_FAMILY)
        kept.loop()
    except hostlink.HostGone:
        pass
    except keeper.Become as become:
        return None if become.interpreter else become.waiting
    except Exception as slip:  # ours: the host must learn what it was
        fault = {"step": "agent", "message": repr(slip)[:2000], "hint": ""}
        os.write(_STREAM, protocol.message(protocol.FAULT, fault))
    os._exit(0)
