import struct

try:
    import fcntl
except ImportError:
    held("no ioctl")
    sys.exit(0)
GETFLAGS, SETFLAGS, IMMUTABLE = 0x80086601, 0x40086602, 0x10
found = []
for folder in (".", "/tmp", "/dev/shm", "/data/output"):
    path = os.path.join(folder, f".probe-fs15-{os.getpid()}")
    try:
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:
        continue
    try:
        flags = struct.unpack("i", fcntl.ioctl(fd, GETFLAGS, struct.pack("i", 0))[:4])[0]
        fcntl.ioctl(fd, SETFLAGS, struct.pack("i", flags | IMMUTABLE))
        fcntl.ioctl(fd, SETFLAGS, struct.pack("i", flags))
        found.append(folder)
    except OSError:
        pass
    os.close(fd)
    os.unlink(path)
conclude(found and f"set +i in {found}")
