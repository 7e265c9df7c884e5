# IPv6 flow labels outlive the socket and the process that asked for them, so they stay for whoever
# gets this network namespace next, and all namespaces share room for a few thousand.
import socket
import struct

MANAGE, GET, CREATE, EXCLUSIVE, LINGER_S = 32, 0, 1, 1, 6
found = []
try:
    with open("/proc/net/ip6_flowlabel") as table:
        found += [f"of an earlier run: {line.split()[0]}" for line in table.readlines()[1:]]
except OSError as error:
    info(error)
try:
    client = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    label = struct.pack(
        "=16sIBBHHHI",
        socket.inet_pton(socket.AF_INET6, "::1"),
        socket.htonl(0xB3113),
        *(GET, EXCLUSIVE, CREATE, LINGER_S, LINGER_S, 0),
    )
    client.setsockopt(socket.IPPROTO_IPV6, MANAGE, label)
    found.append("one could be made")
except OSError as error:
    info(error)
conclude(found)
