"""What is in a dataset: columns, rows, a sample. Nobody vouches for it, so a sandbox looks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from starlette.requests import Request

from belljar.kept import events
from belljar.kept.sandbox import Sandbox
from belljar.model import MIB, Result, Usage
from belljar.receiver import OnUsage
from belljar.server import describing_inside, running
from belljar.server.gate import visit_of
from belljar.server.schemas_kept import DescriptionAnswer
from belljar.server.tenants import Tenant
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.server.server import Server

TIMEOUT_S = 60.0
MEMORY_BYTES = 512 * MIB
OUTPUT_BYTES = MIB
MOST_BYTES = 6 * OUTPUT_BYTES
"""Of what is remembered, as JSON."""
PROGRAM = Path(describing_inside.__file__).read_text()


async def describe(
    server: Server, request: Request, path: Path, name: str
) -> tuple[dict[str, Any], bool]:
    """As one of the tenant's runs; and whether it is worth keeping."""
    tenant = visit_of(request).tenant
    assert tenant is not None  # the gate lets nobody else in
    chosen = options(tenant, server.settings.jar)
    code = f"{PROGRAM}\nmain('/data/input/dataset', {name!r}, {chosen['timeout_s'] / 2})\n"

    async def look(code: str, *, on_usage: OnUsage | None = None, **more: Any) -> Result:
        box = Sandbox(server.jar, **more, checkpoints=0, inputs={"dataset": path})
        box.maximum_s = chosen["timeout_s"]
        async with box:
            if on_usage:
                on_usage(Usage())  # from here on it may use something
            return await box.run(code, on_event=events.telling(on_usage) if on_usage else None)

    result = await running.run(server, request, code, chosen, execute=look)
    try:
        found = DescriptionAnswer.model_validate_json(result.stdout)
    except ValidationError:
        return _unknown(f"it could not be read: {result.status}"), False
    return found.model_dump(), True


def options(tenant: Tenant, settings: Settings) -> dict[str, Any]:
    """What is enough for it, or what the tenant may have if that is less; behind its walls."""
    wanted = {
        "timeout_s": TIMEOUT_S,
        "memory_bytes": MEMORY_BYTES,
        "output_bytes": OUTPUT_BYTES,
    }
    own = tenant.quotas.maxima
    limits = {
        name: type(value)(min(value, getattr(settings.maxima, name), own.get(name, value)))
        for name, value in wanted.items()
    }
    return tenant.options({**limits, "environment": "base"}, settings.defaults)


def _unknown(note: str) -> dict[str, Any]:
    return {
        "format": "unknown",
        "columns": [],
        "rows": None,
        "complete": False,
        "sample": [],
        "note": note,
    }
