"""Inside a guest: runs what the host asks for, and sends what it prints while it prints it.

One JSON object per line on a virtio serial port, in both directions. The host sends
`{"run": id, "command": "…"}`; back come `{"run": id, "printed": base64}` and at the end
`{"run": id, "exit": status}`. Standard library only, Python 3.10: jammy's own interpreter runs it.
"""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping

PORT = "/dev/virtio-ports/belljar"
ENVIRONMENT = {
    "HOME": "/root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "COLUMNS": "160",
}


def main() -> int:
    serve(os.open(PORT, os.O_RDWR))
    return 0


def serve(port: int) -> None:
    send(port, {"ready": os.uname().release})
    rest = b""
    while True:
        chunk = os.read(port, 65536)
        if not chunk:  # what a port without a host reads as
            time.sleep(0.5)
        rest += chunk
        while b"\n" in rest:
            line, _, rest = rest.partition(b"\n")
            answer(port, line)


def answer(port: int, line: bytes) -> None:
    try:
        asked = json.loads(line)
    except ValueError:
        return
    run = asked["run"]
    process = subprocess.Popen(
        ["bash", "-c", asked["command"]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENVIRONMENT,
        cwd="/root",
    )
    assert process.stdout is not None
    while chunk := os.read(process.stdout.fileno(), 32768):
        send(port, {"run": run, "printed": base64.b64encode(chunk).decode()})
    send(port, {"run": run, "exit": process.wait()})


def send(port: int, what: Mapping[str, object]) -> None:
    data = json.dumps(what).encode() + b"\n"
    while data:
        data = data[os.write(port, data) :]


if __name__ == "__main__":
    sys.exit(main())
