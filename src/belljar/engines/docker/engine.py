"""Sandboxes as containers: made, watched and removed through the daemon's API."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from belljar.engines.base import Capabilities, Control, Ground
from belljar.engines.linux import landlock, uncounted
from belljar.engines.linux.places import HOSTS
from belljar.engines.making import Making
from belljar.errors import (
    BelljarError,
    EngineError,
    EngineUnavailable,
    EnvironmentUnavailable,
    Unavailable,
)
from belljar.model import Limits
from belljar.settings import Settings

from . import available, boot, owner, plan
from .daemon import Daemon, Refused, Silent, find_address, name
from .facts import Facts, read
from .groups import Groups
from .stream import Attached
from .wall import DockerWall, gone

log = logging.getLogger("belljar")

AT_ONCE = 8
"""Containers being made at the same time: more of them only make each other wait, and the daemon
look as if it hung."""
PING_S = 0.5
TRUST_S = 2.0
"""How long an answer to "do you still answer?" is believed."""
_WEAK = ("absent", "unknown", "not write-protected")


class DockerEngine:
    name = "docker"
    capabilities = Capabilities(most_waiting=16, kept=True, terminals=False, network=True)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.interpreter = settings.docker_python
        self.groups = Groups()
        self.walls: set[DockerWall] = set()
        self._watch = uncounted.Watch(self.walls)
        self.uids: set[int] = set()
        """Those of living containers."""
        self._making = Making[DockerWall]()
        self._background: set[asyncio.Task[None]] = set()
        self._left: set[str] = set()
        """Containers that could not be removed while the daemon did not answer."""
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._owner = owner.Owner(settings.home)
        self._images: set[str] = set()
        self._facts: Facts | None = None
        self._swept = False
        self._judged_s = 0.0
        self._silent = False
        self.daemon = Daemon(find_address(settings.docker_host))
        try:
            self._know(self.daemon.call_now("GET", "/info", wait_s=5.0))
        except BelljarError:
            pass  # whoever wants a sandbox will be told

    def controls(self) -> list[Control]:
        from .checks import controls  # only doctor asks

        return controls(self._settings)

    async def create(self, ground: Ground, limits: Limits, *, waiting: bool) -> DockerWall:
        """Not to be cancelled half-way: the container would stay."""
        return await self._making.make(self._make(ground, limits, waiting=waiting))

    async def close(self) -> None:
        await self._making.settled()
        self._watch.close()
        walls = [wall.destroy() for wall in list(self.walls)]
        await asyncio.gather(*walls, return_exceptions=True)
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._clear_left()
        self._owner.close()
        self.groups.close()

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def remove(self, container: str) -> None:
        try:
            await gone(self, container)
        except (EngineError, Unavailable):
            self._left.add(container)
            raise

    def is_silent(self) -> bool:
        """Whether the daemon hangs. Asked only about runs that ended badly, and not for each."""
        if time.monotonic() > self._judged_s + TRUST_S:
            try:
                self.daemon.call_now("GET", "/_ping", wait_s=PING_S)
                self._silent = False
            except BelljarError:
                self._silent = True
            self._judged_s = time.monotonic()
        return self._silent

    # -- making one --------------------------------------------------------------------------------

    async def _make(self, ground: Ground, limits: Limits, *, waiting: bool) -> DockerWall:
        async with self._turns:
            facts = await self._prepared()
            place = await self._place(ground)
            place = replace(
                place,
                counts_sockets=facts.sockets,
                watched=not facts.local,
                profile=self._profile(facts),
                podman=facts.podman,
            )
            isolation = self._isolation(facts, place)
            self._check_required(isolation)
            title = f"belljar-{secrets.token_hex(8)}"
            inputs = self._owner.new_inputs(title) if facts.local else None
            # Docker empties the image's own.
            hosts = self._owner.new_hosts(title, HOSTS) if facts.local else None
            uid = self._take_uid()
            try:
                place = replace(place, inputs=inputs, hosts=hosts, uid=uid)
                return await self._start(place, ground, limits, title, isolation, waiting=waiting)
            except BaseException:
                self.uids.discard(uid)
                if inputs:
                    shutil.rmtree(inputs, ignore_errors=True)
                if hosts:
                    hosts.unlink(missing_ok=True)
                raise

    def _profile(self, facts: Facts) -> str | None:
        if not facts.podman:
            return None
        if not facts.local:
            return ""
        return str(self._owner.shared("seccomp.json", plan.profile_text()))

    def _take_uid(self) -> int:
        """At random, since another Belljar may use the same daemon."""
        free = [uid for uid in plan.UIDS if uid not in self.uids]
        if not free:
            raise EngineError("no uid is left for another container")
        uid = secrets.choice(free)
        self.uids.add(uid)
        return uid

    async def _start(
        self,
        place: plan.Place,
        ground: Ground,
        limits: Limits,
        title: str,
        isolation: Mapping[str, str],
        *,
        waiting: bool,
    ) -> DockerWall:
        body = plan.container(place, ground, limits, labels=self._owner.labels, waiting=waiting)
        try:
            created = await self.daemon.call(
                "POST", "/containers/create", query={"name": title}, body=body
            )
        except Refused as error:
            if error.status == 404:
                self._images.clear()
            raise _explained(error, place) from error
        except Silent:
            self._left.add(title)  # it may still come to be
            raise
        container = str(created["Id"])
        stream = None
        try:
            stream = Attached(*await self.daemon.attach(container))
            wall = DockerWall(
                self,
                container,
                stream,
                isolation=isolation,
                inputs=place.inputs,
                hosts=place.hosts,
                limits=limits,
                reserve=plan.reserve(place, ground, waiting=waiting),
                uid=place.uid,
            )
            # Before the start, so that nothing is waited for; the kernel holds it until then, as
            # far as it has room.
            pack = boot.pack(kept=ground.kept)
            sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(stream, pack))
            try:
                await self.daemon.call("POST", f"/containers/{container}/start")
                await sending
            finally:
                sending.cancel()
            state = (await self.daemon.call("GET", f"/containers/{container}/json"))["State"]
        except BaseException as error:
            if stream:
                stream.close()
            self.later(self._clear(container))
            raise _explained(error, place) from error
        if self._facts and self._facts.local and state.get("Pid"):
            wall.started(int(state["Pid"]))
            self._watch.begin()
        self.walls.add(wall)
        return wall

    async def _place(self, ground: Ground) -> plan.Place:
        """The image that has the environment; or the base image, with the host's folder in it."""
        settings = self._settings
        own, base = (available.image_of(name, settings) for name in (ground.name, "base"))
        if await self._image(own):
            return self._standing(own)
        if ground.name in settings.docker_images or ground.folder is None:
            lack = available.no_image(own, ground.name)
            raise EnvironmentUnavailable(lack.why, hint=lack.hint)
        if not await self._image(base):
            lack = available.no_image(base, "base")
            raise EnvironmentUnavailable(lack.why, hint=lack.hint)
        return replace(self._standing(base), folder=ground.folder, native=bool(ground.package_path))

    def _standing(self, image: str) -> plan.Place:
        settings = self._settings
        return plan.Place(
            image=image, python=settings.docker_python, runtime=settings.docker_runtime
        )

    async def _image(self, image: str) -> bool:
        """Whether there is such an image, and one that can be used."""
        if image in self._images:
            return True
        try:
            found = await self.daemon.call("GET", f"/images/{name(image)}/json")
        except Refused as error:
            if error.status == 404:
                return False
            raise
        volumes = (found.get("Config") or {}).get("Volumes")
        if volumes:
            raise EngineUnavailable(
                f"the image {image} declares volumes ({', '.join(volumes)})",
                hint="they would be writable without any limit: make an image without VOLUME",
            )
        self._images.add(image)
        return True

    # -- the daemon --------------------------------------------------------------------------------

    async def _prepared(self) -> Facts:
        if self._facts is None:
            self._know(await self.daemon.call("GET", "/info"))
        assert self._facts is not None
        self._facts.check()
        if not self._swept:
            self._swept = True
            await self._sweep()
        if self._left:
            self.later(self._clear_left())
        return self._facts

    def _know(self, info: Mapping[str, Any]) -> None:
        self._facts = read(info)
        self.capabilities = replace(self.capabilities, own_environments=not self._facts.local)

    async def _sweep(self) -> None:
        """Removes what a Belljar left that was killed."""
        listed = await self.daemon.call(
            "GET", "/containers/json", query={"all": "1", "filters": owner.FILTER}
        )
        for container in owner.left(listed or []):
            await self._clear(container)
        owner.sweep_folders(self._settings.home)

    async def _clear_left(self) -> None:
        for container in list(self._left):
            self._left.discard(container)
            await self._clear(container)

    async def _clear(self, container: str) -> None:
        try:
            await self.remove(container)
        except BelljarError as error:
            log.warning("a container could not be removed: %s", error)

    # -- what is in force --------------------------------------------------------------------------

    def _isolation(self, facts: Facts, place: plan.Place) -> dict[str, str]:
        groups = f"cgroup-v{facts.cgroup_version}"
        plain = place.runtime in plan.PLAIN_RUNTIMES
        user = "own uid, in a user namespace" if facts.user_namespaces else "own uid"
        return {
            "user": user,
            "processes_hidden": "pid namespace",
            "filesystem": "read-only image",
            "network": "none (namespace)",
            "system_calls": "seccomp allowlist",
            "landlock": _landlock(facts, plain=plain),
            "disk": "tmpfs size for each place" if facts.podman else "tmpfs quota for each place",
            "inputs": "read-only mount" if facts.local else "not write-protected",
            "memory": groups,
            "processes": groups if plain else f"{groups}, with the runtime's own",
            "cpu": groups,
            "runtime": place.runtime or "the daemon's default",
        }

    def _check_required(self, isolation: Mapping[str, str]) -> None:
        for control in self._settings.required:
            if control not in isolation:
                raise EngineUnavailable(
                    f"the required control {control!r} is unknown",
                    hint=f"known: {', '.join(sorted(isolation))}",
                )
            if isolation[control] in _WEAK:
                raise EngineUnavailable(
                    f"the required control {control!r} is not in force here"
                    f" (there is only: {isolation[control]})",
                    hint="belljar doctor says what is missing",
                )


def _landlock(facts: Facts, *, plain: bool) -> str:
    """The container's first process puts it on where it finds it; what it found it does not say."""
    if not facts.local:
        return "unknown"
    version = landlock.abi() if plain else 0
    return f"ABI {version}" if version else "absent"


def _explained(error: BaseException, place: plan.Place) -> BaseException:
    if not isinstance(error, Refused):
        return error
    hint = error.hint
    if "No such image" in error.message:
        return EnvironmentUnavailable(error.message, hint="belljar image build")
    if place.python in error.message and "no such file" in error.message:
        hint = f"the image {place.image} has no {place.python}: set docker_python"
    elif "runtime" in error.message and "nknown" in error.message and place.runtime:
        hint = "is docker_runtime in the daemon's configuration?"
    elif "bind source path does not exist" in error.message:
        hint = "the daemon does not see our folders: is it on another machine?"
    return EngineError(f"a container could not be started: {error.message}", hint=hint)
