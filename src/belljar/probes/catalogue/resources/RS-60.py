# A file lock is kernel memory that is in no cgroup, and no limit bounds their number.
import fcntl
import struct
import time

kept, taken = [], {}
for name, command in {"of a process": 6, "of an open file": 37}.items():  # F_SETLK, F_OFD_SETLK
    taken[name] = 0
    try:
        for number in range(450):
            flags = os.O_RDWR | os.O_CREAT
            kept.append(os.open(f"/tmp/rs60-{command}-{number}", flags, 0o600))
            for at in range(2200):
                kind = fcntl.F_WRLCK if at % 2 else fcntl.F_RDLCK  # neighbours would be merged
                fcntl.fcntl(kept[-1], command, struct.pack("hhqqi4x", kind, 0, at * 2, 1, 0))
                taken[name] += 1
    except OSError as error:
        info(f"{name}: {error}")
print("TAKEN", ID, taken, flush=True)
time.sleep(float("{{STAY_S}}"))
