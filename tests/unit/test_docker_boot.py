"""What is sent into a container holds all that it imports."""

from __future__ import annotations

import ast
from pathlib import Path

from belljar.engines.docker import boot
from belljar.runtimes import guest


def test_a_sandbox_for_one_run_has_every_module_that_it_imports() -> None:
    folder = Path(guest.__file__).parent
    needed, left = set(), ["standalone"]
    while left:
        name = left.pop()
        if name in needed:
            continue
        needed.add(name)
        for node in ast.parse((folder / f"{name}.py").read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                left += [node.module] if node.module else [one.name for one in node.names]
    assert needed | {"__init__"} == set(boot._ONE_RUN)
