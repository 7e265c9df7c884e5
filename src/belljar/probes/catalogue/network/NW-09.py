import socket

found = []
for kind in (1, 2, 5):
    try:
        socket.socket(40, kind, 0).close()
        found.append(kind)
    except OSError:
        pass
conclude(found and f"AF_VSOCK types {found}: vsock ignores network namespaces before Linux 7.0")
