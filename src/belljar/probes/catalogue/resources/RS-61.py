# What waits in connections that nobody accepted is in no cgroup; each socket may be a listener.
import contextlib
import socket
import time

kept, sent = [], 0
try:
    for _ in range(400):
        kept.append(socket.create_server(("127.0.0.1", 0), backlog=32))
        for _ in range(33):
            client = socket.socket()
            client.setblocking(False)
            with contextlib.suppress(OSError):
                client.connect(kept[-1].getsockname())
            with contextlib.suppress(OSError):
                while True:
                    sent += client.send(bytes(4096))
            client.close()
except OSError as error:
    info(error)
print("TAKEN", ID, f"{sent >> 20} MB", flush=True)
time.sleep(float("{{STAY_S}}"))
