"""Which options code may set on its sockets, as data: level, option, who uses it.

Default deny. Many options make the kernel keep memory that no cgroup counts (extension headers,
source routes, keys, filters, flow labels), load a module, take locks of the whole machine's
networking (multicast groups) or patch the kernel's own code for everyone (time stamps,
encapsulation, minimum TTLs); each new kernel brings more. An option that is not listed answers
ENOPROTOOPT, as from a kernel that does not have it, and programs go on without it.
"""

from __future__ import annotations

SOL_IP, SOL_SOCKET, SOL_TCP, SOL_IPV6 = 0, 1, 6, 41

# fmt: off
SETTABLE: dict[int, dict[str, dict[str, int]]] = {
    SOL_SOCKET: {
        "every server": {"REUSEADDR": 2, "REUSEPORT": 15},
        "flags of one socket: asyncio, requests, Go, Java, gRPC": {
            "DONTROUTE": 5, "BROADCAST": 6, "KEEPALIVE": 9, "OOBINLINE": 10, "LINGER": 13,
            "RCVLOWAT": 18,
        },
        "traffic classes 0 to 6, one number": {"PRIORITY": 12},
        "who sent it: multiprocessing, D-Bus": {"PASSCRED": 16},
        "time-outs, in both sizes of time_t": {
            "RCVTIMEO": 20, "SNDTIMEO": 21, "RCVTIMEO_NEW": 66, "SNDTIMEO_NEW": 67,
        },
    },
    SOL_IP: {
        "one number each: Java's traffic class, dgram in Node": {"TOS": 1, "TTL": 2},
        "what comes with a datagram: glibc's resolver, QUIC, DNS": {
            "PKTINFO": 8, "MTU_DISCOVER": 10, "RECVERR": 11, "RECVTTL": 12, "RECVTOS": 13,
        },
        "a port chosen at connect: proxies, curl": {"BIND_ADDRESS_NO_PORT": 24},
        "libuv, Java and Go set these on sockets that never join a group": {
            "MULTICAST_IF": 32, "MULTICAST_TTL": 33, "MULTICAST_LOOP": 34, "MULTICAST_ALL": 49,
        },
    },
    SOL_IPV6: {
        "servers for both families: asyncio, Node, Go, Java": {"V6ONLY": 26},
        "one number each": {"UNICAST_HOPS": 16, "TCLASS": 67},
        "as with IPv4": {
            "MULTICAST_IF": 17, "MULTICAST_HOPS": 18, "MULTICAST_LOOP": 19, "MULTICAST_ALL": 29,
        },
        "what comes with a datagram": {
            "MTU_DISCOVER": 23, "RECVERR": 25, "RECVPKTINFO": 49, "RECVHOPLIMIT": 51,
            "DONTFRAG": 62, "RECVTCLASS": 66,
        },
    },
    SOL_TCP: {
        "asyncio, requests, Go, Node and Java set the first on every connection": {
            "NODELAY": 1, "MAXSEG": 2, "CORK": 3,
        },
        "how long to wait for the other side: urllib3, libpq, gRPC": {
            "KEEPIDLE": 4, "KEEPINTVL": 5, "KEEPCNT": 6, "SYNCNT": 7, "LINGER2": 8,
            "DEFER_ACCEPT": 9, "QUICKACK": 12, "USER_TIMEOUT": 18,
        },
        "when to wake up: browsers, gRPC": {"NOTSENT_LOWAT": 25, "INQ": 36},
    },
}
BUFFERS = (7, 8, 32, 33)
"""SO_{SND,RCV}BUF and SO_{SND,RCV}BUFFORCE: the wall chose the sizes; asking is no error."""
TCP_ZEROCOPY_RECEIVE = 35
"""An option that is *read*, and maps received pages into memory; what the socket was charged for
them is then given back."""
# fmt: on


def settable(level: int) -> tuple[int, ...]:
    return tuple(sorted(value for group in SETTABLE[level].values() for value in group.values()))
