import socket
import threading

answers = []


def look_up():
    try:
        answers.append(str(socket.getaddrinfo("probe-nw12.example.com", 80)[0][4]))
    except OSError as error:
        answers.append(f"ERR {error}")


thread = threading.Thread(target=look_up, daemon=True)
thread.start()
thread.join(6)
servers = []
try:
    with open("/etc/resolv.conf") as file:
        words = [line.split() for line in file if line.startswith("nameserver")]
    servers = [w[1] for w in words if len(w) > 1 and not w[1].startswith("127.")]
except OSError:
    pass
reachable = []
for server in servers:
    try:
        socket.socket(10 if ":" in server else 2, 2).connect((server, 53))
        reachable.append(server)
    except OSError:
        pass
if reachable:
    broken(f"route to resolver {reachable}")
elif answers and not answers[0].startswith("ERR"):
    broken(f"resolved {answers[0]}")
else:
    held(answers[0] if answers else "no answer in 6 s")
