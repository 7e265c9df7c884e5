"""The gvisor engine beside `runsc do`: the same program, platform and interpreter, in the same run.

`python -m bench --only walls --wall gvisor` measures these alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from belljar import Belljar
from belljar.engines import registry
from belljar.engines.gvisor import runsc
from bench.contenders import BASE, command, interpreter
from bench.timing import Absent, Contender

GROUP = "gvisor"
PLAIN = "runsc do python3"
FRESH, POOLED = "belljar gvisor, pool off", "belljar gvisor, pooled"
REST_S = 0.25


def contenders(pooled: Belljar, unpooled: Belljar) -> list[Contender | Absent]:
    settings = pooled.settings
    if missing := registry.why_not("gvisor", settings):
        return [Absent(name=name, group=GROUP, why=missing.why) for name in (PLAIN, FRESH, POOLED)]
    found = runsc.find(settings)
    flags = [f"--platform={found.platform}", "--network=none", "--ignore-cgroups"]
    argv = [found.path, *flags, *(["--rootless"] if found.rootless else []), "do"]
    plain = command([*argv, interpreter(), "-c", BASE], env={"PATH": "/usr/bin:/bin"})

    def refilled() -> None:
        pooled.warm("base", pooled.settings.pool_size, engine="gvisor")
        time.sleep(REST_S)

    def rested() -> None:
        time.sleep(REST_S)  # the previous sandbox is still being taken down

    return [
        Contender(name=PLAIN, group=GROUP, once=plain, settle=rested),
        Contender(name=FRESH, group=GROUP, once=_in(unpooled), settle=rested),
        Contender(name=POOLED, group=GROUP, once=_in(pooled), settle=refilled),
    ]


def _in(jar: Belljar) -> Callable[[], None]:
    def once() -> None:
        result = jar.run(BASE, engine="gvisor", environment="base")
        if result.stdout != "1\n" or not result.success:
            raise RuntimeError(f"{result.status}: {result.stderr[-200:]}")

    return once
