# Pid 1 runs as the same user: only its being non-dumpable keeps its memory and descriptors shut.
import stat

me, found = os.getpid(), []
for pid in {1, os.getppid()} - {0, me}:
    base = f"/proc/{pid}/"
    for name in "mem environ maps smaps auxv stack syscall io pagemap personality".split():
        try:
            fd = os.open(base + name, os.O_RDONLY)
        except OSError:
            continue
        try:
            if name == "mem" or os.read(fd, 16):
                found.append(base + name)
        except OSError:
            pass
        os.close(fd)
    for name in ("root", "cwd", "exe"):
        try:
            os.readlink(base + name)
            found.append(base + name)
        except OSError:
            pass
    for name in ("fd", "map_files", "fdinfo"):
        try:
            if stat.S_ISDIR(os.stat(base + name).st_mode) and os.listdir(base + name):
                found.append(base + name)
        except OSError:
            pass
    for name in ("mem", "oom_score_adj", "comm", "coredump_filter", "clear_refs", "uid_map"):
        try:
            os.close(os.open(base + name, os.O_WRONLY))
            found.append(f"{base}{name} for writing")
        except OSError:
            pass
conclude(found)
