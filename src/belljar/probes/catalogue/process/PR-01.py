token = "{{HOST_PROC_TOKEN}}"
found, seen = [], 0
for pid in os.listdir("/proc") if os.path.isdir("/proc") else []:
    if not pid.isdigit():
        continue
    seen += 1
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode("utf-8", "replace")
        with open(f"/proc/{pid}/comm") as file:
            name = file.read().strip()
    except OSError:
        continue
    if token in command or name == "kthreadd":
        found.append(f"{pid} {name} {command[:60]}")
conclude(found[:3], f"{seen} processes visible")
