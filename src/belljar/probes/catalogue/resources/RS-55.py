# Processes that hide (not dumpable, so unreadable in /proc) and share the bomb among them.
import ctypes
import time

limit, cap, children = int("{{MEM_LIMIT_MB}}"), int("{{MEM_CAP_MB}}"), 12
part = min(limit * 3 // 5, cap // children)
PR_SET_DUMPABLE = 4
receive, send = os.pipe()
for _ in range(children):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        kept = bytearray(b"x") * (part << 20)
        os.write(send, b"f")
        time.sleep(30)
        os._exit(0)
os.set_blocking(receive, False)
full, end = 0, time.monotonic() + 4
while time.monotonic() < end:
    try:
        full += len(os.read(receive, 64))
    except BlockingIOError:
        time.sleep(0.05)
total = full * part
conclude(total > limit * 1.5 and f"{full} processes hold {total} MB, the limit is {limit}", total)
