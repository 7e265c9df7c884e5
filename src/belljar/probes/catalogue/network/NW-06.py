import socket

found = []
for name, arguments in {
    "raw icmp": (2, 3, 1),
    "raw tcp": (2, 3, 6),
    "raw ipv6": (10, 3, 58),
    "packet": (17, 3, 768),
    "packet dgram": (17, 2, 768),
}.items():
    try:
        socket.socket(*arguments).close()
        found.append(name)
    except OSError:
        pass
conclude(found)
