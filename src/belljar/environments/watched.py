"""Running uv on packages that nobody vouches for: bounded in time, disk and memory, told nothing.

Nothing of a wheel runs while it is installed, but its size and its metadata are a stranger's.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from belljar.environments import stopping, trees
from belljar.environments.install import LAST_LINES
from belljar.environments.stopping import LOOK_S
from belljar.errors import EnvironmentUnavailable, PackageRefused
from belljar.model import GIB, MIB

LINE_BYTES = 64 * 1024
MEMORY_BYTES = GIB
"""What uv may take: it reads a wheel's metadata in one piece, and a few megabytes of wheel may hold
gigabytes of it. A set of the largest packages takes 80 MiB."""
_MEMORY_PER_CPU_BYTES = 64 * MIB
"""On top, for the stacks of its threads: some per processor, and counted as they are reserved."""

# Where the operator's packages are and how to get there; everything else stays outside.
_PASSED_ON = re.compile(
    r"PATH|LANG|LC_ALL|TZ|NETRC|SSL_CERT_FILE|SSL_CERT_DIR|SSL_CLIENT_CERT"
    r"|(HTTPS?|ALL|NO)_PROXY|(https?|all|no)_proxy"
    r"|UV_((DEFAULT_|EXTRA_)?INDEX(_URL|_STRATEGY)?|INDEX_\w+_(USERNAME|PASSWORD)|FIND_LINKS"
    r"|KEYRING_PROVIDER|OFFLINE|NATIVE_TLS|SYSTEM_CERTS|INSECURE_HOST|EXCLUDE_NEWER|HTTP_TIMEOUT"
    r"|HTTP_RETRIES|CONCURRENT_DOWNLOADS)"
)
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s`'\")]+", re.IGNORECASE)


class Failed(Exception):
    """The program ended with an error; the text is its last lines, fit for a caller's eyes."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one build may take: a folder of its own, until when, and how much."""

    scratch: Path
    deadline: float
    seconds: float
    most_bytes: int
    lock_fds: tuple[int, ...]
    spare_bytes: int = 0
    """On top, for what is there only while it is built."""

    def check(self) -> None:
        """Raises once more was written than may be, or time is up."""
        self.check_time()
        taken = 0
        for entry in trees.entries(self.scratch):
            taken += trees.on_disk(entry)
            if taken > self.most_bytes + self.spare_bytes:
                raise too_large(self.most_bytes)

    def check_time(self) -> None:
        stopping.check()
        if time.monotonic() > self.deadline:
            raise EnvironmentUnavailable(
                f"packages: not built within {self.seconds:g} s",
                hint="ask for fewer or smaller packages; the operator's setting package_build_s "
                "decides",
            )


def too_large(most_bytes: int) -> PackageRefused:
    return PackageRefused(
        f"packages: they take more than {most_bytes / MIB:.4g} MiB on disk",
        hint="ask for fewer or smaller packages; the operator's setting package_bytes decides",
    )


def run(command: Sequence[str], bounds: Bounds, *, on_line: Callable[[str], None]) -> None:
    """Run to the end, or kill it and raise when it takes too much."""
    last: deque[str] = deque(maxlen=LAST_LINES)

    def take(line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        last.append(text)
        on_line(text)

    try:
        process = subprocess.Popen(
            command,
            cwd=bounds.scratch,
            env=_variables(bounds.scratch),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            umask=0o022,
            start_new_session=True,
            # Should this process be killed, its children go on writing for a while. Holding the
            # locks too, they keep the next builder waiting until they are done.
            pass_fds=bounds.lock_fds,
        )
    except OSError as error:
        raise EnvironmentUnavailable(f"cannot run {command[0]}: {error}") from error
    with process:
        try:
            _limit_memory(process.pid)
            _follow(process, bounds, take)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a group of its own, all that it started
            raise
    if process.returncode:
        raise Failed(_for_callers("\n".join(last), bounds.scratch))


def _limit_memory(pid: int) -> None:
    most = MEMORY_BYTES + _MEMORY_PER_CPU_BYTES * (os.cpu_count() or 1)
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        resource.prlimit(pid, resource.RLIMIT_CORE, (1, 1))
        resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))


def _follow(
    process: subprocess.Popen[bytes], bounds: Bounds, take: Callable[[bytes], None]
) -> None:
    assert process.stdout is not None
    output_fd = process.stdout.fileno()
    rest = b""
    looked = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(output_fd, selectors.EVENT_READ)
        while True:
            if selector.select(LOOK_S):
                data = os.read(output_fd, LINE_BYTES)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    take(line)
                if not data or len(rest) > LINE_BYTES:
                    take(rest)
                    rest = b""
                if not data:
                    break
            if time.monotonic() - looked > LOOK_S:
                bounds.check()
                looked = time.monotonic()
    while process.poll() is None:
        bounds.check_time()
        try:
            process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            continue


def _variables(scratch: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    return kept | {
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "UV_CACHE_DIR": str(scratch / "cache"),
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }


def _for_callers(text: str, scratch: Path) -> str:
    """Without addresses, which may carry the operator's password, and without the host's paths."""
    text = text.replace(f"{scratch}/", "").replace(str(scratch), ".")
    return _ADDRESS.sub("(an address)", text)
