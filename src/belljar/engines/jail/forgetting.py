"""What a zygote forgets before sandboxes fork from it: where on the host it came from."""

from __future__ import annotations

import sys
import types


def forget_paths(names: list[str]) -> None:
    """Code can walk up the stack into ours; it need not learn where on the host it came from."""
    for module in [sys.modules[name] for name in names]:
        for value in list(vars(module).values()):
            members = vars(value).values() if isinstance(value, type) else (value,)
            for member in members:
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                code = getattr(function, "__code__", None)
                if code and function.__module__.partition(".")[0] == "belljar":
                    function.__code__ = _anonymous(code)
        for name in ("__file__", "__cached__", "__spec__", "__path__"):
            module.__dict__.pop(name, None)
    for path in [path for path in sys.path_importer_cache if path not in sys.path]:
        del sys.path_importer_cache[path]


def _anonymous(code: types.CodeType) -> types.CodeType:
    """Also the code inside it: comprehensions, lambdas, inner functions."""
    inner = tuple(
        _anonymous(item) if isinstance(item, types.CodeType) else item for item in code.co_consts
    )
    return code.replace(co_filename="<belljar>", co_consts=inner)
