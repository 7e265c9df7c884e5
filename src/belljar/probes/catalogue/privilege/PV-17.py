parameters = ctypes.create_string_buffer(256)
text, killed_by = in_child(lambda: "%d %d" % syscall(425, 425, 1, parameters))
if killed_by:
    broken(f"child killed by signal {killed_by}: libuv and so Node would die at start")
else:
    conclude(not text.startswith(("-1", "EXC")) and f"io_uring descriptor {text}", text)
