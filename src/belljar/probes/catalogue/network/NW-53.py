# Loopback is the only interface, and nothing about it can be changed.
import fcntl
import socket
import struct

found = []
try:
    found += [f"interface {name}" for _, name in socket.if_nameindex() if name != "lo"]
except OSError:
    pass  # asks through netlink, which may be refused
try:
    with open("/proc/net/dev") as table:
        names = {line.split(":")[0].strip() for line in table.read().splitlines()[2:]}
    found += [f"device {name}" for name in sorted(names - {"lo"})]
except OSError:
    pass
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
address = struct.pack("<H2s4s8x", socket.AF_INET, b"", socket.inet_aton("127.0.0.9"))
GET_FLAGS, SET_FLAGS, SET_ALIAS, SET_MTU, GET_MTU = 0x8913, 0x8914, 0x8916, 0x8922, 0x8921


def again(get, put):
    """Writes the value that is already there."""
    fcntl.ioctl(udp, put, fcntl.ioctl(udp, get, struct.pack("16s24x", b"lo")))


for what, action in {
    "set interface flags": lambda: again(GET_FLAGS, SET_FLAGS),
    "set the MTU": lambda: again(GET_MTU, SET_MTU),
    "add an address": lambda: fcntl.ioctl(
        udp, SET_ALIAS, struct.pack("16s", b"lo:9") + address + b"\0" * 8
    ),
}.items():
    try:
        action()
        found.append(what)
    except OSError:
        pass
conclude(found)
