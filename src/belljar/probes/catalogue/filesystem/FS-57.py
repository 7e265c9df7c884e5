# The guest may map to the very user who owns the interpreter's files: only the mount protects them.
with open("/proc/self/maps") as table:
    paths = {line.split(None, 5)[5].strip() for line in table if "/" in line}
paths |= {sys.executable, os.path.realpath(sys.executable), "/proc/self/exe", "/proc/1/exe"}
paths |= {getattr(m, "__file__", None) or "" for m in list(sys.modules.values())}
paths |= {entry for entry in sys.path if entry not in ("", os.getcwd(), "/workspace")}
found = []
for path in sorted(paths):
    # Its own script is the one file that is the guest's to change.
    if not path or path.startswith((os.getcwd(), "/workspace", "/memfd", "/dev/", "/tmp/")):
        continue
    for target in {path, os.path.dirname(path)}:
        if os.path.exists(target) and os.access(target, os.W_OK):
            found.append(target)
conclude(sorted(set(found))[:6], f"{len(paths)} paths")
