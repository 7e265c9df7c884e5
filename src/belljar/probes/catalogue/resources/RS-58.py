# Descriptors that were sent over a Unix socket and not received are counted per user of the host.
import socket
import time

role, kept = "{{ROLE}}", []


def send():
    pair = socket.socketpair()
    kept.append(pair)
    socket.send_fds(pair[0], [b"x"], [pair[0].fileno()] * 250)


if role == "hoarder":
    try:
        while len(kept) < 100:
            send()
    except OSError as error:
        info(error)
    print("HOARDED", ID, len(kept) * 250, flush=True)
    time.sleep(float("{{STAY_S}}"))
else:
    try:
        send()
        print("GOT", ID)
    except OSError as error:
        print("STARVED", ID, error)
