# Pages of shared memory stay when they are unmapped, and are then in nobody's resident size.
import mmap
import time

limit, step = int("{{MEM_LIMIT_MB}}"), 8 << 20
DROP_FROM_TABLES = 4  # MADV_DONTNEED: for shared memory it forgets the mapping, not the page
size = limit * 4 << 20
try:
    shared = mmap.mmap(-1, size)
except (OSError, ValueError) as error:
    held(f"mapping refused: {error}")
    sys.exit(0)
for start in range(0, size, step):
    for page in range(start, start + step, mmap.PAGESIZE):
        shared[page] = 1
    shared.madvise(DROP_FROM_TABLES, start, step)
    time.sleep(0.01)
time.sleep(0.2)
kept = sum(shared[page] for page in range(0, size, 1 << 20))
conclude(kept == size >> 20 and f"{size >> 20} MB are kept, the limit is {limit}", kept)
