"""Code reads files of the host, and can neither have them written to the disk nor pushed out of
memory (I2). The kernel says what it has of a file (cachestat, Linux 6.5)."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar import Belljar, Sandbox

SIZE, PAGES = 4 << 20, 1024
CACHESTAT = 451

FORGET = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
file = os.open("/data/input/given", os.O_RDONLY)
size = os.fstat(file).st_size
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
for sharing in (1, 2):
    place = libc.mmap(None, size, 1, sharing, file, 0)
    for advice in (20, 21):  # MADV_COLD, MADV_PAGEOUT
        libc.madvise(place, size, advice)
print("asked")
"""
WRITE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
file = os.open("/data/input/given", os.O_RDONLY)
os.fsync(file)
os.fdatasync(file)
libc.sync_file_range(file, ctypes.c_long(0), ctypes.c_long(0), 7)
libc.syncfs(file)
libc.sync()
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
size = os.fstat(file).st_size
libc.msync(libc.mmap(None, size, 1, 1, file, 0), size, 4)
print("asked")
"""


def pages(path: Path) -> tuple[int, int]:
    """(in memory, not yet on the disk)"""
    answer = ctypes.create_string_buffer(40)
    with path.open("rb") as file:
        asked = struct.pack("=QQ", 0, SIZE)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(ctypes.c_long(CACHESTAT), file.fileno(), asked, answer, 0):
            pytest.skip(f"this kernel does not tell: {os.strerror(ctypes.get_errno())}")
    in_memory, dirty, being_written, _, _ = struct.unpack("=5Q", answer.raw)
    return in_memory, dirty + being_written


@pytest.fixture
def given(tmp_path: Path) -> Iterator[tuple[Path, Sandbox]]:
    file = tmp_path / "given"
    file.write_bytes(bytes(SIZE))
    pages(file)
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
    with Belljar() as jar, Sandbox(jar, inputs={"given": file}) as place:
        yield file, place


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the call's number")
def test_the_hosts_files_stay_in_memory(given: tuple[Path, Sandbox]) -> None:
    file, place = given
    assert pages(file) == (PAGES, 0)
    assert place.run(FORGET).stdout == "asked\n"
    assert pages(file)[0] == PAGES


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the call's number")
def test_nothing_is_written_to_the_hosts_disk(given: tuple[Path, Sandbox]) -> None:
    file, place = given
    with file.open("r+b") as opened:  # the same file: it is mounted
        opened.write(os.urandom(SIZE))
    if pages(file)[1] != PAGES:
        pytest.skip("this file system, or a busy one, writes at once")
    result = place.run(WRITE)
    assert result.stdout == "asked\n", result.stderr
    assert pages(file)[1] == PAGES
