"""The docker engine beside docker-py: the same image, the same hardening, in the same run.

Docker here means the daemon that DOCKER_HOST names, or the usual socket.
`python -m bench --only walls --wall docker` measures these alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from belljar import Belljar, Settings
from belljar.engines import registry
from belljar.engines.docker import available
from belljar.engines.docker.daemon import find_address
from belljar.engines.docker.profile import profile
from bench.timing import Absent, Contender

GROUP = "docker"
PLAIN = "docker-py, hardened"
FRESH, POOLED = "belljar docker, pool off", "belljar docker, pooled"
REST_S = 0.25
CODE = "print(1)"


def contenders(
    pooled: Belljar, unpooled: Belljar, *, group: str = GROUP, every: int = 1
) -> list[Contender | Absent]:
    """`pooled` and `unpooled` are for engine="docker" alone."""
    names = (PLAIN, FRESH, POOLED)
    settings = pooled.settings
    if missing := registry.why_not("docker", settings):
        return [Absent(name=name, group=group, why=missing.why) for name in names]

    def refilled() -> None:
        pooled.warm("base", settings.pool_size, engine="docker")
        time.sleep(REST_S)

    def rested() -> None:
        time.sleep(REST_S)  # the previous container is still being taken down

    found: list[Contender | Absent] = [
        Contender(name=FRESH, group=group, once=_in(unpooled), settle=rested, every=every),
        Contender(name=POOLED, group=group, once=_in(pooled), settle=refilled, every=every),
    ]
    try:
        plain = docker_py(settings)
    except ImportError:
        return [Absent(name=PLAIN, group=group, why="pip install docker"), *found]
    return [Contender(name=PLAIN, group=group, once=plain, settle=rested, every=every), *found]


def _in(jar: Belljar) -> Callable[[], None]:
    def once() -> None:
        result = jar.run(CODE, engine="docker", environment="base")
        if result.stdout != "1\n" or not result.success:
            raise RuntimeError(f"{result.status}: {result.stderr[-200:]}")

    return once


def docker_py(settings: Settings) -> Callable[[], None]:
    """What a careful user of docker-py writes, with what our engine asks of Docker; only paths
    cannot be masked with it, which spares it some time."""
    import docker  # type: ignore[import-not-found,import-untyped,unused-ignore]

    client = docker.DockerClient(base_url=find_address(settings.docker_host).text)
    quota = "rw,exec,nosuid,nodev,size=104857600,nr_inodes=10000,uid=1000,gid=1000,mode=0755"
    options: dict[str, Any] = {
        "image": available.image_of("base", settings),
        "command": ["python3", "-c", CODE],
        "user": "1000:1000",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges", f"seccomp={json.dumps(profile())}"],
        "network_mode": "none",
        "ipc_mode": "private",
        "mem_limit": 512 << 20,
        "memswap_limit": 512 << 20,
        "nano_cpus": 1_000_000_000,
        "pids_limit": 64,
        "tmpfs": dict.fromkeys(("/workspace", "/tmp", "/data/output", "/dev/shm"), quota),
        "environment": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
        "runtime": settings.docker_runtime or None,
        "remove": True,
    }

    def once() -> None:
        if client.containers.run(**options) != b"1\n":
            raise RuntimeError("docker-py: not what was printed")

    return once
