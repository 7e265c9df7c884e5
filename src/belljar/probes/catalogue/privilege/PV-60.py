# What would weaken the walls of this process or of its children, asked with harmless values.
SECCOMP_OFF = 0
found = []
for name, arguments in {
    "drop the filter": (22, SECCOMP_OFF, 0, 0, 0),  # PR_SET_SECCOMP
    "clear no-new-privileges": (38, 0, 0, 0, 0),
    "raise an ambient capability": (47, 2, 0, 0, 0),
    "change securebits": (28, 1, 0, 0, 0),
    "move its memory map": (35, 1, 0x10000, 0, 0),  # PR_SET_MM
}.items():
    result, errno = try_syscall(157, 167, *arguments)
    if result == 0:
        found.append(name)
# A listener of its own (SECCOMP_RET_USER_NOTIF) would let one guest process answer for another.
NEW_LISTENER = 1 << 3
program = ctypes.create_string_buffer(b"\x06\0\0\0\0\0\xff\x7f")  # BPF: return ALLOW


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


filtering = Program(1, ctypes.addressof(program))
if try_syscall(317, 277, 1, NEW_LISTENER, ctypes.byref(filtering))[0] >= 0:
    found.append("seccomp listener")
conclude(found)
