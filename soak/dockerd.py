"""A daemon of Docker of the soak's own, to be killed: no other is touched.

What it keeps stays below Belljar's data directory, so that its image is made once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from belljar.settings import default_home

START_S = 60.0
IMAGE = "belljar/base"


class Dockerd:
    def __init__(self, folder: Path) -> None:
        """`folder`: for its socket and what it runs; new each time."""
        self._folder = folder
        self._data = default_home() / "soak" / "docker"
        self._pidfile = folder / "docker.pid"
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "docker.log"
        self.host = f"unix://{folder / 'docker.sock'}"

    @staticmethod
    def why_not() -> str:
        """Why there can be none on this machine."""
        if os.geteuid() != 0:
            return "it takes root"
        if not shutil.which("dockerd") or not shutil.which("docker"):
            return "Docker is not installed"
        return ""

    def start(self) -> bool:
        """Whether it answers in time. Its mounts are its own."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._data.mkdir(parents=True, mode=0o700, exist_ok=True)
        # One that was killed leaves these behind, and would be waited for.
        self._pidfile.unlink(missing_ok=True)
        (self._folder / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--propagation", "slave", "dockerd"),
                    *("--data-root", str(self._data), "--exec-root", str(self._folder / "exec")),
                    *("--pidfile", str(self._pidfile), "--host", self.host),
                    *("--iptables=false", "--bridge=none"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.docker("version").returncode == 0:
                return True
            time.sleep(0.2)
        return False

    def docker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = ["docker", "--host", self.host, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60)

    @property
    def has_image(self) -> bool:
        return self.docker("image", "inspect", IMAGE).returncode == 0

    def containers(self) -> list[str]:
        return self.docker("ps", "--all", "--quiet", "--no-trunc").stdout.split()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(START_S)
