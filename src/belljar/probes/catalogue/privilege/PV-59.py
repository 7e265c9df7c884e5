# Memory files may be executed (that is no wall here), but under the same restrictions.
import subprocess

try:
    fd = os.memfd_create("probe")
except OSError as error:
    held(f"no memory files: {error}")
    sys.exit(0)
with open("/bin/cat", "rb") as program:
    os.write(fd, program.read())
try:
    text = subprocess.run(
        [f"/proc/self/fd/{fd}", "/proc/self/status"],
        pass_fds=[fd],
        capture_output=True,
        text=True,
        timeout=5,
    ).stdout
except OSError as error:
    held(f"not executable: {error}")
    sys.exit(0)
status = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
wanted = {"NoNewPrivs": "1", "Seccomp": "2", "CapEff": "0" * 16, "CapBnd": "0" * 16}
conclude(
    [
        f"{n}={status.get(n, '?').strip()}"
        for n, v in wanted.items()
        if status.get(n, v).strip() != v
    ]
)
