# A hard link into a writable folder would make a read-only file's inode writable through it.
found = []
sources = [
    sys.executable,
    os.__file__,
    "/etc/passwd",
    "/etc/hosts",
    "/bin/sh",
    "{{INPUT_DIR}}/given.txt",
]
for folder in (".", "/tmp", "/dev/shm", "/data/output"):
    for source in sources:
        path = os.path.join(folder, f".probe-fs56-{os.getpid()}")
        try:
            os.link(os.path.realpath(source), path)
        except OSError:
            continue
        os.unlink(path)
        found.append(f"{source} into {folder}")
conclude(found)
