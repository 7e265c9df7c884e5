"""The network: nothing reaches in, and two sandboxes do not meet."""

from __future__ import annotations

import secrets
import socket
import threading
from contextlib import suppress

from belljar.probes.probe import Probe
from belljar.probes.prover import Prover
from belljar.probes.verdict import Verdict, broken, conclude, describe, read


def port_is_private(prover: Prover, probe: Probe) -> Verdict:
    """While the guest listens on every address, the host and another sandbox try to connect."""
    port = _free_port()
    live = prover.start(probe, {"MEETING_PORT": str(port)})
    if not live.saw("LISTENING"):
        return broken(f"it never listened: {describe(live.result())}")
    found = []
    for address in ("127.0.0.1", "0.0.0.0", prover.fixtures.values["HOST_LAN_IP"]):
        with suppress(OSError), socket.create_connection((address, port), 1):
            found.append(f"the host connected to {address}")
    neighbour = prover.run_code(
        "import socket\n"
        f"for address in ('127.0.0.1', '0.0.0.0', '{prover.fixtures.values['HOST_LAN_IP']}'):\n"
        "    try:\n"
        f"        socket.create_connection((address, {port}), 1)\n"
        "        print('CONNECTED', address)\n"
        "    except OSError:\n"
        "        pass\n"
    )
    if neighbour.status != "ok" or "CONNECTED" in neighbour.stdout:
        found.append(f"another sandbox: {describe(neighbour)}")
    inside = read(probe, live.result())
    if inside.outcome != "held":
        found.append(inside.detail)
    return conclude(found)


def sandboxes_do_not_meet(prover: Prover, probe: Probe) -> Verdict:
    meeting = {
        "MEETING_NAME": "bj-" + secrets.token_hex(6),
        "MEETING_PORT": str(_free_port()),
        "STAY_S": str(prover.seconds(4)),
    }
    live = prover.start(probe, {**meeting, "ROLE": "host"})
    if not live.saw("MEETING"):
        return broken(f"no meeting place: {describe(live.result())}")
    found = read(probe, prover.run(probe, {**meeting, "ROLE": "visitor"}))
    if not live.running:
        return broken(f"the first was over too soon to tell: {describe(live.result())}")
    live.result()
    return found


def gateway_leads_to_no_host(prover: Prover, probe: Probe) -> Verdict:
    """The host listens on all its addresses, under an allowed name, too; nobody may come."""
    visitors: list[str] = []

    def watch(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, address = listener.accept()
                visitors.append(str(address[0]))
                connection.close()

    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as listener:
        threading.Thread(target=watch, args=(listener,), name="probe-visitors", daemon=True).start()
        port = listener.getsockname()[1]
        allowed = prover.fixtures.values["ALLOWED_HOST"]
        result = prover.run(
            probe, {"MEETING_PORT": str(port)}, network=[allowed, f"{allowed}:{port}"]
        )
        # The listener answers in order: who came before this one has been seen.
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as last:
            last.recv(1)
        listener.shutdown(socket.SHUT_RDWR)
    inside = read(probe, result)
    found = [] if inside.outcome == "held" else [inside.detail]
    if len(visitors) != 1:
        found.append(f"{len(visitors) - 1} connections came to the host's own listener")
    if dialled := [one.host for one in result.egress if one.address]:
        found.append(f"the gateway dialled for {dialled[:5]}")
    return conclude(found)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
