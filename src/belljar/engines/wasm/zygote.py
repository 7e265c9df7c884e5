"""The wasm zygote: a process with an interpreter in WebAssembly, warmed up, from which sandboxes
fork.

Started as `python -S -c …` with an almost empty environment and one descriptor, the control
socket. It reads the compiled module, gives up its privileges, lets the interpreter inside start
and warm up, and then waits for orders *inside a call that the interpreter made*. Each sandbox is
a fork that returns from that call (docs/adr/0008-wasm-forks-inside-a-call.md).

    control socket (SOCK_SEQPACKET), one JSON object per message:
      host → zygote   the configuration + the host's pidfd
      zygote → host   {ready: …} or {error}
      host → zygote   an order + the sandbox's stream, and again …
      zygote → host   {} + the sandbox's pidfd, or {error}
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from collections.abc import Mapping
from typing import Any

import wasmtime

from belljar.engines.linux import kernel
from belljar.engines.linux.control import receive, send

from . import compiled, confine
from .wasi import abi, calls, files
from .wasi.memory import Memory
from .worker import Worker


def boot(descriptor: int) -> None:
    """Never returns."""
    control = socket.socket(fileno=descriptor)
    configuration, (owner,) = receive(control)
    try:
        zygote = Zygote(control, owner, configuration)
        zygote.load()
    except BaseException as error:
        send(control, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    zygote.run()


class Zygote:
    def __init__(self, control: socket.socket, owner: int, configuration: dict[str, Any]) -> None:
        self._control = control
        self._owner = owner
        self._configuration = configuration
        self._identity = ""
        self._pid = os.getpid()
        self._disk_bytes = 0
        self.store: wasmtime.Store
        self.linker: wasmtime.Linker
        self.memory: wasmtime.Memory
        self.complaints = b""
        """What the interpreter said before there was a sandbox to say it in."""
        self.worker: Worker | None = None
        """None in the zygote; in a sandbox, its connection to the host."""

    # -- the zygote ------------------------------------------------------------------------------

    def load(self) -> None:
        """What needs the host's files; after it they are out of reach."""
        engine = compiled.engine()
        self.module = compiled.load(engine, self._configuration["module"])
        self._program = confine.allowed_calls()
        self._identity = confine.forget_privileges()
        self.store = wasmtime.Store(engine)
        self.linker = wasmtime.Linker(engine)
        quota = files.Quota(disk_bytes=0, disk_files=0)
        self.files = files.FileSystem(quota)
        self.files.folder("/tmp")
        self.files.device("/dev/null")

    def run(self) -> None:
        if self._configuration["runtime"] == "quickjs":
            from .quickjs import QuickJs as Runtime
        else:
            from .cpython import CPython as Runtime  # type: ignore[assignment]
        try:
            runtime = Runtime(self, self._configuration["boot"])
            runtime.start()
        except BaseException as error:
            if self.worker is None:
                send(self._control, {"error": f"{type(error).__name__}: {error}"})
                os._exit(1)
            self._broke_off(self.worker, error)
        os._exit(1)

    def link(self, wasi: calls.Wasi) -> None:
        """Offers WASI to the module, and nothing else."""
        kinds = {"i": wasmtime.ValType.i32(), "I": wasmtime.ValType.i64()}
        functions = wasi.functions()
        for name, (parameters, results) in abi.SIGNATURES.items():
            signature = wasmtime.FuncType(
                [kinds[kind] for kind in parameters], [kinds[kind] for kind in results]
            )
            self.linker.define_func(abi.MODULE, name, signature, functions[name])

    def instantiate(self, wasi: calls.Wasi) -> Mapping[str, object]:
        instance = self.linker.instantiate(self.store, self.module)
        exports: Mapping[str, object] = instance.exports(self.store)
        memory = exports["memory"]
        assert isinstance(memory, wasmtime.Memory)
        self.memory = memory
        wasi.memory = Memory(memory, self.store)
        return exports

    def fork(self, wasi: calls.Wasi) -> dict[str, Any]:
        """Serves the host. Returns in each sandbox, with what it was made for."""
        gc.collect()
        gc.freeze()
        if len(os.listdir("/proc/self/task")) != 1:
            raise RuntimeError("the zygote has threads and cannot be forked")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ready = {"identity": self._identity, "memory_bytes": self.memory.data_len(self.store)}
        send(self._control, {"ready": ready})
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._owner, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._owner:
                    os._exit(0)
                order, stream = self._answer()
                if stream >= 0:
                    self._sandbox(order, stream, wasi)
                    return order

    def _answer(self) -> tuple[dict[str, Any], int]:
        order, (stream,) = receive(self._control)
        try:
            pid, pidfd = kernel.clone3(0, pidfd=True)
        except OSError as error:
            send(self._control, {"error": str(error)})
        else:
            if pid == 0:
                return order, stream
            send(self._control, {}, [pidfd])
            os.close(pidfd)
        os.close(stream)
        return {}, -1

    # -- a sandbox -------------------------------------------------------------------------------

    def _sandbox(self, order: dict[str, Any], stream: int, wasi: calls.Wasi) -> None:
        self._control.detach()
        os.dup2(stream, 3, inheritable=False)
        for descriptor in range(3):
            os.close(descriptor)
        os.closerange(4, 1 << 16)
        quota = self.files.quota
        quota.bytes_left, quota.files_left = order["disk_bytes"], order["disk_files"]
        self._disk_bytes = order["disk_bytes"]
        self.worker = Worker(3, self.files)
        confine.confine(self._program, self._pid)

    def take_order(self, wasi: calls.Wasi) -> dict[str, Any]:
        """In a sandbox: waits for its run, and puts that run's limits in force."""
        worker = self.worker
        assert worker is not None
        run = worker.wait_for_order()
        limit = run["watch_memory_bytes"]
        self.store.set_limits(memory_size=limit)
        confine.bound_memory(limit, self._disk_bytes)
        wasi.restart_clock()
        wasi.open_files = run["rlimits"]["RLIMIT_NOFILE"]
        worker.begin(lambda: self.memory.data_len(self.store), limit)
        return run

    def _broke_off(self, worker: Worker, error: BaseException) -> None:
        """The module trapped: what a signal is to a program."""
        text = str(error).strip().splitlines()
        reason = next((line for line in text if "wasm trap" in line), text[-1] if text else "")
        worker.stderr.write(f"belljar: the module was stopped: {reason.strip()}\n".encode())
        aborted = "unreachable" in reason
        worker.finish(None, signal.SIGABRT if aborted else signal.SIGSEGV)
