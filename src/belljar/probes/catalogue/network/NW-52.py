# Only Unix, IPv4, IPv6 and NETLINK_ROUTE have a use here; every other family is attack surface.
import socket

USEFUL = {1, 2, 10, 16}
found = []
for family in set(range(3, 50)) - USEFUL:
    for kind in (1, 2, 3, 5):
        try:
            socket.socket(family, kind, 0).close()
            found.append(f"family {family} type {kind}")
            break
        except OSError:
            pass
for name, kind, protocol in (
    ("ICMP", 2, 1),
    ("SCTP", 1, 132),
    ("DCCP", 6, 33),
    ("UDP-Lite", 2, 136),
):
    try:
        socket.socket(2, kind, protocol).close()
        found.append(name)
    except OSError:
        pass
conclude(found)
