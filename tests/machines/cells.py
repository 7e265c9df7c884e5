"""The sessions a guest is tried in: who runs the command, and what stands around it.

Every command goes through a real login: sshd and PAM make the session, logind its scope and the
user's manager. The two other kinds of user session are asked of that manager, as a person would.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from . import roots

CHECKOUT = "/srv/belljar"
BIN = f"{CHECKOUT}/.venv/bin"
HOMES = "/srv/homes"
IMAGE = "belljar-machine"
CONTAINER_OPTIONS = (
    "--security-opt seccomp=unconfined",
    "--security-opt apparmor=unconfined",
    "--security-opt systempaths=unconfined",
)
"""Those of deploy/README.md: no capability, no --privileged."""
_START_DOCKER = (
    "systemctl start docker; "
    f"docker image inspect {IMAGE} >/dev/null 2>&1 || docker import /{roots.CONTAINER} {IMAGE}"
)


@dataclass(frozen=True)
class Cell:
    name: str
    title: str
    wrap: Callable[[str], str]
    """A command of this cell's as one of the agent's."""
    prepare: str = ""
    """For the agent, before the first command."""


def variables(home: str) -> dict[str, str]:
    return {
        "LANG": "C.UTF-8",
        "COLUMNS": "200",
        "BELLJAR_HOME": f"{HOMES}/{home}",
        "BELLJAR_TEST_HOME": f"{HOMES}/{home}",
        "UV_OFFLINE": "1",  # a guest has no network: there is nothing to try again
        # Tests that change a machine's settings may do so: the guest is thrown away.
        "BELLJAR_CHANGE_MACHINE": "1",
    }


def in_checkout(command: str, home: str) -> str:
    exports = " ".join(f"{name}={value}" for name, value in variables(home).items())
    return f"export {exports}; cd {CHECKOUT}; {command}"


def login(user: str, command: str) -> str:
    return f"ssh -n -o BatchMode=yes {user}@localhost {shlex.quote(command)}"


def as_root(command: str) -> str:
    return login("root", in_checkout(command, "root"))


def as_user(command: str) -> str:
    return login("alice", in_checkout(command, "alice"))


def by_manager(options: str) -> Callable[[str], str]:
    def wrap(command: str) -> str:
        inner = shlex.quote(in_checkout(command, "alice"))
        return login("alice", f"systemd-run --user --quiet {options} bash -c {inner}")

    return wrap


def in_container(options: str, home: str) -> Callable[[str], str]:
    def wrap(command: str) -> str:
        given = " ".join((*CONTAINER_OPTIONS, options))
        inner = shlex.quote(in_checkout(command, home))
        return f"docker run --rm -v /srv:/srv -e HOME=/tmp {given} {IMAGE} bash -c {inner}"

    return wrap


SUDO_GIVEN = "echo 'alice ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/alice"
SUDO_TAKEN = "rm /etc/sudoers.d/alice"
_ADVISED = (
    f"{SUDO_GIVEN}; {as_user(f'{BIN}/belljar doctor --fix --yes')}; "
    f"status=$?; {SUDO_TAKEN}; exit $status"
)
"""What doctor says to type, typed by somebody who may use sudo."""

CELLS = {
    cell.name: cell
    for cell in (
        Cell("root", "root, by ssh", as_root),
        Cell("user", "a user, by ssh", as_user),
        Cell("user-service", "a user's service", by_manager("--pipe --wait --collect")),
        Cell("user-scope", "a delegated scope", by_manager("--scope -p Delegate=yes")),
        Cell("docker-root", "root in Docker", in_container("", "root"), _START_DOCKER),
        Cell(
            "docker-user", "a user in Docker", in_container("--user 1000", "alice"), _START_DOCKER
        ),
        # The last one: what it changes holds for every session after it.
        Cell("user-advised", "a user, as doctor advised", as_user, _ADVISED),
    )
}
