# Pushes a file of the host out of its memory, as far as the file is there.
import ctypes

path = "{{CACHED_FILE}}"
try:
    file = os.open(path, os.O_RDONLY)
except OSError as error:
    info(error)
    print("ASKED", ID, flush=True)
    sys.exit(0)
try:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
except OSError as error:
    info(error)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
size = os.fstat(file).st_size
for sharing in (1, 2):
    place = libc.mmap(None, size, 1, sharing, file, 0)
    for advice in (20, 21):  # MADV_COLD, MADV_PAGEOUT
        libc.madvise(place, size, advice)
print("ASKED", ID, flush=True)
