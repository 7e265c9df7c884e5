"""The packages of one sandbox: asked of policy, built or found, and mounted, set upon set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from belljar import threads
from belljar.building import Builds
from belljar.engines.base import Mount
from belljar.environments import layers
from belljar.environments.catalogue import Environment
from belljar.errors import EnvironmentUnavailable, LimitExceeded
from belljar.model import Caller, ErrorInfo
from belljar.policy.packages import check_packages, hint_for
from belljar.settings import Settings

PLACE = "/opt/belljar/packages"
MOST_SETS = 16
_ATTEMPTS = 3
_MISSING = re.compile(r"No module named '([A-Za-z0-9_.]{1,200})'")


class Packages:
    """A sandbox's sets. A later one is resolved with the versions of the earlier ones as they are:
    what was imported cannot be exchanged under a live interpreter."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        sets: Sequence[layers.Lease] = (),
        *,
        builds: Builds,
        caller: Caller,
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._builds = builds
        self._caller = caller
        self._sets = list(sets)
        self.mounts: tuple[Mount, ...] = ()
        """What `add` had to be mounted."""

    @property
    def versions(self) -> dict[str, str]:
        """Distribution → version, without what the environment has."""
        return {name: v for one in self._sets for name, v in one.layer.packages.items()}

    @property
    def path(self) -> list[str]:
        """Where they are inside, for `sys.path`."""
        return [f"{PLACE}/{number}" for number, _ in enumerate(self._sets, start=1)]

    def wanted(self, given: object) -> Sequence[str]:
        """Those of them that are not there. PackageRefused if the operator does not allow one."""
        there = {**(layers.provided(self._environment, self._settings) or {}), **self.versions}
        return check_packages(given, self._settings, provided=there)

    async def add(self, given: object) -> Mount | None:
        """What to mount so that these packages are there; None if they are already. PackageRefused
        if the operator does not allow them, EnvironmentUnavailable if they cannot be built."""
        if not (texts := self.wanted(given)):
            return None
        lease = await self._lease(texts)
        if not lease.layer.packages:
            lease.close()
            return None
        if len(self._sets) >= MOST_SETS:
            lease.close()
            raise LimitExceeded(
                f"packages: this sandbox has {MOST_SETS} sets of them already",
                hint="ask for several at once, or when the sandbox is made",
            )
        self._sets.append(lease)
        folder = lease.layer.folder
        status = folder.stat()
        mount = Mount(
            source=folder,
            identity=(status.st_dev, status.st_ino),
            folder=True,
            place=self.path[-1],
            executable=True,
        )
        self.mounts += (mount,)
        return mount

    async def _lease(self, texts: Sequence[str]) -> layers.Lease:
        settings, environment, earlier = self._settings, self._environment, self.versions
        for _ in range(_ATTEMPTS):
            # What is there already does not wait for a builder.
            locate = partial(layers.locate, environment=environment, earlier=earlier)
            found = await threads.FILES.do_for(self._caller.tenant, locate, texts, settings)
            if found is None:
                build = partial(
                    layers.layer,
                    texts,
                    settings,
                    environment=environment,
                    earlier=earlier,
                    caller=self._caller,
                )
                found = await self._builds.do(build, whose=self._caller.tenant)
            if lease := layers.lease(found, self._settings):
                return lease
        raise EnvironmentUnavailable(
            f"packages: {', '.join(texts)} were removed as soon as they were built"
        )

    def drop_latest(self) -> None:
        """It could not be mounted."""
        self._sets.pop().close()
        self.mounts = self.mounts[:-1]

    def for_branch(self) -> Packages:
        """The same sets; what either side adds is its own."""
        sets = [one.share() for one in self._sets]
        return Packages(
            self._settings, self._environment, sets, builds=self._builds, caller=self._caller
        )

    def close(self) -> None:
        """Nothing has them mounted any more."""
        for lease in self._sets:
            lease.close()
        self._sets.clear()

    def hint(self, error: ErrorInfo | None) -> str | None:
        return import_hint(error, self._settings)


def import_hint(error: ErrorInfo | None, settings: Settings) -> str | None:
    """What to ask for, if the code failed to import something that can be had."""
    if error is None or error.name != "ModuleNotFoundError":
        return None
    missing = _MISSING.search(error.message[:500])
    return hint_for(missing[1], settings) if missing else None
