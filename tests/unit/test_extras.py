"""A hint to install something can be typed, whether Belljar came from a checkout or by its name."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from belljar import extras
from belljar.errors import EnvironmentUnavailable
from belljar.server.errors import answer

SOURCE = Path(__file__).parents[2] / "src" / "belljar"


def came_from(monkeypatch: pytest.MonkeyPatch, told: str | None) -> None:
    found = SimpleNamespace(read_text=lambda _: told)
    monkeypatch.setattr(metadata, "distribution", lambda _: found)


def test_a1_a_checkout_is_named_with_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout = tmp_path / "it's here"
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    told = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    came_from(monkeypatch, json.dumps(told))
    typed = [sys.executable, "-m", "pip", "install", "-e", f"{checkout}[mcp,server]"]
    assert shlex.split(extras.install("mcp", "server")) == typed
    came_from(monkeypatch, json.dumps({"url": checkout.as_uri(), "dir_info": {}}))
    typed.remove("-e")
    assert shlex.split(extras.install("mcp", "server")) == typed
    (checkout / "pyproject.toml").unlink()
    assert extras.install("mcp").endswith(" -m pip install 'belljar[mcp]'"), "it is gone"


@pytest.mark.parametrize("told", [None, '{"url": "https://x.example/belljar.whl"}'])
def test_a1_what_came_by_its_name_is_got_by_its_name(
    monkeypatch: pytest.MonkeyPatch, told: str | None
) -> None:
    came_from(monkeypatch, told)
    assert extras.install("mcp").endswith(" -m pip install 'belljar[mcp]'")


def test_a1_whatever_is_asked_for_exists() -> None:
    known = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    asked = {
        name
        for file in SOURCE.rglob("*.py")
        for name in re.findall(r"(?:hint=|extras\.)install\(\"(\w+)\"\)", file.read_text())
    }
    assert asked >= {"client", "mcp", "server", "trail", "postgres"}
    assert asked <= set(known["optional-dependencies"])


def test_f2_paths_of_the_host_are_not_told_to_others() -> None:
    error = EnvironmentUnavailable("it is missing", hint=extras.install("restricted"))
    assert sys.executable in error.hint
    said = json.loads(bytes(answer(error, ran=False).body))["error"]
    assert said["hint"] == "its operator can install what is missing"


def test_no_hint_is_written_by_hand() -> None:
    """Belljar is on no index yet: nobody is told to get it by its name alone."""
    root = SOURCE.parents[1]
    texts = list(SOURCE.rglob("*.py"))
    texts += [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("skills/**/*.*")]
    texts += root.glob("deploy/*")
    for file in texts:
        assert not re.search(r"pip install '?belljar\b", file.read_text()), file


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Docker cannot be reached at unix:///run/user/1000/docker.sock", "reached at …"),
        ("Docker at tcp://10.0.0.7:2375 is closed to us", "Docker at … is closed to us"),
        ("[Errno 13] Permission denied: '/srv/belljar/layers/x.lock'", "denied: '…'"),
        ("stored in /home/op/.local/share/belljar: full", "stored in … full"),
        ("below /opt, which sandboxes cannot see", "below …, which"),
        ("the module virtio is not in /lib/modules/6.1/kernel", "is not in …"),
    ],
)
def test_a3_others_see_no_path_of_this_machine(said: str, told: str) -> None:
    assert told in extras.without_paths(said)


def test_a3_what_is_the_same_everywhere_may_be_seen() -> None:
    for said in (
        "see https://example.com/a/b and docs/network.md",
        "/workspace/x and /data/input/y and /dev/kvm",
        "ulimit -n, -u; 1/2 and/or",
    ):
        assert extras.without_paths(said) == said
