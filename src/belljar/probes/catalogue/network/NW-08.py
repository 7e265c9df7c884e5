import socket

try:
    socket.socket(38, 5, 0).close()
except OSError as error:
    held(error)
else:
    broken("AF_ALG socket created")
