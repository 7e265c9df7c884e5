"""Whether containers can be made here, at a glance."""

from __future__ import annotations

import sys
from typing import Any

from belljar.engines.base import Missing
from belljar.errors import BelljarError
from belljar.settings import Settings

PING_S = 1.0


def why_not(settings: Settings) -> Missing | None:
    """Asks the daemon two or three short questions, if there is one."""
    from .daemon import Daemon, Refused, find_address, name

    try:
        daemon = Daemon(find_address(settings.docker_host))
        daemon.call_now("GET", "/_ping", wait_s=PING_S)
        image = image_of("base", settings)
        try:
            daemon.call_now("GET", f"/images/{name(image)}/json", wait_s=PING_S)
        except Refused as error:
            if error.status != 404:
                raise
            return no_image(image, "base")
        if settings.docker_runtime:
            return why_no_runtime(daemon.call_now("GET", "/info"), settings.docker_runtime)
    except BelljarError as error:
        hint = error.hint if sys.platform == "linux" else "start Docker Desktop or Podman"
        return Missing(why=error.message, hint=hint)
    return None


def image_of(environment: str, settings: Settings) -> str:
    """The image that has an environment, whether or not there is one."""
    return settings.docker_images.get(environment, f"belljar/{environment}")


def no_image(image: str, environment: str) -> Missing:
    return Missing(why=f"Docker has no image {image}", hint=f"belljar image build {environment}")


def why_no_runtime(info: Any, runtime: str) -> Missing | None:
    known = sorted((info or {}).get("Runtimes") or {})
    if runtime in known:
        return None
    return Missing(
        why=f"Docker does not know the runtime {runtime!r}, only {', '.join(known)}",
        hint='add it to "runtimes" in /etc/docker/daemon.json and restart the daemon',
    )
