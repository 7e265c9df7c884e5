"""docs/server.md against the code: every setting, quota, error, route."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from belljar import errors
from belljar.cli import serve
from belljar.server import app
from belljar.server.errors import OF_BELLJAR, OF_HTTP, code_of, kind_of
from belljar.server.settings import ServerSettings, load
from belljar.server.tenants import Quotas

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/server.md").read_text()


def table(heading: str) -> dict[str, list[str]]:
    """The rows below a heading, by what stands in their first cell."""
    match = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, heading
    lines = [line for line in match[1].splitlines() if line.startswith("|")][2:]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0].strip("`"): cells[1:] for cells in found}


def shown(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value


def test_every_setting_is_documented_with_its_default() -> None:
    documented = table("Settings")
    assert list(documented) == list(ServerSettings.model_fields)
    usual = ServerSettings()
    for name, (words, default) in documented.items():
        assert words, name
        value = getattr(usual, name)
        if name not in ("quotas", "sandboxes"):
            assert default.strip("`") == shown(value), name


def test_l5_a_server_holds_less_of_each_run_than_the_library_unless_it_is_told_to() -> None:
    documented = table("Settings")["sandboxes"][0]
    usual = ServerSettings().jar.maxima
    assert f"`maxima.output_bytes` is {usual.output_bytes >> 20} MiB" in documented
    assert f"`maxima.result_bytes` {usual.result_bytes >> 20} MiB" in documented
    assert (usual.output_bytes, usual.result_bytes) == (8 << 20, 64 << 20)
    told = ServerSettings(sandboxes={"maxima": {"result_bytes": 1 << 30, "timeout_s": 7}}).jar
    assert (told.maxima.result_bytes, told.maxima.output_bytes) == (1 << 30, 8 << 20)
    assert told.maxima.timeout_s == 7


def test_every_quota_is_documented_with_its_default() -> None:
    documented = table("Keys and tenants")
    assert list(documented) == list(Quotas.model_fields)
    for name, value in Quotas().model_dump().items():
        if isinstance(value, int):
            assert documented[name][1] == str(value), name


def test_every_flag_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--drain` is `drain_s` and so on: flags are a few of the settings, under their names."""
    names = set(ServerSettings.model_fields) | {"config"}
    import inspect

    for flag in inspect.signature(serve.serve).parameters:
        assert {flag, f"{flag}_s", f"{flag}s"} & names, flag


def test_flags_win_over_variables_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.toml"
    file.write_text('port = 1\nhost = "::1"\nqueue_wait_s = 3\n[sandboxes.maxima]\ntimeout_s = 9\n')
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    monkeypatch.setenv("BELLJAR_SERVER_HOST", "127.0.0.2")
    monkeypatch.setenv("BELLJAR_SERVER_PORT", "2")
    monkeypatch.setenv("BELLJAR_SERVER_QUOTAS__QUEUE", "7")
    found = load(port=3)
    assert (found.port, found.host, found.queue_wait_s, found.quotas.queue) == (
        *(3, "127.0.0.2", 3.0),
        7,
    )
    assert found.jar.maxima.timeout_s == 9
    assert found.jar.maxima.memory_bytes == type(found.jar)().maxima.memory_bytes
    assert found.jar.trail.endswith("/trail/trail.db") and found.loopback


@pytest.mark.parametrize(
    "wrong",
    ["port = 70000", "prot = 1", "[sandboxes]\nengin = 1", "[sandboxes]\npool_size = -1",
     "[quotas]\nqueue = -1", "[quotas.maxima]\nspeed = 1", "drain_s = nan", "port =", "host = 5"],
)  # fmt: skip
def test_settings_that_are_wrong_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    file = tmp_path / "x.toml"
    file.write_text(wrong)
    with pytest.raises(errors.InvalidRequest, match="settings"):
        load(file=str(file))
    with pytest.raises(errors.InvalidRequest, match="is no file"):
        load(file=str(tmp_path / "none.toml"))


def test_the_example_file_is_one(tmp_path: Path) -> None:
    text = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert text and tomllib.loads(text[1])
    file = tmp_path / "x.toml"
    file.write_text(text[1])
    assert load(file=str(file)).jar.maxima.timeout_s == 60


def test_every_error_has_a_documented_status() -> None:
    documented = {
        code: int(status)
        for status, (cell,) in table("Errors").items()
        for code in re.findall(r"`([a-z_]+)`", cell)
    }
    expected = {code: kind.status for code, kind in OF_HTTP.items()}
    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, errors.BelljarError):
            if error is errors.BelljarError:
                continue
            status = kind_of(error("x")).status
            if issubclass(error, errors.InvalidRequest) and error is not errors.InvalidRequest:
                assert status == 400, name
                continue
            expected[code_of(error)] = status
    assert documented == expected
    assert errors.BelljarError not in OF_BELLJAR


def test_every_route_is_documented_and_exists() -> None:
    documented = set(re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/[^`?]*)`", PAGE))
    there = {
        (method.upper(), path)
        for path, operations in app.description()["paths"].items()
        for method in operations
    }
    assert documented - {("GET", "/openapi.json")} == there
