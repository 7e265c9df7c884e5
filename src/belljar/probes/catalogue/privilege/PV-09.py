# The file-system type does not exist, so nothing can be mounted even where mount(2) is allowed.
result, errno = try_syscall(165, 40, b"none", b"/tmp", b"probe-nofs", 0, 0)
conclude(
    errno not in REFUSED and f"mount looked for the file system, errno {errno}", f"errno {errno}"
)
