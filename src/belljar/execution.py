"""From a request to what a sandbox is asked to do: environment, command, variables, files."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from belljar import threads
from belljar.building import Builds
from belljar.engines.base import Ground
from belljar.environments import catalogue, folders
from belljar.environments.choose import choose, choose_tier
from belljar.environments.folders import Progress
from belljar.errors import (
    EnvironmentUnavailable,
    InvalidRequest,
    UnknownEnvironment,
    UnknownLanguage,
    Unsupported,
)
from belljar.model import ErrorInfo, Limits, Request, Status
from belljar.policy.limits import check_minimum
from belljar.receiver import Outcome
from belljar.runtimes import languages, restricted
from belljar.sandbox import Order
from belljar.settings import Settings

WORKSPACE = languages.WORKSPACE


def environment(request: Request) -> tuple[catalogue.Environment, str]:
    """The environment of a run (the one asked for, or the smallest that will do) and its tier."""
    language = languages.get(request.language)
    name = request.environment
    if name == "auto":
        name = choose(request.code, language, files=request.files)
    chosen = catalogue.get(name)
    if chosen.runtime != catalogue.get(language.environment).runtime:
        raise InvalidRequest(
            f"environment: {chosen.name!r} has no {language.name}",
            hint=f"leave it out, or take {language.environment!r}",
        )
    least = chosen.minimum_memory_bytes
    check_minimum("memory_bytes", request.limits, least, who=f"the environment {name!r}")
    return chosen, choose_tier(request.code, chosen, files=request.files)


def order(
    request: Request, ground: Ground, interpreter: str, *, stdin_descriptor: int | None = None
) -> Order:
    language = languages.get(request.language)
    launch = _launch(language.name, ground.name, ground.mount, interpreter, request.limits)
    in_place = language.name == "python" and not request.fresh_exec
    workspace = {language.file_name: request.code.encode(), **request.files}
    program, argv, seal = language.file_name, launch.argv, ""
    if request.language_level == "restricted":
        least = restricted.MINIMUM_DISK_BYTES
        check_minimum("disk_bytes", request.limits, least, who="the restricted level")
        seal = f"{os.urandom(16).hex()} "
        workspace.update(restricted.files(seal))
        argv = tuple(restricted.PROGRAM if word == program else word for word in argv)
        program = restricted.PROGRAM
    return Order(
        path=f"{WORKSPACE}/{program}",
        argv=None if in_place else argv,
        compile=launch.compile_argv or None,
        env={**launch.variables, **request.env},
        stdin=request.stdin,
        stdin_descriptor=stdin_descriptor,
        workspace=workspace,
        inputs=request.inputs,
        limits=request.limits,
        seal=seal,
    )


def driver(request: Request, ground: Ground) -> dict[str, Any] | None:
    """What holds the state of a kept sandbox, if it is not the Python interpreter."""
    language = languages.get(request.language)
    driver = language.drive(environment_path=ground.mount, limits=request.limits)
    if driver is None and language.name != "python":
        able = [one.name for one in languages.BUILT_IN if one.driver or one.name == "python"]
        raise Unsupported(
            f"language: {language.name} keeps no state between runs",
            hint=f"a kept sandbox can be had for {', '.join(able)}",
        )
    return driver


def with_packages(order: Order, folders: list[str]) -> Order:
    from belljar.runtimes.guest.found import make_known

    env = dict(order.env)
    make_known(env, folders)
    return dataclasses.replace(order, env=env)


@functools.lru_cache(maxsize=256)
def _launch(
    language: str, environment: str, mount: str, interpreter: str, limits: Limits
) -> languages.Launch:
    """Kept, since filling in the placeholders takes longer than all of policy."""
    launch = languages.get(language).launch(
        environment_path=mount, limits=limits, interpreter=interpreter
    )
    variables = {**launch.variables, **catalogue.get(environment).variables_for(limits)}
    return dataclasses.replace(launch, variables=variables)


def uncaught(request: Request, outcome: Outcome) -> ErrorInfo | None:
    """The exception that ended Python code. A newly executed interpreter has only its standard
    error to tell it with."""
    if outcome.error or not request.fresh_exec or request.language != "python":
        return outcome.error
    text = outcome.stderr.decode("utf-8", "replace").rstrip("\n")
    last = text.rpartition("\n")[2]
    name, _, message = last.partition(": ")
    if outcome.exit_code != 1 or not name.replace(".", "").isidentifier():
        return None
    start = text.rfind("Traceback (most recent call last):")
    if start < 0:  # a syntax error comes without that line
        start = text.rfind('  File "')
    if start < 0:
        return None
    return ErrorInfo(name=name.rpartition(".")[2], message=message, traceback=text[start:] + "\n")


def status(outcome: Outcome) -> Status:
    """From what was seen to a verdict. The kernel's word goes before the guest's, and what was read
    from the code's standard error (`uncaught`) is no word at all."""
    lack = outcome.error is not None and outcome.error.name == "MemoryError"
    if outcome.out_of_memory or (lack and outcome.exit_code == 1):
        return "out_of_memory"
    if outcome.timed_out:
        return "timeout"
    if not outcome.ended or outcome.signal is not None:
        return "killed"
    return "ok" if outcome.exit_code == 0 else "error"


def remarks(outcome: Outcome, settings: Settings) -> Iterator[str]:
    if outcome.error and outcome.error.name == "ModuleNotFoundError":
        from belljar.packages import import_hint

        if hint := import_hint(outcome.error, settings):
            yield hint
    if outcome.problem:
        yield f"the sandbox was lost: {outcome.problem}"
    if outcome.files_unnamed:
        yield f"{outcome.files_unnamed} more files were neither brought back nor named"


def a_language(environment: catalogue.Environment) -> str:
    """One that runs in it."""
    return next(
        language.name
        for language in languages.BUILT_IN
        if catalogue.get(language.environment).runtime == environment.runtime
    )


def named(name: str) -> catalogue.Environment:
    """`name`: an environment, or a language whose environment is meant."""
    try:
        return catalogue.get(name)
    except UnknownEnvironment as unknown:
        try:
            return catalogue.get(languages.get(name).environment)
        except UnknownLanguage:
            raise unknown from None


class Grounds:
    """Environments made ready on first use: once, however many callers wait for one."""

    def __init__(
        self, settings: Settings, on_progress: Progress | None, builds: Builds | None = None
    ) -> None:
        self._settings = settings
        self._builds = builds or Builds()
        self._on_progress = on_progress
        self._folders: dict[str, asyncio.Task[Path | None]] = {}
        self._known: dict[tuple[str, str, bool], Ground] = {}

    async def get(
        self, environment: catalogue.Environment, tier: str, *, in_image: bool = False
    ) -> Ground:
        """`in_image`: the engine has the environment itself, so there is nothing to build."""
        key = (environment.name, tier, in_image)
        if known := self._known.get(key):
            return known
        folder = None if in_image else await self._ready(environment)
        chosen = next((t for t in environment.tiers if t.name == tier), catalogue.Tier(name=""))
        ground = self._known[key] = Ground(
            name=environment.name,
            tier=tier,
            mount=environment.mount_path,
            folder=folder,
            package_path=(environment.mount_path,) if environment.imports else (),
            preload=chosen.preload,
            rehearsal=chosen.rehearsal,
        )
        return ground

    async def _ready(self, environment: catalogue.Environment) -> Path | None:
        task = self._folders.get(environment.name)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.ensure_future(self._folder(environment))
            self._folders[environment.name] = task
        return await asyncio.shield(task)

    def close(self) -> None:
        for task in self._folders.values():
            task.cancel()

    async def _folder(self, environment: catalogue.Environment) -> Path | None:
        if not environment.needs_build:
            return None
        folder = folders.locate(environment, self._settings)
        if folder is not None:
            return folder
        if not self._settings.build_environments:
            raise EnvironmentUnavailable(
                f"the environment {environment.name!r} is not built",
                hint=f"belljar env build {environment.name}",
            )
        from belljar.environments.build import build  # needed once in an installation's life

        work = functools.partial(build, environment, self._settings, progress=self._on_progress)
        return await self._builds.do(work, whose=threads.OURS)
