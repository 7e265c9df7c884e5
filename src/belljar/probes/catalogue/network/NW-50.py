# Two sandboxes alive at once: one opens every kind of meeting place, the other looks for them.
import ctypes
import socket
import time

role, name = "{{ROLE}}", "{{MEETING_NAME}}"
port, key = int("{{MEETING_PORT}}"), 0x424A4D50
files = [
    f"{folder}/{name}" for folder in ("/tmp", "/dev/shm", "/workspace", "/data/output", "/var/tmp")
]
libc = ctypes.CDLL(None, use_errno=True)
if role == "host":
    keep = []
    for family, address in ((socket.AF_UNIX, "\0" + name), (socket.AF_INET, ("0.0.0.0", port))):
        server = socket.socket(family)
        server.bind(address)
        server.listen(4)
        keep.append(server)
    for path in files:
        try:
            open(path, "w").close()
        except OSError:
            pass
    libc.shmget(key, 4096, 0o1666)
    libc.mq_open(b"/" + name.encode(), 0o102, 0o666, None)
    print("MEETING", ID, flush=True)
    time.sleep(float("{{STAY_S}}"))
else:
    found = [path for path in files if os.path.exists(path)]
    for family, address in ((socket.AF_UNIX, "\0" + name), (socket.AF_INET, ("127.0.0.1", port))):
        try:
            client = socket.socket(family)
            client.settimeout(1)
            client.connect(address)
            found.append(f"connected to {address!r}")
        except OSError:
            pass
    if libc.shmget(key, 4096, 0) >= 0:
        found.append("System V segment")
    if libc.mq_open(b"/" + name.encode(), 0, 0, None) >= 0:
        found.append("message queue")
    conclude(found)
