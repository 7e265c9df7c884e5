import socket

server = socket.socket()
server.bind(("0.0.0.0", int("{{MEETING_PORT}}")))
server.listen(8)
server.settimeout(4)
print("LISTENING", ID, flush=True)
try:
    _, peer = server.accept()
except OSError:
    held("nobody could connect")
else:
    broken(f"connection from {peer}")
