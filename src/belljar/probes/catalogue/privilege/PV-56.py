GET_PARENT, GET_USERNS, found = 0xB702, 0xB701, []
kinds = "mnt user pid net ipc uts cgroup time pid_for_children".split()
kinds = [kind for kind in kinds if os.path.exists(f"/proc/self/ns/{kind}")]  # gVisor has a few
own = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
# Our own child is where we are. gVisor has a number for each process: it says nothing, then.
receive, send = os.pipe()
child = os.fork()
if child == 0:
    os.close(send)
    os.read(receive, 1)
    os._exit(0)
numbered = [kind for kind in kinds if os.readlink(f"/proc/{child}/ns/{kind}") == own[kind]]
os.close(send)
os.waitpid(child, 0)
info(f"identities can be told of: {numbered}")
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    for kind in kinds:
        path = f"/proc/{pid}/ns/{kind}"
        try:
            if kind in numbered and os.readlink(path) != own[kind]:
                found.append(f"{path} is another namespace")
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        if try_syscall(308, 268, fd, 0)[0] == 0:
            found.append(f"joined {path}")
        if try_syscall(16, 29, fd, GET_PARENT, 0)[0] >= 0:
            found.append(f"parent of {path}")
        os.close(fd)
conclude(found[:6])
