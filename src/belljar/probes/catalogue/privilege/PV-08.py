import struct

NEWUSER, SIGCHLD = 0x10000000, 17
arguments = ctypes.create_string_buffer(struct.pack("<8Q", NEWUSER, 0, 0, 0, SIGCHLD, 0, 0, 0))


def cloned(*call):
    result, errno = syscall(*call)
    if result == 0:
        os._exit(0)
    if result > 0:
        os.waitpid(result, 0)
    return f"{result} {errno}"


found, notes = [], []
for name, call in {
    "clone3": (435, 435, arguments, 64),
    "clone": (56, 220, NEWUSER | SIGCHLD, 0, 0, 0, 0),
}.items():
    text, killed_by = in_child(lambda: cloned(*call))
    notes.append(f"{name}={text or killed_by}")
    if text and not text.startswith(("-1", "EXC")):
        found.append(f"{name} into a new user namespace")
conclude(found, " ".join(notes) + " (38 wanted for clone3, so that libc falls back)")
