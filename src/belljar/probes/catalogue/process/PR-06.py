class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


buffer = ctypes.create_string_buffer(8)
local, remote = Vector(ctypes.addressof(buffer), 8), Vector(0, 8)
parent, me = os.getppid(), os.getpid()


def look():
    found = []
    for pid in {parent, 1} - {0, me}:
        result, errno = syscall(310, 270, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if result >= 0 or errno == EFAULT:  # the address was bad, the process was not refused
            found.append(f"process_vm_readv:{pid}")
        if syscall(312, 272, me, pid, 0, 0, 0)[0] >= 0:
            found.append(f"kcmp:{pid}")
        if syscall(302, 261, pid, 7, 0, ctypes.create_string_buffer(16))[0] == 0:
            found.append(f"prlimit:{pid}")
    return " ".join(found)


text, killed_by = in_child(look)
conclude(not text.startswith("EXC") and text, text or f"signal {killed_by}")
