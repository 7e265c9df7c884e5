# Kernel interfaces that programs hardly need and exploits often do; all arguments are invalid.
found = []
for name, x86, arm, arguments in (
    ("keyctl", 250, 219, (0, -4, 0, 0, 0)),
    ("add_key", 248, 217, (0, 0, 0, 0, 0)),
    ("request_key", 249, 218, (0, 0, 0, 0)),
    ("perf_event_open", 298, 241, (0, 0, -1, -1, 0)),
    ("bpf", 321, 280, (-1, 0, 0)),
    ("userfaultfd", 323, 282, (0x40000000,)),
    ("fanotify_init", 300, 262, (-1, 0)),
    ("io_uring_enter", 426, 426, (-1, 0, 0, 0, 0, 0)),
    ("io_uring_register", 427, 427, (-1, -1, 0, 0)),
    ("quotactl", 179, 60, (-1, 0, 0, 0)),
    ("quotactl_fd", 443, 443, (-1, -1, 0, 0)),
    ("iopl", 172, None, (9,)),
    ("ioperm", 173, None, (0x10000, 1, 1)),
    ("modify_ldt", 154, None, (1, 0, 0)),
    ("move_pages", 279, 239, (0, 1, 0, 0, 0, -1)),
    ("migrate_pages", 256, 238, (0, -1, 0, 0)),
    ("clock_settime", 227, 112, (-1, 0)),
    ("clock_adjtime", 305, 266, (-1, 0)),
    ("vhangup", 153, 58, ()),
    ("lookup_dcookie", 212, 18, (0, 0, 0)),
    ("memfd_secret", 447, 447, (-1,)),
    ("process_madvise", 440, 440, (-1, 0, 0, 0, 0)),
    ("process_vm_writev", 311, 271, (1, 0, 0, 0, 0, -1)),
    ("kexec_file_load", 320, 294, (-1, -1, 0, 0, -1)),
    ("delete_module", 176, 106, (0, 0)),
    ("setdomainname", 171, 162, (0, -1)),
    ("swapoff", 168, 225, (b"/nonexistent-probe",)),
    ("nfsservctl", 180, 42, (0, 0, 0)),
    ("uselib", 134, None, (b"/nonexistent-probe",)),
):
    if name == "vhangup" and os.geteuid() == 0:
        continue  # would really hang up the caller's terminal
    result, errno = try_syscall(x86, arm, *arguments)
    if result >= 0 or errno not in REFUSED:
        found.append(f"{name} {result}, errno {errno}")
conclude(found[:8])
