"""S4: what uploads may take of the disk: with a length, without, side by side."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from belljar.server import datasets
from belljar.server.datasets import LOOK_BYTES, RESERVE_BYTES, Datasets
from belljar.server.errors import ApiError
from belljar.server.tenants import Quotas, Tenant

MB = 1 << 20
TENANT = Tenant("a", Quotas())


class Disk:
    """As much room as a test says, less what was written since."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 1 << 40
        self._folder = folder
        monkeypatch.setattr(datasets.os, "statvfs", self._look)

    def _look(self, _: Path) -> SimpleNamespace:
        used = sum(file.stat().st_size for file in self._folder.rglob("*") if file.is_file())
        return SimpleNamespace(f_bavail=self.free + RESERVE_BYTES - used, f_frsize=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "server" / "datasets"


@pytest.fixture
def disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(folder, monkeypatch)


async def pieces(count: int, gate: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield bytes(MB)
    if gate:
        await gate.wait()


def test_s4_an_upload_without_a_length_stops_before_the_reserve(folder: Path, disk: Disk) -> None:
    store = Datasets(folder, most_bytes=1 << 30)
    disk.free = 20 * MB

    async def play() -> None:
        with pytest.raises(ApiError) as refusal:
            await store.add(TENANT, "x", pieces(100), declared=None)
        assert refusal.value.code == "storage_full"
        assert (await store.add(TENANT, "y", pieces(10), declared=None)).size == 10 * MB

    asyncio.run(play())
    assert LOOK_BYTES < disk.free < 100 * MB and len(os.listdir(folder)) == 1


def test_s4_uploads_side_by_side_count_together(
    folder: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Datasets(folder, most_bytes=1 << 30)
    other = Tenant("b", Quotas())

    async def play() -> None:
        gate = asyncio.Event()
        first = asyncio.create_task(store.add(TENANT, "x", pieces(2, gate), declared=2 * MB))
        await asyncio.sleep(0)
        disk.free = 3 * MB
        with pytest.raises(ApiError) as full:  # another tenant's
            await store.add(other, "y", pieces(2), declared=2 * MB)
        assert full.value.code == "storage_full"
        monkeypatch.setattr(datasets, "MOST_OF_A_TENANT", 1)
        with pytest.raises(ApiError) as many:
            await store.add(TENANT, "z", pieces(0), declared=0)
        assert many.value.code == "quota_exceeded"
        disk.free = 5 * MB  # whatever of the first one is written by now
        await store.add(other, "y", pieces(1), declared=MB)
        gate.set()
        assert (await first).size == 2 * MB

    asyncio.run(play())
