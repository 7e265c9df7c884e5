path, token = "{{HOST_CANARY_PATH}}".lstrip("/"), "{{HOST_CANARY_TOKEN}}"
parent, up = os.getppid() if hasattr(os, "getppid") else 1, "../" * 40
found = []
for way in (
    up,
    "/.." * 8 + "/",
    "/proc/self/root/",
    "/proc/thread-self/root/",
    "/proc/1/root/",
    f"/proc/{parent}/root/",
    "/proc/self/cwd/" + up,
    "/proc/1/cwd/" + up,
    f"/proc/{parent}/cwd/" + up,
):
    try:
        with open(way + path) as file:
            if token in file.read(4096):
                found.append(way[:24])
    except OSError:
        pass
conclude(found)
