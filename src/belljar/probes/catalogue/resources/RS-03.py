cap, block, filled = int("{{MEM_CAP_MB}}"), b"x" * (1 << 20), {}


def fill(name, fd):
    filled[name] = 0
    try:
        while filled[name] < cap:
            os.write(fd, block)
            filled[name] += 1
    except OSError as error:
        info(f"{name} {filled[name]} MB {error}")
    os.close(fd)


for folder in ("/dev/shm", "/tmp"):
    path = f"{folder}/.probe-rs03-{os.getpid()}"
    try:
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.unlink(path)
        fill(folder, fd)
    except OSError:
        pass
if hasattr(os, "memfd_create"):
    try:
        fill("memfd", os.memfd_create("probe"))
    except OSError:
        pass
full = [name for name, size in filled.items() if size >= cap]
conclude(full and f"{cap} MB in {full}", filled)
