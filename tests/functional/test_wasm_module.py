"""I7: a caller's own modules, with nothing but what was linked. Real modules, written as text."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("wasmtime")

from belljar import wasm
from belljar.errors import InvalidModule, ModuleStopped

ADD = b'(module (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add))'
SPIN = b'(module (func (export "spin") (loop br 0)))'
GROW = b"""(module (memory (export "memory") 1)
  (func (export "grow") (param i32) (result i32) local.get 0 memory.grow)
  (func (export "insist") (loop
    (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then unreachable)) (br 0))))"""
COUNT = b"""(module (global $n (mut i32) (i32.const 0))
  (func (export "next") (result i32)
    (global.set $n (i32.add (global.get $n) (i32.const 1))) (global.get $n)))"""

# A WASI command that writes what it reads; the text at 100 goes first.
ECHO = b"""(module
  (import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 2)
  (data (i32.const 100) "in: ")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 100)) (i32.store (i32.const 4) (i32.const 4))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
    (i32.store (i32.const 0) (i32.const 1000)) (i32.store (i32.const 4) (i32.const 4096))
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (i32.store (i32.const 4) (i32.load (i32.const 8)))
    (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8)))
    (call $exit (i32.const 3))))"""

FLOOD = b"""(module
  (import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 17)
  (data (i32.const 65536) "start")
  (func (export "_start") (local $i i32)
    (i32.store (i32.const 0) (i32.const 65536)) (i32.store (i32.const 4) (i32.const 1000000))
    (loop (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if 0 (i32.lt_u (local.get $i) (i32.const 200))))))"""


def importing(signature: str, call: str) -> bytes:
    return f'(module {signature} (memory (export "memory") 1) {call})'.encode()


def test_a_function_is_called_with_numbers_and_answers() -> None:
    assert wasm.Module(ADD).call("add", 2, 40) == 42


def test_a_module_comes_from_a_file_binary_or_text(tmp_path: Path) -> None:
    import wasmtime

    (tmp_path / "a.wat").write_bytes(ADD)
    (tmp_path / "a.wasm").write_bytes(wasmtime.wat2wasm(ADD))
    for name in ("a.wat", "a.wasm"):
        assert wasm.Module(tmp_path / name).call("add", 1, 1) == 2


def test_each_call_has_an_instance_of_its_own_unless_one_is_kept() -> None:
    module = wasm.Module(COUNT)
    assert [module.call("next"), module.call("next")] == [1, 1]
    with module.instance() as instance:
        assert [instance.call("next"), instance.call("next")] == [1, 2]


def test_only_linked_functions_are_there_and_a_missing_one_is_named() -> None:
    source = importing(
        '(import "env" "log" (func $log (param i32)))', '(func (export "go") i32.const 7 call $log)'
    )
    with pytest.raises(InvalidModule, match=r"env\.log.*not linked.*functions=") as refusal:
        wasm.Module(source).call("go")
    assert "'log'" in refusal.value.hint
    seen: list[int] = []
    wasm.Module(source, functions={("env", "log"): seen.append}).call("go")
    assert seen == [7]


def test_a_host_function_can_be_given_the_memory_and_cannot_leave_it() -> None:
    source = importing(
        '(import "env" "log" (func $log (param i32 i32))) (data (i32.const 8) "hello")',
        '(func (export "go") (param i32 i32) local.get 0 local.get 1 call $log)',
    )
    seen: list[bytes] = []
    log = wasm.with_memory(lambda memory, address, count: seen.append(memory.read(address, count)))
    module = wasm.Module(source, functions={("env", "log"): log})
    module.call("go", 8, 5)
    assert seen == [b"hello"]
    for address, count in ((65536, 1), (65530, 7), (-1, 4), (0, 1 << 30)):
        with pytest.raises(Exception, match="errno 21"):
            module.call("go", address, count)


def test_what_a_host_function_raises_reaches_the_caller() -> None:
    def fail() -> None:
        raise KeyError("mine")

    source = importing('(import "env" "f" (func $f))', '(func (export "go") call $f)')
    with pytest.raises(KeyError, match="mine"):
        wasm.Module(source, functions={("env", "f"): fail}).call("go")


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ('(import "env" "m" (memory 1))', "env.m"),
        ('(import "env" "t" (table 1 funcref))', "env.t"),
        ('(import "env" "g" (global i32))', "env.g"),
    ],
)
def test_memories_tables_and_globals_of_the_host_are_never_shared(item: str, name: str) -> None:
    with pytest.raises(InvalidModule, match=name):
        wasm.Module(f'(module {item} (func (export "go")))'.encode()).call("go")


def test_wasi_is_refused_to_a_call_that_was_not_given_it() -> None:
    with pytest.raises(InvalidModule, match=r"wasi_snapshot_preview1\.fd_write.*run\(\)"):
        wasm.Module(ECHO).call("_start")


def test_an_unknown_wasi_function_is_refused_by_name() -> None:
    source = b"""(module (import "wasi_snapshot_preview1" "sock_connect" (func (param i32)))
      (memory (export "memory") 1) (func (export "_start")))"""
    with pytest.raises(InvalidModule, match=r"wasi_snapshot_preview1\.sock_connect"):
        wasm.Module(source).run()


def test_an_endless_loop_runs_out_of_time() -> None:
    begun = time.monotonic()
    with pytest.raises(ModuleStopped, match=r"longer than 0\.3 s") as stopped:
        wasm.Module(SPIN, timeout_s=0.3).call("spin")
    assert stopped.value.status == "timeout"
    assert time.monotonic() - begun < 3


def test_an_endless_loop_runs_out_of_fuel() -> None:
    with pytest.raises(ModuleStopped, match="fuel of 10000") as stopped:
        wasm.Module(SPIN, fuel=10_000).call("spin")
    assert stopped.value.status == "out_of_fuel"


def test_a_time_out_is_one_calls_own() -> None:
    """Another call of the same module, begun later in another thread, goes on."""
    module = wasm.Module(
        b"""(module (import "env" "wait" (func $wait)) (func (export "spin") (loop br 0))
        (func $five (result i32) (i32.const 5))
        (func (export "work") (result i32) call $wait call $five))""",
        functions={("env", "wait"): lambda: time.sleep(0.5)},
        timeout_s=0.8,
    )
    answers: list[object] = []
    other = threading.Thread(target=lambda: answers.append(module.call("work")))

    def later() -> None:
        time.sleep(0.5)
        other.start()  # works from 0.5 to 1.0, and the first is stopped at 0.8

    starter = threading.Thread(target=later)
    starter.start()
    with pytest.raises(ModuleStopped):
        module.call("spin")
    starter.join()
    other.join()
    assert answers == [5]


def test_memory_grows_to_its_limit_and_no_further() -> None:
    module = wasm.Module(GROW, memory_bytes=4 << 20)
    assert module.call("grow", 32) == 1
    assert module.call("grow", 64) == -1
    with pytest.raises(ModuleStopped) as stopped:
        module.call("insist")
    assert stopped.value.status == "out_of_memory"


def test_a_module_that_starts_with_too_much_memory_does_not_start() -> None:
    source = b'(module (memory (export "memory") 1000) (func (export "go")))'
    with pytest.raises(ModuleStopped) as stopped:
        wasm.Module(source, memory_bytes=1 << 20).call("go")
    assert stopped.value.status == "out_of_memory"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("(drop (i32.load (i32.const 70000)))", "out of bounds"),
        ("(drop (i32.div_u (i32.const 1) (i32.const 0)))", "divide by zero"),
        ("unreachable", "unreachable"),
        ("call $go", "stack exhausted"),
    ],
)
def test_a_trap_ends_the_call_and_nothing_else(body: str, reason: str) -> None:
    source = f'(module (memory (export "memory") 1) (func $go (export "go") {body}))'
    with pytest.raises(ModuleStopped, match=reason) as stopped:
        wasm.Module(source.encode()).call("go")
    assert stopped.value.status == "trap"
    assert wasm.Module(ADD).call("add", 1, 1) == 2


@pytest.mark.parametrize("source", [b"", b"\0asm", b"\0asm\1\0\0\0garbage", b"(module", b"\x7fELF"])
def test_what_is_no_module_is_refused(source: bytes) -> None:
    with pytest.raises(InvalidModule, match="not a WebAssembly module"):
        wasm.Module(source)


def test_a_module_that_is_too_large_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(InvalidModule, match="module_bytes"):
        wasm.Module(b"\0asm" + bytes(2000), module_bytes=1000)


def test_wrong_calls_say_what_is_right() -> None:
    module = wasm.Module(ADD)
    with pytest.raises(InvalidModule, match="it has add"):
        module.call("sub", 1)
    with pytest.raises(InvalidModule, match="takes 2"):
        module.call("add", 1)
    for wrong in (1 << 40, "x", 1.5, None):
        with pytest.raises(InvalidModule, match="is no i32"):
            module.call("add", 1, wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidModule, match="_start"):
        module.run()


def test_a_command_reads_its_input_and_its_output_is_kept() -> None:
    result = wasm.Module(ECHO, stdin=b"hello", fuel=100_000).run()
    assert (result.stdout, result.stderr) == (b"in: ", b"hello")
    assert (result.status, result.exit_code, result.success) == ("error", 3, False)
    assert 0 < (result.fuel_used or 0) < 1000
    assert result.memory_bytes == 2 * 65536


def test_a_flood_of_output_is_bounded_and_counted() -> None:
    result = wasm.Module(FLOOD, output_bytes=10_000).run()
    assert result.success
    assert result.stdout.startswith(b"start")
    assert len(result.stdout) < 10_200
    assert result.dropped.stdout == 200_000_000 - 10_000


def test_a_command_out_of_time_still_tells_what_it_wrote() -> None:
    source = FLOOD.replace(b"(br_if 0 (i32.lt_u (local.get $i) (i32.const 200)))", b"(br 0)")
    result = wasm.Module(source, timeout_s=0.3, output_bytes=100).run()
    assert result.status == "timeout"
    assert result.stdout.startswith(b"start")


def test_a_sleep_does_not_outlast_the_time_out() -> None:
    source = b"""(module
      (import "wasi_snapshot_preview1" "poll_oneoff"
        (func $poll (param i32 i32 i32 i32) (result i32)))
      (memory (export "memory") 1)
      (func (export "_start")
        (i32.store (i32.const 16) (i32.const 1))
        (i64.store (i32.const 24) (i64.const 3600000000000))
        (drop (call $poll (i32.const 0) (i32.const 100) (i32.const 1) (i32.const 200)))))"""
    begun = time.monotonic()
    result = wasm.Module(source, timeout_s=0.3).run()
    assert result.status == "timeout"
    assert time.monotonic() - begun < 2


READ_FILE = b"""(module
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 2)
  (data (i32.const 100) "%s")
  (func (export "_start") (local $e i32)
    (local.set $e (call $open (i32.const 3) (i32.const 1) (i32.const 100) (i32.const %d)
      (i32.const %d) (i64.const %d) (i64.const 0) (i32.const 0) (i32.const 16)))
    (if (local.get $e) (then (call $exit (local.get $e))))
    (i32.store (i32.const 0) (i32.const 1000)) (i32.store (i32.const 4) (i32.const 4096))
    (drop (call $read (i32.load (i32.const 16)) (i32.const 0) (i32.const 1) (i32.const 8)))
    (i32.store (i32.const 4) (i32.load (i32.const 8)))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"""
READING, WRITING = 1 << 1, 1 << 6
ENOENT, EROFS, EIO = 44, 69, 29


def opening(path: str, *, how: int = 0, rights: int = READING) -> bytes:
    return READ_FILE % (path.encode(), len(path), how, rights)


def test_inputs_can_be_read_and_nothing_else(tmp_path: Path) -> None:
    inputs = tmp_path / "inputs"
    (inputs / "sub").mkdir(parents=True)
    (inputs / "sub" / "a.txt").write_text("content")
    (tmp_path / "secret").write_text("secret")
    (inputs / "link").symlink_to(tmp_path / "secret")
    module = wasm.Module(opening("data/input/sub/a.txt"), inputs=inputs)
    assert module.run().stdout == b"content"
    for path in ("data/input/link", "data/input/../../../etc/passwd", "/etc/passwd", "etc/passwd"):
        result = wasm.Module(opening(path), inputs=inputs).run()
        assert (result.exit_code, result.stdout) == (ENOENT, b""), path
    for path, how in (("data/input/sub/a.txt", 0), ("data/input/new", 1), ("new", 1)):
        result = wasm.Module(opening(path, how=how, rights=WRITING), inputs=inputs).run()
        assert result.exit_code == EROFS, path
    truncating = wasm.Module(opening("data/input/sub/a.txt", how=8), inputs=inputs).run()
    assert truncating.exit_code == EROFS
    assert (inputs / "sub" / "a.txt").read_text() == "content"
    assert sorted(path.name for path in inputs.iterdir()) == ["link", "sub"]


def test_a_file_swapped_for_a_link_is_not_followed(tmp_path: Path) -> None:
    """The folder is listed when the run starts and the file opened when it is read: between the
    two, somebody who can write there puts a link to a secret in its place."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    (inputs / "a.txt").write_text("content")
    (tmp_path / "secret").write_text("secret")

    def swap() -> None:
        (inputs / "a.txt").unlink()
        (inputs / "a.txt").symlink_to(tmp_path / "secret")

    source = opening("data/input/a.txt").replace(
        b"(memory", b'(import "env" "swap" (func $swap)) (memory', 1
    )
    source = source.replace(b"(local $e i32)", b"(local $e i32) (call $swap)")
    result = wasm.Module(source, inputs=inputs, functions={("env", "swap"): swap}).run()
    assert b"secret" not in result.stdout


def test_wild_addresses_in_wasi_calls_are_an_error_number_and_nothing_more() -> None:
    source = b"""(module
      (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
      (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
      (memory (export "memory") 1)
      (func (export "write") (param i32 i32 i32) (result i32)
        (i32.store (i32.const 0) (local.get 0)) (i32.store (i32.const 4) (local.get 1))
        (call $write (i32.const 1) (i32.const 0) (local.get 2) (i32.const 8)))
      (func (export "random") (param i32 i32) (result i32)
        (call $random (local.get 0) (local.get 1))))"""
    module = wasm.Module(source, wasi=True)
    fault, invalid = 21, 28
    assert module.call("write", 0xFFFF_FFF0, 100, 1) == fault
    assert module.call("write", 65530, 100, 1) == fault
    assert module.call("write", 0, 10, 0x7FFF_FFFF) == invalid
    assert module.call("random", 0, 0xFFFF_FFFF) == fault
    assert module.call("random", 65535, 2) == fault
    assert module.call("random", 0, 65536) == 0
