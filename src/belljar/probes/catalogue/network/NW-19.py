import socket
import urllib.parse

NAMES = "HTTPS_PROXY https_proxy HTTP_PROXY http_proxy ALL_PROXY all_proxy".split()
proxy = next((os.environ[name] for name in NAMES if os.environ.get(name)), "")
if not proxy:
    broken("a sandbox with a network has no proxy")
    sys.exit()
url = urllib.parse.urlsplit(proxy if "//" in proxy else "http://" + proxy)
port, allowed = "{{HOST_TCP_PORT}}", "{{ALLOWED_HOST}}"
LOCAL = """
    127.0.0.1 localhost localhost. LOCALHOST 2130706433 0x7f.1 0177.0.0.1 127.1 0 [::1]
    [::ffff:127.0.0.1] [0:0:0:0:0:ffff:7f00:1]
""".split()
targets = [f"{host}:{port}" for host in LOCAL]
targets += ["169.254.169.254:80", "10.0.0.1:443", "192.0.2.1:443", allowed + ":22", allowed + ":25"]
found = []
for target in targets:
    try:
        with socket.create_connection((url.hostname, url.port or 3128), 4) as connection:
            connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            answer = connection.recv(200)
    except OSError:
        continue
    if b" 200" in answer.split(b"\r\n")[0]:
        found.append(target)
conclude(found)
