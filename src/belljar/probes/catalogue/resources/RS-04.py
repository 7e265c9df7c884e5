KEY, CREATE = 0x50524F42, 0o1600
try:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    earlier = libc.shmget(KEY, 4096, 0)
    made = libc.shmget(KEY, 4096, CREATE), libc.msgget(KEY, CREATE), libc.semget(KEY, 1, CREATE)
except (ImportError, AttributeError, OSError) as error:
    held(f"no System V IPC: {error}")
    sys.exit(0)
conclude(earlier >= 0 and f"segment {earlier} of an earlier run", f"created {made}")
