NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "time": 0x00000080,
}
USER, SIGCHLD = NAMESPACES["user"], 17
found = []


def clone(flags):
    result, errno = syscall(56, 220, flags | SIGCHLD, 0, 0, 0, 0)
    if result == 0:
        os._exit(0)
    if result > 0:
        os.waitpid(result, 0)
    return result


for name, flag in NAMESPACES.items():
    for with_user in {flag, flag | USER}:
        if try_syscall(272, 97, with_user)[0] == 0:
            found.append(f"unshare {name}{' + user' if with_user != flag else ''}")
        if name == "time":  # not a flag of clone(2)
            continue
        text, _ = in_child(lambda: clone(with_user))
        if text.isdigit() and int(text) > 0:
            found.append(f"clone {name}")
conclude(found[:8])
