# With fresh_exec the hash seed and the address layout are new as well.
import ctypes

print("VALUE hash", hash("belljar"))
print("VALUE libc", ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value)
with open("/proc/self/maps") as maps:
    for line in maps:
        if line.rstrip().endswith("[stack]"):
            print("VALUE", line.split()[-1], line.split("-")[0])
