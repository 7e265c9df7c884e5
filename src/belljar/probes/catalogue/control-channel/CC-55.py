# The host's environment held a canary when this sandbox was made. /proc keeps the exec-time copy.
name, first, second = "{{HOST_ENV_NAME}}", "{{MEM_CANARY_HALF_A}}", "{{MEM_CANARY_HALF_B}}"
found = []
if name in os.environ:
    found.append("os.environ")
processes = os.listdir("/proc") if os.path.isdir("/proc") else []
for pid in [p for p in processes if p.isdigit()]:
    for file in ("environ", "cmdline"):
        try:
            with open(f"/proc/{pid}/{file}", "rb") as stream:
                data = stream.read()
        except OSError:
            continue
        at = data.find(first.encode())
        if name.encode() in data or (at >= 0 and second.encode() in data[at : at + 200]):
            found.append(f"/proc/{pid}/{file}")
for key in os.environ:
    if key.startswith(("SSH_", "AWS_", "GITHUB_", "SUDO_", "DBUS_", "VIRTUAL_ENV")):
        found.append(key)
conclude(found)
