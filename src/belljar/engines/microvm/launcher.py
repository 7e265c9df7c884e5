"""The process that QEMUs come from. It has left the host behind before it starts the first one.

QEMU is the last wall: whoever breaks out of a guest is in its process. So that process has a root
without the host's files, no network, no capabilities, a pid namespace of its own and, where we are
root, a uid that nobody else has. It dies with us.

    control socket (SOCK_SEQPACKET), one JSON object per message:
      host → launcher   the configuration + the host's pidfd
      launcher → host   {ready: true} or {error}
      host → launcher   an order + descriptors, and again …
      launcher → host   {} + QEMU's pidfd, or {error}
      host → launcher   {open: a path below the folder of files}
      launcher → host   {} + a descriptor of that file, or {error}

Files that later machines start from are opened here, on a mount of their folder that is read-only
and nowhere to be seen. For an ordinary user QEMU has the uid that owns them: a descriptor of the
host's own would let it open the file again for writing, by `/proc/self/fd`, or change its mode.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket

from belljar.engines.linux import capabilities, kernel, seccomp
from belljar.engines.linux.control import receive, send

from . import borrowed, confine

FIRST_DESCRIPTOR = 10
"""What QEMU inherits beyond its standard streams is numbered from here, in the order's order."""
NOBODY = 65_534
_PR_SET_PDEATHSIG = 1
_HIDDEN = kernel.MS_NOSUID | kernel.MS_NODEV
_READ_ONLY = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
_OUT_OF_THE_WAY = 200


def live(descriptor: int) -> None:
    """Never returns."""
    control = socket.socket(fileno=descriptor)
    configuration, (owner,) = receive(control)
    try:
        files = _enter_walls(configuration)
    except BaseException as error:
        send(control, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    calls = confine.allowed_calls(kvm="/dev/kvm" in configuration["devices"])
    send(control, {"ready": True})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asking: dict[int, int] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(owner, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready == owner:
                os._exit(0)
            elif ready == control.fileno():
                if started := _answer(control, files, calls):
                    asking.update([started])
                    poll.register(started[0], select.POLLIN)
            else:
                poll.unregister(ready)
                _lend(ready, asking.pop(ready))


def _answer(control: socket.socket, files: int, calls: bytes) -> tuple[int, int] | None:
    """Starts one QEMU. Returns where it will ask for its memory, and that memory."""
    order, passed = receive(control)
    asking = None
    if "open" in order:
        _open(control, files, order["open"])
        return None
    try:
        asker, answerer = socket.socketpair()
        with asker, answerer:
            pid, pidfd = kernel.clone3(kernel.CLONE_NEWPID | kernel.CLONE_NEWNS, pidfd=True)
            if pid == 0:
                _become(order, passed, answerer if order["lend"] else None, calls)
            answerer.close()
            try:
                if order["lend"]:
                    asking = borrowed.listener(asker), os.dup(passed[1])
                send(control, {}, [pidfd])
            finally:
                os.close(pidfd)
    except OSError as error:
        send(control, {"error": str(error)})
    finally:
        for descriptor in passed:
            os.close(descriptor)
    return asking


def _open(control: socket.socket, files: int, path: str) -> None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=files)
    except OSError as error:
        send(control, {"error": f"{path}: {error.strerror}"})
        return
    send(control, {}, [file])
    os.close(file)


def _lend(listener: int, memory: int) -> None:
    try:
        borrowed.answer(listener, memory)
    except OSError:
        pass  # it has ended meanwhile, which its host sees
    os.close(listener)
    os.close(memory)


# -- the walls -------------------------------------------------------------------------------------


def _enter_walls(configuration: dict) -> int:  # type: ignore[type-arg]
    """Returns the mount of the files that machines start from."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        kernel.unshare(kernel.CLONE_NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("gid_map", f"0 {gid} 1"),
            ("uid_map", f"0 {uid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    kernel.unshare(
        kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    )
    files = kernel.detached_copy(configuration["files"])
    kernel.change_detached(files, attr_set=_READ_ONLY)
    _private_root(configuration["binds"], configuration["devices"], root=uid == 0)
    kernel.sethostname("belljar")
    return files


def _private_root(binds: list[str], devices: list[str], *, root: bool) -> None:
    """The host's programs and libraries, read-only, and a few devices."""
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE, None)
    new = "/tmp"
    sources = {path: os.open(path, os.O_PATH) for path in (*binds, *devices)}
    numbers = {path: os.stat(path).st_rdev for path in devices}
    links = {p: os.readlink(p) for p in ("/bin", "/lib", "/lib64", "/sbin") if os.path.islink(p)}
    kernel.mount("belljar", new, "tmpfs", kernel.MS_NOSUID, "mode=0755,size=1m")
    for path, to in links.items():
        os.symlink(to, new + path)
    for path in binds:
        target = new + path
        if os.path.isdir(f"/proc/self/fd/{sources[path]}"):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            open(target, "w").close()
        kernel.mount(f"/proc/self/fd/{sources[path]}", target, None, kernel.MS_BIND | kernel.MS_REC)
        kernel.mount_setattr(target, attr_set=_READ_ONLY)
    os.mkdir(f"{new}/dev")
    for path in devices:
        if root:  # a node of our own: the host's may be closed to the uid that QEMU gets
            os.mknod(new + path, 0o020666, numbers[path])
            os.chmod(new + path, 0o666)
        else:
            open(new + path, "w").close()
            kernel.mount(f"/proc/self/fd/{sources[path]}", new + path, None, kernel.MS_BIND)
    os.mkdir(f"{new}/proc")
    os.makedirs(f"{new}/var", exist_ok=True)  # a QEMU of one's own may be below it
    # One must be visible for each QEMU to be allowed its own.
    kernel.mount("/proc", f"{new}/proc", None, kernel.MS_BIND | kernel.MS_REC)
    for source in sources.values():
        os.close(source)
    os.chdir(new)
    kernel.pivot_root(".", ".")
    kernel.umount2(".", kernel.MNT_DETACH)
    os.chdir("/")
    read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID
    kernel.mount(None, "/", None, read_only)


# -- QEMU ------------------------------------------------------------------------------------------


def _become(
    order: dict,  # type: ignore[type-arg]
    passed: list[int],
    answerer: socket.socket | None,
    calls: bytes,
) -> None:
    """In the new process, pid 1 of its namespace; ends in QEMU."""
    try:
        kernel.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        entrances = passed[len(passed) - order["entrances"] :]
        for entrance in entrances:
            os.write(entrance, b"0")
        log, *inherited = passed[: len(passed) - len(entrances)]
        if answerer:
            borrowed.ask(answerer)
        _arrange(log, inherited)
        kernel.mount("proc", "/proc", "proc", _HIDDEN | kernel.MS_NOEXEC)
        # One byte, not none: a core dump piped to a helper on the host ignores any other limit.
        for kind, most in ((resource.RLIMIT_CORE, 1), (resource.RLIMIT_MEMLOCK, 0)):
            resource.setrlimit(kind, (most, most))
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        _give_up(order["uid"])
        seccomp.install(calls)
        os.execve(order["argv"][0], order["argv"], {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})
    except BaseException as error:
        os.write(2, f"belljar: {type(error).__name__}: {error}\n".encode())
    os._exit(127)


def _arrange(log: int, inherited: list[int]) -> None:
    """The descriptors to where the command line says they are, and no others."""
    null = os.open("/dev/null", os.O_RDWR)
    high = [_OUT_OF_THE_WAY + i for i in range(2 + len(inherited))]
    for source, target in zip((null, log, *inherited), high, strict=True):
        os.dup2(source, target, inheritable=False)
    os.dup2(high[0], 0)
    os.dup2(high[1], 1)
    os.dup2(high[1], 2)
    for number, source in enumerate(high[2:]):
        os.dup2(source, FIRST_DESCRIPTOR + number)
    os.closerange(3, FIRST_DESCRIPTOR)
    os.closerange(FIRST_DESCRIPTOR + len(inherited), 1 << 20)


def _give_up(uid: int) -> None:
    """Nobody, with no capability and no way to get one."""
    capabilities.bound()
    if uid:
        os.setgroups([])
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError:  # in a container that has fewer users than that
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
    capabilities.empty()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # The change of ids cleared it.
    kernel.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
