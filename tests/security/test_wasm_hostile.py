"""I7: modules that attack the process they run in: its time, its memory, the compiler."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest

pytest.importorskip("wasmtime")

from belljar import wasm
from belljar.errors import InvalidModule, ModuleStopped
from belljar.model import KIB, MIB
from belljar.wasm import compiling

WASI = """
  (import "env" "late" (func $late))
  (import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_pread"
    (func $pread (param i32 i32 i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_readdir"
    (func $readdir (param i32 i32 i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff"
    (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1024)
  (data (i32.const 100) "data/input/file")
  (func $vectors (param $length i32) (local $i i32)
    (loop (i32.store (i32.add (i32.const 65536) (i32.mul (local.get $i) (i32.const 8)))
                     (i32.const 1048576))
      (i32.store (i32.add (i32.const 65540) (i32.mul (local.get $i) (i32.const 8)))
                 (local.get $length))
      (br_if 0 (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1)))
                         (i32.const 1024)))))"""
"""1,024 vectors at 64 KiB, all of them naming the same place; 64 MiB of memory."""


def module(start: str, *, late: threading.Event | None = None, **options: object) -> wasm.Module:
    """A command. `late` is set by its call of $late, which returns when the time is up."""
    timeout_s = float(str(options.setdefault("timeout_s", 30.0)))

    def wait() -> None:
        assert late is not None
        late.set()
        threading.Event().wait(timeout_s)

    source = f'(module {WASI} (func (export "_start") {start}))'
    return wasm.Module(source.encode(), functions={("env", "late"): wait}, **options)  # type: ignore[arg-type]


def test_one_call_writes_no_more_than_a_bounded_amount() -> None:
    """1,024 vectors of 32 MiB each are 32 GiB to copy, and nothing could stop the copying."""
    result = module(
        """(call $vectors (i32.const 33554432))
        (drop (call $write (i32.const 1) (i32.const 65536) (i32.const 1024) (i32.const 8)))
        (i32.store (i32.const 0) (i32.const 8)) (i32.store (i32.const 4) (i32.const 4))
        (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 16)))""",
        output_bytes=1000,
    ).run()
    assert result.success
    told = int.from_bytes(result.stderr, "little")
    assert 0 < told <= 64 * MIB
    assert result.dropped.stdout == told - 1000


def test_one_call_reads_no_more_than_a_bounded_amount(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        file.truncate(1 << 40)
    told = {}
    for call in (
        "(call $read (i32.load (i32.const 16)) (i32.const 65536) (i32.const 1024) (i32.const 8))",
        "(call $pread (i32.load (i32.const 16)) (i32.const 65536) (i32.const 1024) (i64.const 0)"
        " (i32.const 8))",
    ):
        result = module(
            f"""(call $vectors (i32.const 1048576))
            (drop (call $open (i32.const 3) (i32.const 0) (i32.const 100) (i32.const 15)
              (i32.const 0) (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 16)))
            (drop {call})
            (i32.store (i32.const 0) (i32.const 8)) (i32.store (i32.const 4) (i32.const 4))
            (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))""",
            inputs=tmp_path,
        ).run()
        assert result.success
        told[call] = int.from_bytes(result.stdout, "little")
    assert set(told.values()) == {64 * MIB}


@pytest.mark.parametrize(
    "call",
    [
        "(call $write (i32.const 1) (i32.const 65536) (i32.const 1024) (i32.const 8))",
        "(call $read (i32.const 0) (i32.const 65536) (i32.const 1024) (i32.const 8))",
        "(call $readdir (i32.const 3) (i32.const 0) (i32.const 60000) (i64.const 0) (i32.const 8))",
        "(call $open (i32.const 3) (i32.const 0) (i32.const 100) (i32.const 15) (i32.const 0)"
        " (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 16))",
        "(call $random (i32.const 0) (i32.const 67108864))",
        "(call $poll (i32.const 0) (i32.const 60000) (i32.const 1) (i32.const 8))",
    ],
)
def test_no_call_begins_after_the_time_is_up(call: str) -> None:
    """The code after the call is a straight line: wasmtime alone would not stop before its end."""
    late = threading.Event()
    result = module(
        f"""(call $late) (drop {call})
        (i32.store (i32.const 0) (i32.const 100)) (i32.store (i32.const 4) (i32.const 4))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))""",
        late=late,
        timeout_s=0.2,
    ).run()
    assert late.is_set()
    assert (result.status, result.stdout) == ("timeout", b"")


def test_a_long_line_of_calls_of_the_callers_functions_is_stopped() -> None:
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        threading.Event().wait(0.05)

    source = f'(module (import "env" "f" (func $f)) (func (export "go") {"(call $f)" * 500}))'
    with pytest.raises(ModuleStopped) as stopped:
        wasm.Module(source.encode(), functions={("env", "f"): count}, timeout_s=0.2).call("go")
    assert stopped.value.status == "timeout"
    assert calls < 10


def test_input_is_not_copied_for_each_byte_that_is_read() -> None:
    """100 MB of input, read a byte at a time: 100 TB to copy, if each read took the rest along."""
    result = module(
        """(local $i i32) (call $vectors (i32.const 1))
        (loop (drop (call $read (i32.const 0) (i32.const 65536) (i32.const 1024) (i32.const 8)))
          (br_if 0 (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1)))
                             (i32.const 100))))
        (i32.store (i32.const 0) (i32.const 1048576)) (i32.store (i32.const 4) (i32.const 1))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))""",
        stdin=bytes(1024 * 100 - 1) + b"x" + bytes(100 * MIB),
    ).run()
    assert (result.status, result.stdout) == ("ok", b"x")


@pytest.mark.parametrize("kind", ["funcref", "externref"])
def test_all_tables_together_are_bounded_by_the_memory_limit(kind: str) -> None:
    tables = f"(table 1000000 {kind})" * 100
    source = f'(module {tables} (func (export "go")))'
    with pytest.raises(ModuleStopped, match="table") as stopped:
        wasm.Module(source.encode(), memory_bytes=MIB).call("go")
    assert stopped.value.status == "out_of_memory"


def test_tables_grow_within_the_memory_limit() -> None:
    grow = "".join(
        f"(loop (br_if 0 (i32.ne (i32.const -1) (table.grow {n} (ref.null func) (i32.const 100)))))"
        for n in range(10)
    )
    sizes = "".join(f"(table.size {n}) i32.add " for n in range(10))
    source = f"""(module {"(table 0 funcref)" * 10}
      (func (export "go") (result i32) {grow} (i32.const 0) {sizes}))"""
    elements = wasm.Module(source.encode(), memory_bytes=MIB).call("go")
    assert 0 < elements * 8 <= MIB // 4


@pytest.mark.parametrize(
    "contents",
    [
        "(global i64 (i64.const 1))" * 20_000,
        "(func)" * 20_000,
        "(elem func " + "$f " * 20_000 + ")",
        '(memory 1) (data "")' + '(data "")' * 20_000,
    ],
    ids=["globals", "functions", "elements", "segments"],
)
def test_what_an_instance_holds_is_bounded_by_the_memory_limit(contents: str) -> None:
    source = f'(module (func $f (export "go")) {contents})'.encode()
    with pytest.raises(ModuleStopped, match="globals and segments") as stopped:
        wasm.Module(source, memory_bytes=MIB).call("go")
    assert stopped.value.status == "out_of_memory"
    assert wasm.Module(source).call("go") is None


def test_one_memory_one_instance_and_what_is_collected_count_too() -> None:
    two = b'(module (memory 1) (memory 1) (func (export "go")))'
    with pytest.raises(InvalidModule, match="memor"):
        wasm.Module(two).call("go")
    garbage = b"""(module (type $a (array (mut (ref null any))))
      (func (export "go") (local $r (ref null $a))
        (loop (local.set $r (array.new $a (local.get $r) (i32.const 1000))) (br 0))))"""
    with pytest.raises(ModuleStopped) as stopped:
        wasm.Module(garbage, memory_bytes=MIB).call("go")
    assert stopped.value.status == "out_of_memory"


def test_many_exports_cost_what_they_are_and_not_their_square() -> None:
    names = "".join(f'(export "e{n}" (func 0))' for n in range(90_000))
    source = f'(module (func (export "go") (result i32) i32.const 7) {names})'
    assert wasm.Module(source.encode(), timeout_s=60).call("go") == 7


def test_a_module_may_import_a_function_twice() -> None:
    imports = '(import "env" "f" (func (result i32)))' * 2
    source = f'(module {imports} (func (export "go") (result i32) (i32.add (call 0) (call 1))))'
    assert wasm.Module(source.encode(), functions={("env", "f"): lambda: 4}).call("go") == 8


BOMB = b"(module " + b"(func)" * 900_000 + b")"


def test_a_module_that_takes_too_long_to_compile_is_refused() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidModule, match=r"longer than 0\.5 s") as refusal:
        wasm.Module(BOMB, compile_s=0.5)
    assert "compile_s" in refusal.value.hint
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * KIB < 256 * MIB


def section(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + number(len(content)) + content


def number(value: int) -> bytes:
    head = b""
    while value > 0x7F:
        head, value = head + bytes([value & 0x7F | 0x80]), value >> 7
    return head + bytes([value])


def test_a_tiny_module_with_a_million_variables_is_compiled_apart() -> None:
    """50,000 of them take eight bytes to declare: 1,600 bytes kept the compiler for 3 s."""
    body = b"\1" + number(50_000) + b"\x7f\x0b"
    count = 200
    bomb = b"\0asm\1\0\0\0" + section(1, b"\1\x60\0\0")
    bomb += section(3, number(count) + b"\0" * count)
    bomb += section(10, number(count) + (number(len(body)) + body) * count)
    assert len(bomb) < 2000
    with pytest.raises(InvalidModule, match=r"longer than 0\.01 s"):
        wasm.Module(bomb, compile_s=0.01)
    for broken in range(8, 60, 3):  # cut anywhere: refused, whoever notices first
        with pytest.raises(InvalidModule, match="not a WebAssembly module"):
            wasm.Module(bomb[:broken] + b"\xff")


def test_the_compilers_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MEMORY_BYTES", 256 * MIB)
    with pytest.raises(InvalidModule, match="256 MiB of memory"):
        wasm.Module(BOMB)


def test_what_is_compiled_apart_behaves_the_same() -> None:
    padding = "(func)" * 5000
    source = f"""(module (func (export "add") (param i32 i32) (result i32)
      (i32.add (local.get 0) (local.get 1))) (func (export "spin") (loop br 0)) {padding})"""
    assert len(source) > compiling.SMALL_SOURCE_BYTES
    module = wasm.Module(source.encode(), fuel=1000)
    assert module.exports == ["add", "spin"]
    assert module.call("add", 40, 2) == 42
    with pytest.raises(ModuleStopped) as stopped:
        module.call("spin")
    assert stopped.value.status == "out_of_fuel"
    with pytest.raises(InvalidModule, match="not a WebAssembly module"):
        wasm.Module(source.encode()[:-1])
