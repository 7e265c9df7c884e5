"""Belljar runs code that nobody vouches for, so that it can do its work and nothing else.

    import belljar
    result = belljar.run("print(6 * 7)")

Names are loaded when they are first used: the zygote and the command line import this package too,
and must not pay for what they do not need.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # `typing` itself would cost the zygote and the command line milliseconds

__version__ = "0.1.0"

if TYPE_CHECKING:
    from belljar import aio as aio
    from belljar import wasm as wasm
    from belljar.errors import (
        BelljarError,
        Busy,
        Closed,
        EngineError,
        EngineUnavailable,
        EnvironmentUnavailable,
        InvalidRequest,
        SandboxEnded,
        SandboxLost,
        TrailError,
        Unsupported,
    )
    from belljar.fetching import Page
    from belljar.jar import Belljar, fetch, run
    from belljar.kept.sync import Sandbox
    from belljar.model import Caller, ErrorInfo, Limits, Output, OutputFile, Result, Usage
    from belljar.network import Allow, Egress, Secret
    from belljar.settings import Settings

_HOMES = {
    "Belljar": "jar",
    "run": "jar",
    "fetch": "jar",
    "Page": "fetching",
    "Settings": "settings",
    "Caller": "model",
    "Limits": "model",
    "Result": "model",
    "Usage": "model",
    "ErrorInfo": "model",
    "Output": "model",
    "OutputFile": "model",
    "Allow": "network",
    "Egress": "network",
    "Secret": "network",
    "Sandbox": "kept.sync",
    "Busy": "errors",
    "SandboxEnded": "errors",
    "SandboxLost": "errors",
    "BelljarError": "errors",
    "InvalidRequest": "errors",
    "Unsupported": "errors",
    "EngineUnavailable": "errors",
    "EnvironmentUnavailable": "errors",
    "EngineError": "errors",
    "TrailError": "errors",
    "Closed": "errors",
}

__all__ = [
    "Allow",
    "Belljar",
    "BelljarError",
    "Busy",
    "Caller",
    "Closed",
    "Egress",
    "EngineError",
    "EngineUnavailable",
    "EnvironmentUnavailable",
    "ErrorInfo",
    "InvalidRequest",
    "Limits",
    "Output",
    "OutputFile",
    "Page",
    "Result",
    "Sandbox",
    "SandboxEnded",
    "SandboxLost",
    "Secret",
    "Settings",
    "TrailError",
    "Unsupported",
    "Usage",
    "aio",
    "fetch",
    "run",
    "wasm",
]


def __getattr__(name: str) -> object:
    if name in ("aio", "wasm"):
        return importlib.import_module(f"belljar.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'belljar' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"belljar.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
