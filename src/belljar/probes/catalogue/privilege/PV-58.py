found = ["runs as root"] if 0 in (os.getuid(), os.geteuid(), os.getgid(), os.getegid()) else []
for name, action in {
    "setuid(0)": lambda: os.setuid(0),
    "seteuid(0)": lambda: os.seteuid(0),
    "setreuid(0, 0)": lambda: os.setreuid(0, 0),
    "setresuid(0, 0, 0)": lambda: os.setresuid(0, 0, 0),
    "setgid(0)": lambda: os.setgid(0),
    "setresgid(0, 0, 0)": lambda: os.setresgid(0, 0, 0),
    "setgroups([0])": lambda: os.setgroups([0]),
    "initgroups": lambda: os.initgroups("root", 0),
}.items():
    text, _ = in_child(lambda: action() or "DONE")
    if text == "DONE":
        found.append(name)
for path, line in (("uid_map", b"0 0 1\n"), ("gid_map", b"0 0 1\n"), ("setgroups", b"allow")):
    try:
        fd = os.open("/proc/self/" + path, os.O_WRONLY)
        os.write(fd, line)
        found.append(f"wrote {path}")
    except OSError:
        pass
conclude(found)
