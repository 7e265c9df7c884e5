import subprocess
import threading

WANTED = {"NoNewPrivs": "1", "Seccomp": "2", "CapEff": "0" * 16}
# gVisor's /proc leaves NoNewPrivs out; a process that can ask the kernel itself does. What a shell
# executes shows what the shell had.
READ = """
text = open("/proc/thread-self/status").read()
if "NoNewPrivs" not in text:
    import ctypes
    text += "NoNewPrivs: %d" % ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)
"""
found = []


def check(way, text):
    status = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    for name, value in WANTED.items():
        if name == "NoNewPrivs" and name not in status and way == "cat":
            continue
        if status.get(name, "?").strip() != value:
            found.append(f"{way}: {name}={status.get(name, '?').strip()}")


def in_thread():
    names = {}
    exec(READ, names)
    check("thread", names["text"])


thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
for way, command in (
    ("cat", ["/bin/sh", "-c", "cat /proc/self/status"]),
    ("shell", ["/bin/sh", "-c", '"$0" -c "$1"; :', sys.executable, READ + "print(text)"]),
    ("python", [sys.executable, "-c", READ + "print(text)"]),
):
    try:
        check(way, subprocess.run(command, capture_output=True, text=True, timeout=20).stdout)
    except (OSError, subprocess.SubprocessError) as error:
        info(f"exec not possible: {error}")
conclude(found)
