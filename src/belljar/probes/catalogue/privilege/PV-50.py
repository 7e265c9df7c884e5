# open_by_handle_at reaches any inode of a file system by number, past every folder and mount.
import struct

found = []
for path in (b".", b"/tmp", b"/", b"/usr", b"/etc"):

    def by_handle():
        handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + b"\0" * 128)
        mount_id = ctypes.c_int()
        result, errno = syscall(303, 264, -100, path, handle, ctypes.byref(mount_id), 0)
        folder = os.open(path, os.O_RDONLY)
        if result < 0:  # a made-up handle of inode 2 serves the purpose as well
            handle = ctypes.create_string_buffer(struct.pack("IiII", 8, 1, 2, 0))
        result, errno = syscall(304, 265, folder, handle, os.O_RDONLY)
        return f"{result} {errno}"

    text, _ = in_child(by_handle)
    if text and not text.startswith("EXC"):
        result, errno = map(int, text.split())
        if result >= 0 or errno not in REFUSED:
            found.append(f"{path.decode()} -> {result}, errno {errno}")
conclude(found)
