import socket

port, token = int("{{HOST_TCP_PORT}}"), b"{{HOST_BANNER_TOKEN}}"
addresses = """
    127.0.0.1 172.17.0.1 172.18.0.1 10.0.2.2 192.168.122.1 192.168.127.254 10.88.0.1
    host.docker.internal gateway.docker.internal {{HOST_LAN_IP}}
""".split()
try:
    with open("/proc/net/route") as table:
        for line in table.read().splitlines()[1:]:
            gateway = bytes.fromhex(line.split()[2])[::-1]
            if any(gateway):
                addresses.append(".".join(map(str, gateway)))
except (OSError, ValueError, IndexError):
    pass
found = []
for address in addresses:
    try:
        with socket.create_connection((address, port), 1) as connection:
            if token in connection.recv(200):
                found.append(address)
    except (OSError, AttributeError):  # a Python without sockets
        pass
conclude(found)
