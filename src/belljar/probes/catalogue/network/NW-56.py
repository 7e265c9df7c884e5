import ctypes
import signal
import socket

found = []
libc = ctypes.CDLL(None, use_errno=True)
for number in [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]:
    try:
        if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
            continue
        one = socket.socket(fileno=os.dup(number))
    except OSError:
        continue
    if one.family != socket.AF_UNIX or one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        found.append(f"descriptor {number} is a {one.family.name} socket")
pidfd = libc.syscall(434, 1, 0)
for number in range(64):
    if pidfd >= 0 and libc.syscall(438, pidfd, number, 0) >= 0:
        found.append(f"took descriptor {number} of pid 1")
for what, attempt in {
    "its descriptors": lambda: os.listdir("/proc/1/fd"),
    "its memory": lambda: open("/proc/1/mem", "rb").close(),
    "its network": lambda: os.open("/proc/1/ns/net", os.O_RDONLY),
    "names": lambda: open("/etc/hosts", "a").close(),
}.items():
    try:
        attempt()
        found.append(f"opened {what}")
    except OSError:
        pass
# In the doors' place. Beside them is no harm as long as nobody comes.
for host in ("127.0.0.1", "0.0.0.0"):
    for port in (3128, 80, 443):
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            mine = socket.socket()
            mine.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                mine.bind((host, port))
                mine.listen()
                mine.settimeout(0.2)
                with socket.create_connection(("127.0.0.1", port), 5):
                    mine.accept()[0].close()
                found.append(f"{host}:{port} is answered by the code")
            except OSError:
                pass
            mine.close()
for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL, signal.SIGINT, signal.SIGHUP):
    try:
        os.kill(1, number)
    except OSError:
        pass
try:
    with socket.create_connection(("127.0.0.1", 3128), 10) as connection:
        connection.settimeout(10)
        connection.sendall(b"CONNECT other.invalid:443 HTTP/1.1\r\nHost: other.invalid:443\r\n\r\n")
        answer = connection.recv(200)
except OSError as error:
    answer = repr(error).encode()
if not answer.startswith(b"HTTP/1.1 403 "):
    found.append(f"the gateway said {answer[:60]!r}")
conclude(found)
