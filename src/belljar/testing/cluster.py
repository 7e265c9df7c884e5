"""A PostgreSQL of a test's own: an unprivileged user, a temporary folder, no port."""

from __future__ import annotations

import glob
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa


def binaries() -> Path | None:
    """Where its programs are, the newest version's."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    program = found[-1] if found else shutil.which("initdb")
    return Path(program).parent if program else None


class Cluster:
    def __init__(self, binaries: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="belljar-pg-", dir="/tmp"))  # a short name
        self._numbers = itertools.count()
        become: list[str] = []
        if os.getuid() == 0:  # it refuses to run as root
            os.chown(self.folder, 65534, 65534)
            become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        data = self.folder / "data"
        subprocess.run(
            [*become, binaries / "initdb", "--no-sync", "--username=belljar", "--auth=trust", data],
            check=True,
            capture_output=True,
            cwd="/",
        )
        options = ["listen_addresses=", "fsync=off", "shared_buffers=16MB", "max_connections=40"]
        argv: list[str | Path] = [*become, binaries / "postgres", "-D", data, "-k", self.folder]
        argv += [word for option in options for word in ("-c", option)]
        self._process = subprocess.Popen(
            argv, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.admin = sa.create_engine(self._url("postgres"), isolation_level="AUTOCOMMIT")
        deadline = time.monotonic() + 30
        while True:
            try:
                with self.admin.connect():
                    return
            except sa.exc.OperationalError:
                assert self._process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)

    def _url(self, database: str) -> str:
        return f"postgresql+psycopg://belljar@/{database}?host={self.folder}"

    def database(self) -> str:
        """The URL of a new one."""
        name = f"made{next(self._numbers)}"
        self.do(f"CREATE DATABASE {name}")
        return self._url(name)

    def do(self, statement: str) -> None:
        with self.admin.connect() as connection:
            connection.exec_driver_sql(statement)

    def close(self) -> None:
        self.admin.dispose()
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(30)
        shutil.rmtree(self.folder)
