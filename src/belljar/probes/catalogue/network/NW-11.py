# connect() of a UDP socket only looks up a route; no packet is sent.
import socket

found = []
for family, address in (
    (2, ("192.0.2.1", 443)),
    (2, ("1.1.1.1", 53)),
    (2, ("169.254.1.1", 80)),
    (2, ("224.0.0.251", 5353)),
    (10, ("2001:db8::1", 443)),
    (10, ("2606:4700::1111", 53)),
    (10, ("fe80::1%1", 80, 0, 1)),
):
    try:
        client = socket.socket(family, 2)
        client.connect(address)
        source = client.getsockname()[0]
    except OSError:
        continue
    if not source.startswith("127.") and source != "::1":
        found.append(f"{address[0]} via {source}")
conclude(found)
