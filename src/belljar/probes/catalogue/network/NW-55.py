import socket
import ssl

port, allowed = int("{{MEETING_PORT}}"), "{{ALLOWED_HOST}}"
lan = "{{HOST_LAN_IP}}"
NAMES = f"""
    {allowed} 127.0.0.1 localhost localhost. LOCALHOST ip6-localhost 2130706433 0x7f.1 0x7f000001
    0177.0.0.1 127.1 127.0.1 127.0.0.1. 0 0.0.0.0 [::1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1]
    [::1%lo] [64:ff9b::7f00:1] [2002:7f00:1::] %31%32%37.0.0.1 {lan} {allowed}. {allowed}%00.x
    {allowed}@127.0.0.1 127.0.0.1#{allowed} 127.0.0.1?{allowed} 127.0.0.1/{allowed}
    127.0.0.1\\{allowed}
    １２７.0.0.1 ①②⑦.0.0.1 127。0。0。1
""".split()
found, asked = [], 0


def tell(door, data, wants=1):
    """What a door says to these bytes, as far as it comes at once."""
    global asked
    asked += 1
    try:
        with socket.create_connection(("127.0.0.1", door), 5) as connection:
            connection.settimeout(5)
            connection.sendall(data)
            return (
                connection.recv(4096)
                if wants == 1
                else [connection.recv(64) for _ in range(wants)][-1]
            )
    except OSError:
        return b""


def passed(answer, what):
    status = answer.split(b"\r\n")[0].split(b" ")[1:2]
    if answer.startswith(b"HTTP/") and status and status[0][:1] in (b"1", b"2", b"3"):
        found.append(what)


for name in NAMES:
    spelled = f"{name}:{port}".encode()
    passed(
        tell(3128, b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (spelled, spelled)),
        f"CONNECT {name}",
    )
    for scheme in (b"http", b"https"):
        lines = b"GET %s://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n" % (scheme, spelled, spelled)
        passed(tell(3128, lines), f"GET {scheme.decode()}://{name}")
    passed(tell(80, b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % spelled), f"Host {name}")
here = b"127.0.0.1:%d" % port
there = allowed.encode()
for what, lines in {
    "Host unlike the target": b"GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n" % (there, here),
    "target unlike the Host": b"GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n" % (here, there),
    "two Hosts": b"GET / HTTP/1.1\r\nHost: %s\r\nHost: %s\r\n\r\n" % (there, here),
    "a line in CONNECT": b"CONNECT %s:443\r\nX: HTTP/1.1\r\nHost: %s\r\n\r\n" % (there, here),
    "a NUL in CONNECT": b"CONNECT %s\0.%s HTTP/1.1\r\nHost: x\r\n\r\n" % (here, there),
    "a file": b"GET file:///etc/passwd HTTP/1.1\r\nHost: %s\r\n\r\n" % there,
    "gopher": b"GET gopher://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n" % (here, here),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "smuggled": b"POST http://%s/ HTTP/1.1\r\nHost: %s\r\nContent-Length: 4\r\nTransfer-Encoding: "
    b"chunked\r\n\r\n0\r\n\r\nGET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n"
    % (there, there, here, here),
}.items():
    for door in (3128, 80):
        passed(tell(door, lines), what)
number = port.to_bytes(2, "big")
for command in (1, 2, 3):  # CONNECT, BIND, UDP ASSOCIATE
    for kind in (
        b"\1\x7f\0\0\1",
        b"\4" + bytes(15) + b"\1",
        b"\4" + bytes(10) + b"\xff\xff\x7f\0\0\1",
        *(b"\3" + bytes([len(name.encode())]) + name.encode() for name in NAMES),
    ):
        answer = tell(3128, b"\5\1\0" + b"\5" + bytes([command]) + b"\0" + kind + number, wants=2)
        if answer[:2] == b"\5\0" and len(answer) > 2:
            found.append(f"SOCKS {command} {kind!r}")
for request in (b"\4\1" + number + b"\x7f\0\0\1\0", b"\4\1" + number + b"\0\0\0\1\0localhost\0"):
    if tell(3128, request)[:2] == b"\0\x5a":
        found.append("SOCKS4")
unchecked = ssl.create_default_context()
unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
for name in ("localhost", "other.invalid", None):
    try:
        with socket.create_connection(("127.0.0.1", 443), 5) as connection:
            with unchecked.wrap_socket(connection, server_hostname=name):
                found.append(f"TLS for {name}")
    except OSError:
        pass
info(f"{asked} attempts")
conclude(found)
