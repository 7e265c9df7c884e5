"""The gvisor engine beside `runsc do`: the same program, platform and interpreter, in the same run.

`python -m bench.gvisor [rounds]` measures these alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from belljar import Belljar, Settings
from belljar.engines import registry
from belljar.engines.gvisor import runsc
from bench.contenders import BASE, command, interpreter
from bench.timing import Absent, Contender, in_turns, percentile

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


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with Belljar(Settings(pool_size=1)) as pooled, Belljar(Settings(pool_size=0)) as unpooled:
        taking = contenders(pooled, unpooled)
        present = [item for item in taking if isinstance(item, Contender)]
        in_turns(present, range(rounds))
    for absent in (item for item in taking if isinstance(item, Absent)):
        print(f"{absent.name:28} {absent.why}")
    for item in present:
        if not item.samples_ms:
            print(f"{item.name:28} {item.failures[0] if item.failures else 'no samples'}")
            continue
        middle = percentile(item.samples_ms, 50)
        ratio = middle / percentile(present[0].samples_ms, 50)
        print(f"{item.name:28} p50 {middle:7.1f} ms  × {ratio:.3f}  failures {len(item.failures)}")


if __name__ == "__main__":
    main()
