"""What containers are made of here: the lines of `belljar doctor`."""

from __future__ import annotations

from typing import Any

from belljar.engines.base import Control
from belljar.errors import BelljarError, Unavailable
from belljar.settings import Settings

from . import available
from .daemon import Daemon, Refused, find_address, name
from .facts import Facts, read

_HINT_DATA = (
    "belljar image build data; until then the host's environment is mounted, which takes a daemon"
    " on this machine and the same version of Python"
)
_HINT_USERS = 'set "userns-remap": "default" in /etc/docker/daemon.json, so that root is not root'


def controls(settings: Settings) -> list[Control]:
    try:
        daemon = Daemon(find_address(settings.docker_host))
        info = daemon.call_now("GET", "/info", wait_s=5.0)
    except BelljarError as error:
        words = f"{error.message}. {error.hint}"
        return [Control(name="daemon", mechanism="Docker's API", works=False, hint=words)]
    facts = read(info)
    where = "on this machine" if facts.local else "on another machine"
    return [
        Control(
            name="daemon",
            mechanism=f"Docker's API, version {facts.version}, {where}",
            works=True,
        ),
        *_limits(facts),
        _system_calls(facts),
        *_images(daemon, settings),
        *_runtime(info, settings),
        Control(
            name="user",
            mechanism="user namespace" if facts.user_namespaces else "uid 1000 of the host",
            works=facts.user_namespaces,
            hint="" if facts.user_namespaces else _HINT_USERS,
            essential=False,
        ),
    ]


def _limits(facts: Facts) -> list[Control]:
    mechanism = f"cgroup-v{facts.cgroup_version}"
    try:
        facts.check()
        hint = ""
    except Unavailable as error:
        hint = error.hint
    found = [
        Control(
            name=limit,
            mechanism=mechanism,
            works=limit not in facts.cannot,
            hint=hint if limit in facts.cannot else "",
        )
        for limit in ("memory", "processes", "cpu")
    ]
    swap = Control(
        name="swap",
        mechanism=mechanism,
        works=facts.swap,
        hint="" if facts.swap else "boot with swapaccount=1, or without swap",
        essential=False,
    )
    return [*found, swap]


def _system_calls(facts: Facts) -> Control:
    hint = "" if facts.seccomp else "Docker and the kernel must be built with seccomp"
    return Control(name="system_calls", mechanism="seccomp profile", works=facts.seccomp, hint=hint)


def _images(daemon: Daemon, settings: Settings) -> list[Control]:
    found = []
    for environment, essential in (("base", True), ("data", False)):
        image = available.image_of(environment, settings)
        works = _has(daemon, image)
        lack = _HINT_DATA if environment == "data" else available.no_image(image, "base").hint
        found.append(
            Control(
                name=f"image {environment}",
                mechanism=image,
                works=works,
                hint="" if works else lack,
                essential=essential,
            )
        )
    return found


def _has(daemon: Daemon, image: str) -> bool:
    try:
        daemon.call_now("GET", f"/images/{name(image)}/json")
    except Refused:
        return False
    return True


def _runtime(info: Any, settings: Settings) -> list[Control]:
    if not settings.docker_runtime:
        return []
    lack = available.why_no_runtime(info, settings.docker_runtime)
    return [
        Control(
            name="runtime",
            mechanism=settings.docker_runtime,
            works=lack is None,
            hint=lack.hint if lack else "",
        )
    ]
