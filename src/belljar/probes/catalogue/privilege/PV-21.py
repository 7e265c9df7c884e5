# Arguments are invalid on purpose: where the call is let through, it fails with another errno.
nowhere, found = b"/nonexistent-probe", []
for name, x86, arm, arguments in (
    ("reboot", 169, 142, (0, 0, 0, 0)),
    ("swapon", 167, 224, (nowhere, 0)),
    ("acct", 163, 89, (nowhere,)),
    ("settimeofday", 164, 170, (0, 0)),
    ("init_module", 175, 105, (0, 0, b"")),
    ("finit_module", 313, 273, (-1, b"", 0)),
    ("kexec_load", 246, 104, (0, 1000000, 0, 0xFF00)),
    ("sethostname", 170, 161, (0, -1)),
    ("syslog", 103, 116, (10, 0, 0)),
):
    result, errno = try_syscall(x86, arm, *arguments)
    if result >= 0 or errno not in REFUSED:
        found.append(f"{name} {result}, errno {errno}")
conclude(found)
