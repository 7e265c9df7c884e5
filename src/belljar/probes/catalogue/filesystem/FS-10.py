import stat

found = []
for folder in (".", "/tmp", "/dev/shm", "/var/tmp", "/data/output"):
    node = os.path.join(folder, f".probe-fs10-{os.getpid()}")
    try:
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except (OSError, AttributeError):
        continue
    try:
        os.close(os.open(node, os.O_RDONLY))
        found.append(folder)
    except OSError:
        pass
    os.unlink(node)
conclude(found and f"usable device node in {found}")
