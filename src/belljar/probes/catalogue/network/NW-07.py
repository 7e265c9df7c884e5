import socket

PROTOCOLS = {
    "SOCK_DIAG": 4,
    "XFRM": 6,
    "SELINUX": 7,
    "AUDIT": 9,
    "CONNECTOR": 11,
    "NETFILTER": 12,
    "KOBJECT_UEVENT": 15,
    "GENERIC": 16,
    "CRYPTO": 21,
}
found = []
for name, protocol in PROTOCOLS.items():
    try:
        socket.socket(16, 3, protocol).close()
        found.append(name)
    except (OSError, AttributeError):
        pass
conclude(found)
