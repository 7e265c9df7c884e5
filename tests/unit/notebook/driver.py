"""A process with a Notebook in it: takes cells as lines of JSON on one descriptor, answers on
another. Runs on every Python that the guest supports, so it imports the guest alone.

    python driver.py GUEST_FOLDER IN OUT OUTPUT_BYTES OUTPUTS [PACKAGES]
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import sys

folder, source, sink, output_bytes, outputs, *packages = sys.argv[1:]
sys.path.insert(0, os.path.dirname(folder))
module = importlib.import_module(os.path.basename(folder) + ".notebook")
sys.path[0] = ""
sys.path += packages
# Low numbers, as an interpreter behind a wall has them: some code closes all high ones.
moved = [fcntl.fcntl(int(given), fcntl.F_DUPFD, 64) for given in (source, sink)]
os.close(int(source))
os.close(int(sink))
for index, high in enumerate(moved):
    os.dup2(high, 40 + index)
    os.close(high)
said = os.fdopen(41, "w", encoding="ascii", buffering=1)


def say(kind: str, content: object) -> None:
    said.write(json.dumps([kind, content]) + "\n")


def emit(output: object) -> None:
    say("output", output)


notebook = module.Notebook(emit, output_bytes=int(output_bytes), outputs=int(outputs))
say("ready", os.getpid())
for line in os.fdopen(40):
    order = json.loads(line)
    if "stdin" in order:
        read, write = os.pipe()
        os.write(write, order["stdin"].encode())
        os.close(write)
        os.dup2(read, 0)
        os.close(read)
    say("end", notebook.run(order["code"], order["name"]))
