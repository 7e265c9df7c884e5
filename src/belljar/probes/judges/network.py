"""The network: nothing reaches in, and two sandboxes do not meet."""

from __future__ import annotations

import secrets
import socket
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


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
