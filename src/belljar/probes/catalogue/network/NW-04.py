import socket

name = "{{HOST_ABSTRACT_NAME}}"
try:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(2)
    client.connect("\0" + name)
except (OSError, AttributeError) as error:
    held(error)
else:
    broken(f"connected to @{name}")
