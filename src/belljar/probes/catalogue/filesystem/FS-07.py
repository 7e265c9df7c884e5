# Opened and closed, never written.
CONTROLS = set(
    "memory.max memory.high memory.limit_in_bytes pids.max cpu.max cgroup.procs "
    "cgroup.subtree_control tasks release_agent".split()
)
found, seen = [], 0
for base, folders, files in os.walk("/sys/fs/cgroup"):
    if base.count("/") > 8:
        folders[:] = []
    for name in CONTROLS.intersection(files):
        seen += 1
        try:
            os.close(os.open(f"{base}/{name}", os.O_WRONLY))
            found.append(f"{base}/{name}")
        except OSError:
            pass
    if seen > 2000 or len(found) > 5:
        break
conclude(found[:5], f"{seen} control files visible")
