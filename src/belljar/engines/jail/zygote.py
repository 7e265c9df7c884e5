"""The zygote: a clean, warm interpreter in a walled place of its own, from which sandboxes fork.

Started as `python -S -c …` with an almost empty environment and one descriptor, the control
socket. It holds no secret, has no privilege on the host, and dies with the host process. As pid 1
of its pid namespace it takes every sandbox with it: the kernel sees to that.

    control socket (SOCK_SEQPACKET), one JSON object per message:
      host → zygote   the configuration + the host's pidfd
      zygote → host   {zygote: true} + the zygote's pidfd, then {ready: …} or {error, step}
      host → zygote   an order + the agent's stream + the sandbox's cgroup entrances + mounts that
                      it is given + a wire to the gateway, if it is to have doors; and again …
      zygote → host   {} + the sandbox's pidfd + a file that counts its sockets, or {error, step}
      host → zygote   {attach: a sandbox's number, mounts} + those mounts
      host → zygote   {move: a sandbox's number, pid inside} + the sandbox's cgroup entrances
      host → zygote   {doors: a sandbox's number, hosts} + a wire, or none if it has doors
      zygote → host   {}, or {error, step}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable

from belljar.engines.linux import kernel, landlock, seccomp
from belljar.engines.linux.control import receive, send
from belljar.runtimes.guest import agent, forking, protocol, reporting, runner

from . import contain, family, forgetting, given, mounts, netns, pages, userns

_SPAWN_FLAGS = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
)
_SPARE_NETWORKS = 64
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
CGROUP_HINT = "a host process with real-time scheduling cannot be counted: start it without"


def live(born: list[_Zygote]) -> None:
    """Serves and never returns: the last line is reached in a sandbox's runner only."""
    sandbox, stream = born.pop().serve()
    live_kept = sandbox.blueprint.live_kept
    if live_kept:
        live_kept(sandbox, stream)
    runner.become(_sandbox(sandbox, stream).job())


# -- boot ----------------------------------------------------------------------------------------


def boot(descriptor: int) -> list[_Zygote]:
    """Walls in and warms up. In a list, from which `live` takes it: no frame below the code keeps
    hold of the zygote."""
    control = socket.socket(fileno=descriptor)
    configuration, (owner,) = receive(control)
    live_kept = _load_kept() if configuration["kept"] else None
    try:
        _ordinary_signals()
        _enter_walls(control, configuration)
        blueprint = _warm_up(configuration, live_kept)
    except BaseException as error:
        send(control, {"error": f"{type(error).__name__}: {error}", "step": "zygote"})
        os._exit(1)
    ready = {"landlock_abi": blueprint.landlock_abi, "short_queues": netns.queues_are_limited()}
    send(control, {"ready": ready})
    return [_Zygote(control, owner, blueprint)]


def _load_kept() -> Callable[[contain.Sandbox, int], None]:
    """Now, while our own files can be seen; only zygotes of kept sandboxes need it."""
    from . import kept

    return kept.live


def _enter_walls(control: socket.socket, configuration: dict) -> None:  # type: ignore[type-arg]
    """Leaves the host behind. Returns in the new process; the one that was started exits."""
    ids = userns.IdMap(**configuration["ids"])
    steps = configuration["root"]
    flags = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    if not ids.mounts_first:
        flags |= kernel.CLONE_NEWUSER
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    pid, pidfd = kernel.clone3(flags, pidfd=True)
    if pid:
        send(control, {"zygote": True}, [pidfd])
        os.close(ask)
        if os.read(asked, 1):
            userns.write_zygote_map(pid, ids)
            os.write(answer, b"m")
        os._exit(0)
    # Else, should the other die before it answers, we would wait for ourselves for ever.
    os.close(asked)
    os.close(answer)

    def mapped() -> None:
        os.write(ask, b"m")
        if not os.read(answered, 1):
            os._exit(1)

    # Mounts come first: once the zygote has ids of its own it is nobody on the host, and could
    # not reach a package folder below /root. If it may not mount yet, it opens the sources first.
    if ids.mounts_first:
        mounts.build_root(steps)
        kernel.unshare(kernel.CLONE_NEWUSER)
        mapped()
        _take_ids(ids)
    else:
        steps = _opened(steps)
        mapped()
        _take_ids(ids)
        mounts.build_root(steps)
        _close(steps)
    os.close(ask)
    os.close(answered)
    # The change of ids gave /proc/<pid> of our children to the host's root; we write their maps.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    kernel.unshare(kernel.CLONE_NEWNET)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)


def _take_ids(ids: userns.IdMap) -> None:
    if ids.has_range:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _opened(steps: list) -> list:  # type: ignore[type-arg]
    """The plan of the root, with the host's paths opened while we may still reach them."""
    return [
        [*step[:2], f"/proc/self/fd/{os.open(step[2], os.O_PATH | os.O_CLOEXEC)}"]
        if step[0] in ("bind", "device")
        else step
        for step in steps
    ]


def _close(steps: list) -> None:  # type: ignore[type-arg]
    for step in steps:
        if step[0] in ("bind", "device"):
            os.close(int(step[2].rpartition("/")[2]))


def _ordinary_signals() -> None:
    """A host that was started in the background ignores some; programs inside expect none of it."""
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN and number not in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _warm_up(
    configuration: dict,  # type: ignore[type-arg]
    live_kept: Callable[[contain.Sandbox, int], None] | None,
) -> contain.Blueprint:
    sys.path[:] = [path for path in sys.path if path in configuration["standard_path"]]
    sys.path += configuration["package_path"]
    import site

    site.setquit()  # `exit` and `help` come from site, which -S leaves out
    site.setcopyright()
    site.sethelper()
    os.environ.update(configuration["env"])
    for name in configuration["preload"]:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # another version of a package may lack one of its parts
    reporting.rehearse()
    runner.rehearse(configuration["rehearsal"])  # what is set up on first use is set up once, here
    files, folders = mounts.proc_covers()
    blueprint = contain.Blueprint(
        proc_files=files,
        proc_folders=folders,
        program=seccomp.build(
            memfd=configuration["counted"],
            affinity=configuration["affinity"],
            joining=configuration["kept"],
        ),
        landlock_abi=landlock.abi(),
        own_modules=[name for name in sys.modules if name.partition(".")[0] == "belljar"],
        rehearsal=configuration["rehearsal"],
        counted=configuration["counted"],
        live_kept=live_kept,
    )
    forgetting.forget_paths(blueprint.own_modules)
    runner.make_streams_ahead()
    os.umask(0o022)
    # A library's threads would be missing in every fork, and it would wait for them.
    if left := kernel.end_library_threads() - 1:
        raise RuntimeError(f"{left} threads of preloaded packages do not end")
    gc.collect()
    gc.freeze()
    gc.disable()
    pages.collapse()
    return blueprint


# -- serve ---------------------------------------------------------------------------------------


class _Zygote:
    def __init__(
        self,
        control: socket.socket,
        owner: int,
        blueprint: contain.Blueprint,
    ) -> None:
        self._control = control
        self._owner = owner
        self._blueprint = blueprint
        self._networks: list[netns.Network] = []
        self._living: dict[int, netns.Network | None] = {}
        self._families: dict[int, family.Parent] = {}
        self._poll = select.epoll()

    def serve(self) -> tuple[contain.Sandbox, int]:
        """Answers the host until it goes. Returns in each new sandbox, with its stream."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # each sandbox takes two
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._poll.register(self._control, select.EPOLLIN)
        self._poll.register(self._owner, select.EPOLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._owner:
                    os._exit(0)
                elif descriptor == self._control.fileno():
                    born = self._answer()
                    if born:
                        return born
                else:
                    self._buried(descriptor)

    def _answer(self) -> tuple[contain.Sandbox, int] | None:
        """Makes one sandbox. Whatever fails costs that one only: the others live on in us."""
        order, passed = receive(self._control)
        born = None
        try:
            if "attach" in order:
                self._attach(order, passed)
            elif "move" in order:
                self._move(order, passed)
            elif "doors" in order:
                self._doors(order, passed)
            elif order["parent"] is None:
                born = self._spawn(order, passed)
            else:
                born = self._branch(order, passed)
        except OSError as error:
            told = {"error": f"{error}", "errno": error.errno, "step": "namespaces"}
            send(self._control, told)
        if not born:
            for descriptor in passed:
                os.close(descriptor)
        return born

    def _spawn(self, order: dict, passed: list[int]) -> tuple[contain.Sandbox, int] | None:  # type: ignore[type-arg]
        hosts, lent = order["hosts"], len(order["mounts"])
        stream, *entrances = passed[: len(passed) - lent - bool(hosts)]
        pid, pidfd = -1, -1
        mapped, mark = os.pipe()
        network = (
            self._networks.pop()
            if self._networks
            else netns.Network(counted=self._blueprint.counted)
        )
        try:
            network.enter()
            if hosts:
                network.open_doors(passed[-1], hosts)
            pid, pidfd = kernel.clone3(_SPAWN_FLAGS, pidfd=True)
            if pid == 0:
                os.close(mark)
                self._leave(stream, entrances)
                if not os.read(mapped, 1):
                    os._exit(1)
                mounts = passed[1 + len(entrances) :][:lent]
                return self._plan(order, mounts, order["mounts"], hosts), stream
            userns.write_sandbox_map(pid, order["id"])
            if self._blueprint.kept:
                self._families[order["number"]] = family.Parent.young(pid, pidfd, network)
            os.write(mark, b"m")
            self._watch(pidfd, network, network)
        except OSError:
            if pidfd >= 0:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)  # not reaped: it is still there
                os.close(pidfd)
            network.close()
            raise
        finally:
            if pid:
                os.close(mapped)
                os.close(mark)
        return None

    def _branch(self, order: dict, passed: list[int]) -> tuple[contain.Sandbox, int] | None:  # type: ignore[type-arg]
        """A sandbox inside another one, for a copy of that one's interpreter to move into."""
        stream, to_parent, *entrances = passed
        parent = self._kept(order["parent"])

        def enter() -> None:
            self._leave(stream, entrances)
            for entrance in entrances:
                os.close(entrance)

        branch = family.spawn(parent, _SPAWN_FLAGS, given.INHERITED, enter)
        if isinstance(branch, list):
            places = [{"place": place, "folder": True} for place in given.INHERITED]
            return self._plan(order, branch, places, parent.network.hosts, to_parent), stream
        self._families[order["number"]] = branch
        self._watch(branch.pidfd, None, parent.network)
        if entrances:  # while the host and the new sandbox go on
            with contextlib.suppress(OSError):
                family.expect_move(branch)
        return None

    def _attach(self, order: dict, passed: list[int]) -> None:  # type: ignore[type-arg]
        """Mounts into a sandbox that lives."""
        given.attach_to(self._kept(order["attach"]), given.hold(passed, order["mounts"]))
        send(self._control, {})

    def _move(self, order: dict, passed: list[int]) -> None:  # type: ignore[type-arg]
        """A copy of an interpreter has come into a branch from its parent's groups."""
        family.move(self._kept(order["move"]), order["pid"], passed)
        send(self._control, {})

    def _doors(self, order: dict, passed: list[int]) -> None:  # type: ignore[type-arg]
        """Doors, or only other names, for a sandbox that lives and all that share its network."""
        network, hosts = self._kept(order["doors"]).network, order["hosts"]
        if passed:
            network.open_doors(passed[0], hosts)
        network.hosts = hosts
        for member in [one for one in self._families.values() if one.network is network]:
            file = mounts.HostsFile(hosts)
            given.join(member, file.attach, before=file.make)
        send(self._control, {})

    def _kept(self, number: int) -> family.Parent:
        if number not in self._families:
            raise OSError("the sandbox is gone")
        return self._families[number]

    def _watch(self, pidfd: int, own: netns.Network | None, network: netns.Network) -> None:
        """`own`: the network to hand on or close when the sandbox is gone; a branch has none."""
        self._poll.register(pidfd, select.EPOLLIN)
        self._living[pidfd] = own
        send(self._control, {}, [pidfd, network.sockets])

    def _leave(self, stream: int, entrances: list[int]) -> None:
        """First moments of a sandbox: it walks into its cgroup by itself, which is a hundred times
        cheaper for the kernel than being moved there by another process."""
        self._control.detach()
        self._poll.close()
        try:
            for entrance in entrances:
                os.write(entrance, b"0")
        except OSError as error:
            fault(stream, "cgroup", f"the kernel did not let it in: {error}", CGROUP_HINT)
            os._exit(1)

    def _plan(
        self,
        order: dict,  # type: ignore[type-arg]
        mounts: list[int],
        places: list,  # type: ignore[type-arg]
        hosts: str,
        family: int = -1,
    ) -> contain.Sandbox:
        return contain.Sandbox(
            self._blueprint,
            order["disk_bytes"],
            order["disk_files"],
            order["cpus"],
            rehearse=order["rehearse"],
            given=given.hold(mounts, places),
            hosts=hosts,
            family=family,
        )

    def _buried(self, pidfd: int) -> None:
        """Pid 1 of a sandbox has exited, so everything in it has."""
        self._poll.unregister(pidfd)
        for number in [n for n, p in self._families.items() if p.pidfd == pidfd]:
            self._families.pop(number).close()
        network = self._living.pop(pidfd)
        os.close(pidfd)
        if network is None:  # a branch, in its parent's
            return
        if len(self._networks) < _SPARE_NETWORKS and network.is_untouched():
            self._networks.append(network)
        else:
            network.close()


# -- the sandbox ---------------------------------------------------------------------------------


def _sandbox(sandbox: contain.Sandbox, stream: int) -> forking.Waiting:
    os.dup2(stream, 3, inheritable=False)
    given.close_others(4, sandbox.given)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        contain.begin(sandbox)
        runner = forking.fork_runner(lambda walls_stand: contain.join(sandbox, walls_stand))
        if isinstance(runner, forking.Waiting):
            return runner
        contain.build(sandbox)
        runner.walls_stand()
    except contain.StepFailed as failure:
        fault(3, failure.step, str(failure), failure.hint)
        os._exit(1)
    waiting = agent.serve(
        3,
        sandbox.roots,
        runner,
        harden=lambda: contain.harden_runner(sandbox),
        rehearse=sandbox.rehearse,
    )
    if waiting is None:
        os._exit(0)
    return waiting


def fault(stream: int, step: str, message: str, hint: str) -> None:
    """Tells the host why there will be no sandbox."""
    fault = {"step": step, "message": message, "hint": hint}
    os.write(stream, protocol.message(protocol.FAULT, fault))
