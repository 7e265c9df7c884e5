"""I2: the plan of the private root, for machines that were only invented."""

from __future__ import annotations

import json
import posixpath

import pytest

from belljar.engines.linux import root
from belljar.engines.linux.places import INPUT, WRITABLE
from belljar.engines.linux.root import HostFacts, Step, plan_root

MERGED = {"/bin": "usr/bin", "/lib": "usr/lib", "/lib64": "usr/lib64", "/sbin": "usr/sbin"}


def facts(
    *,
    prefix: str = "/usr",
    links: dict[str, str] | None = None,
    folders: tuple[str, ...] = (),
    packages: tuple[str, ...] = (),
) -> HostFacts:
    return HostFacts(
        top_links=MERGED if links is None else links,
        top_folders=folders,
        etc=("ld.so.cache", "ssl/certs"),
        python=f"{prefix}/bin/python3.12",
        python_prefix=prefix,
        foreign_packages=packages,
    )


def binds(steps: list[Step]) -> dict[str, str]:
    """Place inside → host path."""
    return {step[1]: step[2] for step in steps if step[0] in ("bind", "device")}


def covers(steps: list[Step]) -> set[str]:
    return {step[1] for step in steps if step[0] == "cover"}


MACHINES = {
    "merged /usr": facts(),
    "unmerged /usr": facts(links={}, folders=("/bin", "/lib", "/lib64", "/sbin")),
    "half merged": facts(links={"/bin": "usr/bin"}, folders=("/lib", "/lib64")),
    "python in /usr/local": facts(prefix="/usr/local"),
    "python in /opt": facts(prefix="/opt/python3.12"),
    "python in a home": facts(
        prefix="/home/ann/.pyenv/versions/3.12.1",
        packages=("/home/ann/.pyenv/versions/3.12.1/lib/python3.12/site-packages",),
    ),
    "a prefix that only begins like /usr": facts(prefix="/usrlocal/python"),
}
machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())


@machines
@pytest.mark.parametrize("environment", [None, ("/srv/data-1", "/opt/belljar/data")])
def test_only_what_a_runtime_needs_comes_along(
    machine: HostFacts, environment: tuple[str, str] | None
) -> None:
    """I2: no folder of the host that holds people's or the system's state is ever bound."""
    private = {"/", "/home", "/root", "/etc", "/var", "/proc", "/sys", "/dev", "/run", "/tmp"}
    private |= {"/home/ann", "/home/ann/.pyenv", "/opt", "/srv", "/mnt", "/boot"}
    allowed = {"/usr", *machine.top_folders, machine.python_prefix}
    allowed |= {f"/etc/{name}" for name in machine.etc}
    allowed |= {f"/dev/{name}" for name in root.DEVICES}
    if environment:
        allowed.add(environment[0])
    sources = set(binds(plan_root(machine, environment)).values())
    assert sources <= allowed
    assert not sources & private


@machines
def test_the_interpreter_is_reachable_where_it_thinks_it_is(machine: HostFacts) -> None:
    """It finds its library by its own path, so that must be the same inside."""
    steps = plan_root(machine, None)
    bound = binds(steps)
    prefix = machine.python_prefix
    inside = [place for place in bound if prefix == place or prefix.startswith(place + "/")]
    assert inside
    assert all(bound[place] == place for place in inside)
    assert not any(prefix == place or prefix.startswith(place + "/") for place in covers(steps))


@machines
def test_local_programs_are_hidden_unless_python_is_one(machine: HostFacts) -> None:
    is_local = machine.python_prefix.startswith("/usr/local")
    assert ("/usr/local" in covers(plan_root(machine, None))) is not is_local


@machines
def test_the_hosts_packages_are_covered(machine: HostFacts) -> None:
    """Code must not import what happens to be installed on the host."""
    assert set(machine.foreign_packages) <= covers(plan_root(machine, None))


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        (MACHINES["merged /usr"], "link"),
        (MACHINES["unmerged /usr"], "bind"),
    ],
)
def test_top_folders_are_links_or_folders_as_on_the_host(machine: HostFacts, kind: str) -> None:
    steps = plan_root(machine, None)
    for name in ("/bin", "/lib", "/lib64", "/sbin"):
        (step,) = [step for step in steps if step[1] == name]
        assert step[0] == kind
        assert step[2] == (MERGED[name] if kind == "link" else name)


def test_a_python_that_only_begins_like_usr_is_bound() -> None:
    steps = plan_root(MACHINES["a prefix that only begins like /usr"], None)
    assert binds(steps)["/usrlocal/python"] == "/usrlocal/python"


def test_a_python_below_usr_is_not_bound_twice() -> None:
    assert list(binds(plan_root(facts(prefix="/usr/local"), None)).values()).count("/usr") == 1
    assert "/usr/local" not in binds(plan_root(facts(prefix="/usr/local"), None))


def test_the_environment_is_mounted_at_its_place() -> None:
    steps = plan_root(facts(), ("/home/ann/.local/share/belljar/x", "/opt/belljar/data"))
    assert binds(steps)["/opt/belljar/data"] == "/home/ann/.local/share/belljar/x"
    assert not any(place.startswith("/home") for _, place, *_ in steps)


@machines
def test_writable_places_are_only_folders_in_the_template(machine: HostFacts) -> None:
    """I2: the template itself is read-only; each sandbox puts its own tmpfs there."""
    steps = plan_root(machine, None)
    for place in (*WRITABLE, INPUT):
        assert ("folder", place) in steps
        assert place not in binds(steps)


@machines
def test_python_on_the_path_is_the_one_that_runs_the_code(machine: HostFacts) -> None:
    """A host may have several; `python3` in a child must not be another one."""
    links = {step[1]: step[2] for step in plan_root(machine, None) if step[0] == "link"}
    assert links["/opt/belljar/bin/python"] == machine.python
    assert links["/opt/belljar/bin/python3"] == machine.python


@machines
def test_only_harmless_devices(machine: HostFacts) -> None:
    devices = {step[1] for step in plan_root(machine, None) if step[0] == "device"}
    assert devices == {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}


@machines
def test_the_plan_travels_as_json_and_has_plain_places(machine: HostFacts) -> None:
    steps = plan_root(machine, ("/srv/data", "/opt/belljar/data"))
    assert [tuple(step) for step in json.loads(json.dumps(steps))] == steps
    for kind, place, *_ in steps:
        assert kind in ("bind", "device", "cover", "folder", "file", "link")
        assert place == posixpath.normpath(place)
        assert place.startswith("/")


@machines
def test_no_place_is_made_twice(machine: HostFacts) -> None:
    places = [step[1] for step in plan_root(machine, ("/srv/d", "/opt/belljar/d"))]
    made = [step[1] for step in plan_root(machine, None) if step[0] != "cover"]
    assert len(made) == len(set(made))
    assert set(made) <= set(places)


def test_etc_says_nothing_about_the_host() -> None:
    """I2, I4: one user, no name server that could answer."""
    files = {step[1]: step[2] for step in plan_root(facts(), None) if step[0] == "file"}
    assert files["/etc/hostname"] == "belljar\n"
    users = [line.split(":")[0] for line in files["/etc/passwd"].splitlines()]
    assert users == ["root", "sandbox", "nobody"]
    servers = [line for line in files["/etc/resolv.conf"].splitlines() if "nameserver" in line]
    assert servers == ["nameserver 127.0.0.1"]


def test_the_facts_of_this_machine_make_a_plan() -> None:
    here = root.host_facts(
        "/usr/bin/python3", "/usr", ["/usr/lib/python3/dist-packages", "/does/not/exist"]
    )
    assert "/does/not/exist" not in here.foreign_packages
    assert set(here.top_links) | set(here.top_folders) >= {"/bin", "/lib"}
    assert not set(here.top_links) & set(here.top_folders)
    assert plan_root(here, None)
