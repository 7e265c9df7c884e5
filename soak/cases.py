"""Code to run once, good and hostile, and what a right answer to it is."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
TOKEN = "@TOKEN@"
"""Stands in the code for the token of the request."""


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    code: str
    right: Callable[[Mapping[str, Any], str], bool]
    """Of the whole result, and the token."""
    weight: int = 4
    hostile: bool = False
    language: str = "python"
    needs: str = "base"
    """The environment, or `docker`."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def request(self, token: str) -> dict[str, Any]:
        code = self.code.replace(TOKEN, token)
        return {"code": code, "language": self.language, **self.options}


def printed(result: Mapping[str, Any], token: str) -> bool:
    return bool(result["status"] == "ok" and result["stdout"] == f"{token}\n")


def ended(status: str) -> Callable[[Mapping[str, Any], str], bool]:
    """So, after it had printed its token."""
    return lambda result, token: (
        result["status"] == status and result["stdout"].startswith(f"{token}\n")
    )


def _file(result: Mapping[str, Any], token: str) -> bool:
    found = {one["path"]: base64.b64decode(one["content_base64"] or "") for one in result["files"]}
    return printed(result, token) and found == {"/data/output/left": token.encode() * 100}


def _cut(result: Mapping[str, Any], token: str) -> bool:
    return result["truncated"] and result["dropped"]["stdout"] > 0 and ended("ok")(result, token)


def _bounded(result: Mapping[str, Any], token: str) -> bool:
    words = result["stdout"].split()
    return result["status"] == "ok" and words[0] == token and 0 < int(words[1]) <= 16


def _charged(result: Mapping[str, Any], token: str) -> bool:
    """What ran is charged, whatever the code calls the exception that it raises."""
    return bool(result["status"] == "error" and result["usage"]["cpu_ms"] > 50)


CASES: tuple[Case, ...] = (
    Case(name="print", code="print('@TOKEN@')", right=printed, weight=20),
    Case(
        name="compute",
        code="assert sum(i * i for i in range(300_000)) == 8999955000050000\nprint('@TOKEN@')",
        right=printed,
        weight=8,
    ),
    Case(
        name="file",
        code="open('/data/output/left', 'w').write('@TOKEN@' * 100)\nprint('@TOKEN@')",
        right=_file,
    ),
    Case(
        name="input",
        code="import os, sys\n"
        "assert os.environ['GIVEN'] == open('/data/input/given').read() == 'as it was'\n"
        "print(sys.stdin.read() + '@TOKEN@')",
        right=printed,
        options={"env": {"GIVEN": "as it was"}, "inputs": {"given": "as it was"}, "stdin": ""},
    ),
    Case(
        name="processes",
        code="import subprocess, threading\n"
        "words = []\n"
        "one = threading.Thread(target=lambda: words.append(\n"
        "    subprocess.run(['echo', '@TOKEN@'], capture_output=True, text=True).stdout))\n"
        "one.start(); one.join(); print(words[0], end='')",
        right=printed,
    ),
    Case(name="bash", language="bash", code="x=@TOKEN@; echo $x", right=printed, weight=6),
    Case(
        name="javascript",
        language="javascript",
        needs="node",
        code="console.log('@TOKEN@')",
        right=printed,
    ),
    Case(
        name="typescript",
        language="typescript",
        needs="node",
        code="const x: string = '@TOKEN@'; console.log(x)",
        right=printed,
        weight=2,
    ),
    Case(
        name="go",
        language="go",
        needs="go",
        code='package main\nimport "fmt"\nfunc main() { fmt.Println("@TOKEN@") }\n',
        right=printed,
        weight=1,
        options={"timeout_s": 120.0, "memory_bytes": 1024 * MIB},
    ),
    Case(
        name="table",
        needs="data",
        code="import pandas\nprint(pandas.DataFrame({'a': ['@TOKEN@']}).a[0])",
        right=printed,
        weight=1,
        options={"environment": "data"},
    ),
    Case(
        name="docker",
        needs="docker",
        code="print('@TOKEN@')",
        right=printed,
        weight=2,
        options={"engine": "docker", "environment": "base"},
    ),
    Case(
        name="exception",
        code="print('@TOKEN@', flush=True)\nraise ValueError('@TOKEN@')",
        right=lambda result, token: (
            ended("error")(result, token) and result["error"]["message"] == token
        ),
    ),
    # -- hostile -----------------------------------------------------------------------------------
    Case(
        name="memory",
        hostile=True,
        code="print('@TOKEN@', flush=True)\nheld = [bytearray(8 << 20) for _ in range(60)]",
        right=ended("out_of_memory"),
        options={"memory_bytes": 64 * MIB},
    ),
    Case(
        name="forks",
        hostile=True,
        code="import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while made < 200:\n"
        "        if os.fork() == 0: time.sleep(20); os._exit(0)\n"
        "        made += 1\n"
        "except OSError: print('@TOKEN@', made)",
        right=_bounded,
        options={"processes": 16},
    ),
    Case(
        name="flood",
        hostile=True,
        code="import os\n"
        "print('@TOKEN@', flush=True)\n"
        "for _ in range(64): os.write(1, b'y' * 65536)",
        right=_cut,
        options={"output_bytes": 65536},
    ),
    Case(
        name="endless",
        hostile=True,
        code="print('@TOKEN@', flush=True)\nwhile True: pass",
        right=lambda result, token: result["timed_out"] and ended("timeout")(result, token),
        options={"timeout_s": 1.0},
    ),
    Case(
        name="disk",
        hostile=True,
        code="print('@TOKEN@', flush=True)\n"
        "with open('/tmp/big', 'wb', buffering=0) as file:\n"
        "    for _ in range(64): file.write(bytes(1 << 20))",
        right=lambda result, token: (
            ended("error")(result, token) and "[Errno 28]" in result["stderr"]
        ),
        options={"disk_bytes": 8 * MIB},
    ),
    Case(
        name="suicide",
        hostile=True,
        code="import os\nprint('@TOKEN@', flush=True)\nos.kill(os.getpid(), 9)",
        right=lambda result, token: result["signal"] == 9 and token in result["stdout"],
        weight=2,
    ),
    Case(
        name="impostor",
        hostile=True,
        code="class RestrictedSyntaxError(Exception): pass\n"
        "n = 0\n"
        "while n < 2000000: n = n + 1\n"
        "raise RestrictedSyntaxError('line 1: @TOKEN@')",
        right=_charged,
        weight=2,
        options={"language_level": "restricted"},
    ),
)
