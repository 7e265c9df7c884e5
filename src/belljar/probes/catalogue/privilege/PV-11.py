found = []
nowhere = b"/nonexistent-probe"
result, errno = try_syscall(155, 41, nowhere, nowhere)
if result == 0 or errno not in REFUSED:
    found.append(f"pivot_root errno {errno}")
for name, call in {
    "chroot": lambda: syscall(161, 51, b"/"),
    "umount2": lambda: syscall(166, 39, nowhere, 8),
    "setns": lambda: syscall(308, 268, os.open("/proc/self/ns/uts", os.O_RDONLY), 0),
}.items():
    text, _ = in_child(lambda: call()[0])
    if text == "0":
        found.append(name)
conclude(found)
