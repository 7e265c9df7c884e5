import subprocess
import threading

WANTED = {"NoNewPrivs": "1", "Seccomp": "2", "CapEff": "0" * 16}
found = []


def check(way, text):
    status = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    for name, value in WANTED.items():
        if status.get(name, "?").strip() != value:
            found.append(f"{way}: {name}={status.get(name, '?').strip()}")


def in_thread():
    with open("/proc/thread-self/status") as file:
        check("thread", file.read())


thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
for command in (
    ["/bin/sh", "-c", "cat /proc/self/status"],
    [sys.executable, "-c", "print(open('/proc/self/status').read())"],
):
    try:
        check(
            command[0], subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
        )
    except (OSError, subprocess.SubprocessError) as error:
        info(f"exec not possible: {error}")
conclude(found)
