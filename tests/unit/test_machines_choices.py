"""Which guests, sessions, QEMU and package sources the test machines take (K1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.machines import (
    archive,
    cells,
    guests,
    indexes,
    inside,
    layers,
    matrix,
    qemu,
    roots,
    selections,
)
from tests.machines.errors import (
    CannotBeHad,
    MachinesError,
    SetupFailed,
    mount_error,
    setup_error,
)
from tests.machines.guest import console_tail


def names(chosen: list[tuple[guests.Guest, list[cells.Cell]]]) -> dict[str, list[str]]:
    return {guest.name: [cell.name for cell in has] for guest, has in chosen}


def test_nothing_named_is_everything() -> None:
    chosen = names(matrix.choose("", ""))
    assert list(chosen) == list(guests.GUESTS)
    assert chosen["noble"] == list(cells.CELLS)
    assert "user-advised" not in chosen["trixie"]


def test_a_guest_has_only_its_own_cells() -> None:
    assert names(matrix.choose("trixie,jammy", "user, docker-user")) == {
        "trixie": ["user", "docker-user"],
        "jammy": ["user"],
    }


@pytest.mark.parametrize(
    ("wanted", "sessions", "said"),
    [
        ("sid", "", "there is no sid; there are bookworm"),
        ("", "admin", "there is no admin; there are root"),
        ("jammy", "docker-root", "none of jammy has docker-root"),
    ],
)
def test_what_is_not_there_is_refused(wanted: str, sessions: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        matrix.choose(wanted, sessions)


@pytest.mark.parametrize(
    ("printed", "enough"),
    [
        ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)", False),
        ("QEMU emulator version 8.2.2 (Debian 1:8.2.2+ds-0ubuntu1)", False),
        ("QEMU emulator version 9.0.1", True),
        ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)", True),
        ("error while loading shared libraries", False),
        ("", False),
    ],
)
def test_a_qemu_that_crashes_new_kernels_is_not_taken(printed: str, enough: bool) -> None:
    assert qemu.new_enough(printed) is enough


def test_emulated_processors_have_no_fifth_level() -> None:
    assert "max,la57=off" in qemu.Qemu(("qemu",), "tcg").processor
    assert "host" in qemu.Qemu(("qemu",), "kvm").processor


def test_apt_sources_in_both_formats(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://no.test/debian sid main\n"
        "deb [arch=amd64 signed-by=/keys/a.gpg] http://one.test/debian bookworm main\n"
        "deb-src http://one.test/debian bookworm main\n"
    )
    (tmp_path / "sources.list.d/two.sources").write_text(
        "Types: deb deb-src\n# a remark: here\nURIs: http://two.test/ubuntu\n"
        "Suites: noble noble-updates\nSigned-By: /keys/b.gpg\n\n"
        "Types: deb\nEnabled: no\nURIs: http://off.test/debian\nSuites: sid\n"
    )
    assert archive.sources(tmp_path) == [
        archive.Source("http://two.test/ubuntu", ("noble", "noble-updates"), "/keys/b.gpg"),
        archive.Source("http://one.test/debian", ("bookworm",), "/keys/a.gpg"),
    ]


def test_the_other_archive_is_beside_the_one_that_is_configured() -> None:
    known = [
        archive.Source("http://else.test/apt", ("x",), ""),
        archive.Source("http://one.test/mirrors/debian/", ("bookworm",), ""),
    ]
    assert archive.mirror("debian", known) == "http://one.test/mirrors/debian"
    assert archive.mirror("ubuntu", known) == "http://one.test/mirrors/ubuntu"
    with pytest.raises(CannotBeHad, match="no mirror of ubuntu"):
        archive.mirror("ubuntu", known[:1])


def test_a_package_is_found_by_its_whole_name() -> None:
    index = (
        "Package: ubuntu-keyring-x\nFilename: pool/x.deb\n\n"
        "Package: ubuntu-keyring\nVersion: 1\nFilename: pool/u/k.deb\nSize: 3\n"
    )
    assert archive.package_file("ubuntu-keyring", index) == "pool/u/k.deb"
    with pytest.raises(SetupFailed):
        archive.package_file("ubuntu", index)


def test_pips_configuration_comes_along_with_what_it_names(tmp_path: Path) -> None:
    simple, wheels, bundle = tmp_path / "index/simple", tmp_path / "wheels", tmp_path / "ca.crt"
    simple.mkdir(parents=True)
    wheels.mkdir()
    bundle.touch()
    listed = (
        f":env:.find-links='{wheels}'\n"
        f"global.extra-index-url='file://{simple}\\nhttps://index.test/simple'\n"
        "install.no-compile='true'\n"
    )
    environ = {"PIP_FIND_LINKS": str(wheels), "SSL_CERT_FILE": str(bundle), "HOME": "/root"}
    found = indexes.collect(listed, environ)
    assert found.environment == {
        "PIP_FIND_LINKS": str(wheels),
        "SSL_CERT_FILE": str(bundle),
    }
    assert found.places == (bundle, simple.parent, wheels)
    assert found.configuration == (
        f"[global]\nextra-index-url = file://{simple}\n    https://index.test/simple\n"
        "[install]\nno-compile = true\n"
    )


def test_places_leave_out_what_is_missing_relative_or_everything(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    words = ["/", "relative", "/nowhere/at/all", str(tmp_path), f"{tmp_path}/in", "180"]
    assert indexes.places(words) == [tmp_path]


def test_a_root_is_only_ever_the_lower_layer(tmp_path: Path) -> None:
    """Preparing a checkout must not change what the next guest boots from."""
    known = indexes.Indexes({}, "[global]\ntimeout = 3\n", (tmp_path,))
    lines = inside.plan(Path("/cache/a root"), srv=Path("/cache/srv"), indexes=known)
    assert [line for line in lines if "/cache/a root" in line] == [
        "mount -t overlay -o"
        " 'lowerdir=/cache/a root,upperdir=/mnt/upper,workdir=/mnt/work' overlay /mnt/new"
    ]
    assert f"mount --bind -o ro {tmp_path} .{tmp_path}" in lines
    assert not any("--rbind" in line for line in lines)  # what is below would stay writable
    assert lines.index("pivot_root . .old") > lines.index("mount --bind /cache/srv srv")


def test_a_root_is_made_anew_when_its_packages_or_its_recipe_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trixie = guests.GUESTS["trixie"]
    keys = {roots.key(guest) for guest in guests.GUESTS.values()}
    assert len(keys) == len(guests.GUESTS)
    keys.add(roots.key(replace(trixie, packages=(*trixie.packages, "strace"))))
    monkeypatch.setattr(roots, "_UNIT", f"{roots._UNIT}# changed\n")
    keys.add(roots.key(trixie))
    monkeypatch.setattr(roots, "prepare", print_nothing)
    keys.add(roots.key(trixie))
    assert len(keys) == len(guests.GUESTS) + 3


def print_nothing(root: Path) -> None:
    """Another recipe."""


@pytest.fixture
def aged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bool], str]:
    """The root taken when there is one of so many days ago, and the archive is there or not."""
    forky = guests.GUESTS["forky"]

    def ensure(days: int, reachable: bool) -> str:
        def build(guest: guests.Guest, made: Path, *more: object) -> Path:
            if not reachable:
                raise CannotBeHad("no network")
            return made

        monkeypatch.setattr(roots, "build", build)
        day = datetime.now(UTC).date() - timedelta(days=days)
        (tmp_path / "roots").mkdir(exist_ok=True)
        roots.image(roots.folder(forky, tmp_path, day)).touch()
        return roots.ensure(forky, tmp_path, archive.Archives(tmp_path), print).name[-8:]

    return ensure


@pytest.mark.parametrize(
    ("days", "reachable", "taken"), [(1, True, 1), (30, True, 0), (30, False, 30)]
)
def test_a_root_ages_and_an_old_one_is_better_than_none(
    aged: Callable[[int, bool], str], days: int, reachable: bool, taken: int
) -> None:
    day = datetime.now(UTC).date() - timedelta(days=taken)
    assert aged(days, reachable) == f"{day:%Y%m%d}"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("E: Unable to locate package docker-cly", SetupFailed),
        ("E: You don't have enough free space in /var/cache/apt/archives/.", SetupFailed),
        ("mke2fs: Could not allocate block in ext2 filesystem while writing", SetupFailed),
        ("E: The repository 'http://one.test/debian sid Release' does not have…", SetupFailed),
        ("Err:1 http://one.test/debian sid\n  Could not connect to one.test:80", CannotBeHad),
        ("  Temporary failure resolving 'one.test'", CannotBeHad),
        ("  cause: dns error\n  cause: failed to lookup address information", CannotBeHad),
    ],
)
def test_only_a_missing_network_is_passed_over(said: str, kind: type[MachinesError]) -> None:
    """A broken recipe or a full disk must be red in CI."""
    assert type(setup_error("it failed", said)) is kind


def test_a_missing_privilege_is_passed_over_and_a_wrong_mount_is_not() -> None:
    denied = mount_error("no place", "unshare: unshare failed: Operation not permitted")
    wrong = mount_error("no place", "mount: /mnt/new: special device overlay does not exist.")
    assert type(denied) is CannotBeHad
    assert type(wrong) is SetupFailed


def test_a_root_without_a_kernel_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match="no kernel"):
        roots.kernel(tmp_path)


def test_guests_side_by_side_boot_for_each_cell() -> None:
    chosen = matrix.choose("trixie", "root,user,docker-root,docker-user")
    assert matrix.units(chosen, 1) == chosen
    assert [names([unit]) for unit in matrix.units(chosen, 2)] == [
        {"trixie": ["root"]},
        {"trixie": ["user"]},
        {"trixie": ["docker-root", "docker-user"]},  # the daemon takes minutes to start
    ]


def test_every_cell_goes_through_a_session_of_its_own() -> None:
    wrapped = {name: cell.wrap("echo 'a b'") for name, cell in cells.CELLS.items()}
    assert wrapped["root"].startswith("ssh -n -o BatchMode=yes root@localhost ")
    for name in ("user", "user-service", "user-scope"):
        assert wrapped[name].startswith("ssh -n -o BatchMode=yes alice@localhost ")
    assert "--scope -p Delegate=yes" in wrapped["user-scope"]
    assert "--user 1000" in wrapped["docker-user"]
    assert not any("--privileged" in text or "--cap-add" in text for text in wrapped.values())


def test_containers_get_the_documented_options() -> None:
    deploy = Path(__file__).parents[2].joinpath("deploy/README.md").read_text()
    assert f'options="{" ".join(cells.CONTAINER_OPTIONS)}"' in deploy


def test_what_differs_from_machine_to_machine_is_asked_everywhere() -> None:
    full, quick = selections.SELECTIONS["full"].tests, selections.SELECTIONS["quick"].tests
    for name in ("systemd_scope", "doctor_advice", "docker_jail"):
        assert f"tests/functional/test_{name}.py" in full
    assert "tests/security/test_shadow_modules.py" in full
    assert "tests/functional/test_systemd_scope.py" in quick
    assert all("BELLJAR_CHANGE_MACHINE=1" in cell.wrap("true") for cell in cells.CELLS.values())


def test_selections_name_tests_that_are_there() -> None:
    repository = Path(__file__).parents[2]
    for selection in selections.SELECTIONS.values():
        for test in selection.tests:
            file, _, name = test.partition("::")
            text = (repository / file).read_text()
            assert not name or f"def {name.partition('[')[0]}(" in text, test


def test_the_tail_of_a_console_has_no_colours(tmp_path: Path) -> None:
    console = tmp_path / "console"
    console.write_bytes(b"one\r\n\x1b[0;32m  OK  \x1b[0m two\r\n\r\n")
    assert console_tail(console) == "one\n  OK   two"
    assert console_tail(tmp_path / "missing") == ""


def test_tests_left_out_are_there_and_left_out() -> None:
    repository = Path(__file__).parents[2]
    for test in selections.UNFAIR:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (repository / file).read_text(), test
    command = selections.pytest_command(selections.SELECTIONS["quick"], "python")
    assert "--deselect" not in command  # none of them is asked for
    command = selections.pytest_command(selections.SELECTIONS["full"], "python")
    assert "--deselect=tests/functional/test_limits.py::test_time_is_up_for_everyone" in command
    assert "-n" not in command.split()


def test_only_what_is_installed_makes_a_new_venv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, keys = Path("trixie-1-20260101"), []
    for dependency, width in (("rich", 100), ("rich", 90), ("typer", 90)):
        (tmp_path / "pyproject.toml").write_text(
            f'[build-system]\nrequires = ["x"]\n[project]\ndependencies = ["{dependency}"]\n'
            f"[tool.ruff]\nline-length = {width}\n"
        )
        keys.append(layers.setup_key(root, tmp_path))
    assert keys[0] == keys[1] != keys[2]
    keys.append(layers.setup_key(Path("trixie-1-20260201"), tmp_path))
    monkeypatch.setattr(layers, "_ENVIRONMENTS", "true")
    keys.append(layers.setup_key(root, tmp_path))
    assert len(set(keys)) == 4


def test_every_changed_file_makes_a_new_layer(tmp_path: Path) -> None:
    root, file = Path("trixie-1-20260101"), Path("src.py")
    keys = set()
    for text, mode in (("a", 0o644), ("b", 0o644), ("b", 0o755)):
        (tmp_path / file).write_text(text)
        (tmp_path / file).chmod(mode)
        keys.add(layers.key(root, tmp_path, [file]))
    assert len(keys) == 3


def test_a_checkout_is_copied_without_leftovers_and_with_its_venv(tmp_path: Path) -> None:
    checkout, target = tmp_path / "checkout", tmp_path / "target"
    (checkout / "src").mkdir(parents=True)
    (checkout / "src/new.py").write_text("new")
    (target / ".venv").mkdir(parents=True)
    (target / "src").mkdir()
    (target / "src/old.py").touch()
    layers.copy(checkout, [Path("src/new.py")], target)
    found = {str(path.relative_to(target)) for path in target.rglob("*")}
    assert found == {".venv", "src", "src/new.py"}
