# Loopback traffic leaves counters and TIME_WAIT entries in a network namespace: is ours a used one?
import socket

left = []
try:
    with open("/proc/net/tcp") as table:
        entries = table.read().splitlines()[1:]
    if os.environ.get("https_proxy"):  # the gateway's doors, which listen
        doors = ("0100007F:0C38", "0100007F:0050", "0100007F:01BB")
        entries = [
            line for line in entries if line.split()[1:4:2] not in [[d, "0A"] for d in doors]
        ]
    if entries:
        left.append(f"{len(entries)} TCP entries")
    with open("/proc/net/dev") as table:
        for line in table.read().splitlines()[2:]:
            interface, counters = line.split(":")
            received = int(counters.split()[1])
            if received:
                left.append(f"{received} packets on {interface.strip()}")
    with open("/proc/net/snmp") as table:
        rows = [line.split() for line in table if line.startswith("Tcp:")]
    opened = int(dict(zip(*rows))["ActiveOpens"])
    if opened:
        left.append(f"{opened} connections were opened")
except (OSError, ValueError, KeyError, TypeError) as error:
    info(f"tables not readable: {error}")

for _ in range(8):
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(1)
    client = socket.create_connection(server.getsockname())
    peer, _ = server.accept()
    client.sendall(b"left-over")
    client.close()  # the side that closes first keeps TIME_WAIT
    peer.close()
    server.close()
conclude(left, "traffic left for the next run")
