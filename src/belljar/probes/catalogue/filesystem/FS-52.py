# Opened and closed, never written. Own-process files (/proc/<pid>/...) are not walked.
import stat

# A trigger there acts on open or is not a tunable at all.
SKIP = {"/proc/kmsg", "/proc/kcore", "/proc/self", "/proc/thread-self"}
found, seen = [], 0
for top in ("/proc", "/sys"):
    for base, folders, files in os.walk(top):
        folders[:] = [f for f in folders if not f.isdigit() and f"{base}/{f}" not in SKIP]
        for name in files:
            path = f"{base}/{name}"
            try:
                if path in SKIP or not stat.S_ISREG(os.lstat(path).st_mode):
                    continue
                seen += 1
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                found.append(path)
            except OSError:
                pass
        if len(found) > 4 or seen > 20000:
            break
conclude(found[:5], f"{seen} files tried")
