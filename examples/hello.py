"""Sample code for `make run`: does some work, then tries what a sandbox must not allow."""

import math
import os
import socket
from pathlib import Path

print("primes:", [n for n in range(2, 40) if all(n % d for d in range(2, math.isqrt(n) + 1))])

Path("/data/output/squares.csv").write_text("".join(f"{n},{n * n}\n" for n in range(10)))
print("squares: in /data/output/squares.csv, which comes back with the result")

processes = [name for name in os.listdir("/proc") if name.isdigit()]
print(f"I am user {os.getuid()} on {os.uname().nodename} and see {len(processes)} processes")


def attempt(what, action):
    try:
        action()
        print(f"  {what}: it worked!?")
    except OSError as error:
        print(f"  {what}: {error}")


print("out of bounds:")
attempt("look up a host name", lambda: socket.getaddrinfo("example.com", 443))
attempt("read the host's passwords", lambda: Path("/etc/shadow").read_text())
attempt("change the system", lambda: Path("/usr/bin/new").write_text("evil"))
attempt("become root", lambda: os.setuid(0))
attempt("fill the disk", lambda: Path("/tmp/fill").write_bytes(bytes(200_000_000)))
