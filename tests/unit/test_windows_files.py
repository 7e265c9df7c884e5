"""What a run leaves has names that hostile code chose; Windows reads some of them differently."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.cli import windows_files
from belljar.errors import InvalidRequest


@pytest.mark.parametrize(
    "name",
    [
        *("..\\..\\evil", "C:evil", "a/C:\\x", "a.txt:stream", "nul", "CON", "con.txt", "Aux.x.y"),
        *("com1", "LPT9.log", "COM¹", "nul .txt", "a/prn/b", "dot.", "space ", "a./b", "x*", "q?"),
        *("tab\t", "a//b", "CONIN$", '"', "a|b", "<"),
    ],
)
def test_what_means_something_else_is_not_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="another meaning"):
        windows_files.Place(str(tmp_path)).write(name, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["a.txt", "a/b/c.csv", "console", "null", "com10", "ü ö", ".x", "$"]
)
def test_ordinary_names_are_written(name: str, tmp_path: Path) -> None:
    place = windows_files.Place(str(tmp_path))
    place.write(name, b"one")
    place.write(name, b"two")
    assert (tmp_path / name).read_bytes() == b"two"
    assert not list(tmp_path.rglob(".belljar-*"))


def test_no_link_is_followed(tmp_path: Path) -> None:
    """A folder that leads elsewhere is refused, a file that is a link is replaced."""
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (outside / "file").write_text("mine")
    os.symlink(outside, folder / "way")
    os.symlink(outside / "file", folder / "link")
    place = windows_files.Place(str(folder))
    with pytest.raises(InvalidRequest, match="leads out"):
        place.write("way/file", b"evil")
    place.write("link", b"new")
    assert (outside / "file").read_text() == "mine"
    assert not (folder / "link").is_symlink() and (folder / "link").read_bytes() == b"new"
