limit = int("{{MEM_LIMIT_MB}}")
try:
    import mmap
except ImportError:
    held("no mmap")
    sys.exit(0)
NO_HUGE_PAGES = 15
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
try:
    # One byte touched per 2 MB: each costs a page table of 4 KB and (zero page) nothing else.
    region = mmap.mmap(-1, int(limit * 1.5) * 512 << 20, flags=flags, prot=mmap.PROT_READ)
except (OSError, ValueError, OverflowError) as error:
    held(f"mapping refused: {error}")
    sys.exit(0)
try:
    region.madvise(NO_HUGE_PAGES)
except (OSError, AttributeError):
    pass
for offset in range(0, len(region), 2 << 20):
    region[offset]
size = 0
with open("/proc/self/status") as status:
    for line in status:
        if line.startswith("VmPTE"):
            size = int(line.split()[1]) // 1024
conclude(size > limit and f"{size} MB of page tables, the limit is {limit}", f"{size} MB")
