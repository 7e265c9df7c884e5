if not X86:
    held("x86-64 only")
    sys.exit(0)
X32 = 0x40000000
found = []
for name, number, arguments in (
    ("getpid", 39, ()),
    ("unshare", 272, (0x10000000,)),
    ("socket", 41, (40, 1, 0)),
    ("ptrace", 521, (0x4206, 1, 0, 0)),
    ("execveat", 545, (-1, b"", 0, 0, 0)),
):
    result, errno = try_syscall(X32 | number, None, *arguments)
    if result >= 0 or errno not in REFUSED:
        found.append(f"x32 {name} -> {result}, errno {errno}")
conclude(found)
