"""R1, L1-L5: results and limits as data."""

from __future__ import annotations

import base64
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar import Egress, Limits, OutputFile, Result, Settings
from belljar.model import MIB, Dropped, ErrorInfo, Finding, Output, Status, Usage

STATUSES: list[Status] = ["ok", "error", "timeout", "out_of_memory", "killed", "denied"]


def test_limits_are_the_missions() -> None:
    """L1 30 s and one core, L2 512 MB, L3 64 processes, L4 100 MB of disk, inodes bounded."""
    limits = Limits()
    assert limits.timeout_s == 30
    assert limits.cpus == 1
    assert limits.memory_bytes == 512 * MIB
    assert limits.processes == 64
    assert limits.disk_bytes == 100 * MIB
    assert 0 < limits.disk_files <= 100_000
    assert 0 < limits.open_files <= 4096
    assert 0 < limits.output_bytes <= 16 * MIB


def test_maxima_are_the_missions() -> None:
    """R5: code up to 100 KB, at most 120 s; no default is above its own maximum."""
    settings = Settings()
    assert settings.code_bytes == 100_000
    assert settings.maxima.timeout_s == 120
    for field in dataclasses.fields(Limits):
        assert getattr(settings.defaults, field.name) <= getattr(settings.maxima, field.name)


@pytest.mark.parametrize("status", STATUSES)
def test_flags_follow_from_the_status(status: Status) -> None:
    result = Result(status=status, exit_code=None)
    assert result.success is (status == "ok")
    assert result.timed_out is (status == "timeout")
    assert result.truncated is False


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_truncated_means_that_something_was_dropped(stream: str) -> None:
    assert Result(status="ok", exit_code=0, dropped=Dropped(**{stream: 1})).truncated


def test_results_cannot_be_changed() -> None:
    result = Result(status="ok", exit_code=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.status = "error"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/workspace/plot.png", "plot.png"),
        ("/data/output/a/b.csv", "a/b.csv"),
        ("/workspace/data/output/x", "data/output/x"),
        ("/elsewhere/x", "elsewhere/x"),
    ],
)
def test_the_name_of_a_file_is_its_path_below_its_place(path: str, name: str) -> None:
    assert OutputFile(path=path, size=0, content=b"").name == name


def complete() -> Result:
    return Result(
        status="error",
        exit_code=3,
        signal=None,
        stdout="out ✓",
        stderr="err",
        dropped=Dropped(stdout=5, stderr=0),
        error=ErrorInfo(name="ValueError", message="m", traceback="Traceback …"),
        files=(
            OutputFile(path="/workspace/a.bin", size=3, content=b"\x00\xff\n"),
            OutputFile(path="/workspace/b", size=9, content=None, skipped="a FIFO"),
        ),
        duration_ms=12.5,
        usage=Usage(cpu_ms=1.5, peak_memory_bytes=7, peak_processes=2),
        execution_id="abc",
        language="python",
        environment="base",
        engine="jail",
        isolation={"memory": "cgroup-v2"},
        warnings=("w",),
        findings=(Finding(line=1, rule="r", message="m"),),
        egress=(Egress(at=1.5, host="a.example", port=443, verdict="allowed"),),
        value="42",
        outputs=(Output(kind="display", data={"text/plain": "42", "image/png": b"\x89"}),),
        run_id=3,
        state_kept=True,
    )


def test_json_holds_everything_that_the_result_holds() -> None:
    """R1: no field is forgotten on the way to other front doors."""
    result = complete()
    data = json.loads(result.to_json())
    assert data == result.to_dict()
    fields = {field.name for field in dataclasses.fields(Result)}
    assert set(data) == fields | {"success", "timed_out", "truncated"}
    for name in fields - {"files", "isolation", "findings", "egress", "warnings", "outputs"}:
        value = getattr(result, name)
        if dataclasses.is_dataclass(value):
            assert not isinstance(value, type)
            value = dataclasses.asdict(value)
        assert data[name] == value
    assert data["isolation"] == {"memory": "cgroup-v2"}
    assert data["warnings"] == ["w"]
    (shown,) = data["outputs"]
    assert shown["data"] == {"text/plain": "42", "image/png": {"base64": "iQ=="}}
    (tried,) = data["egress"]
    assert (tried["host"], tried["port"], tried["verdict"]) == ("a.example", 443, "allowed")
    assert data["findings"] == [{"line": 1, "rule": "r", "message": "m"}]
    first, second = data["files"]
    assert base64.b64decode(first["content_base64"]) == b"\x00\xff\n"
    assert (second["content_base64"], second["skipped"]) == (None, "a FIFO")
    assert (first["name"], first["path"], first["size"]) == ("a.bin", "/workspace/a.bin", 3)


@given(content=st.binary(max_size=200), text=st.text(max_size=50))
def test_any_content_survives_json(content: bytes, text: str) -> None:
    result = Result(
        status="ok",
        exit_code=0,
        stdout=text,
        files=(OutputFile(path="/workspace/x", size=len(content), content=content),),
    )
    data = json.loads(result.to_json(indent=2))
    assert data["stdout"] == text
    assert base64.b64decode(data["files"][0]["content_base64"]) == content


def test_an_empty_result_is_json_too() -> None:
    data = json.loads(Result(status="denied", exit_code=None).to_json())
    assert (data["exit_code"], data["error"], data["files"]) == (None, None, [])
