# The two halves of the canary are never joined here, so a joined one was not put there by us.
first, second = b"{{MEM_CANARY_HALF_A}}", b"{{MEM_CANARY_HALF_B}}"
copies = 0
try:
    with open("/proc/self/maps") as table:
        maps = [line.split() for line in table]
    memory = open("/proc/self/mem", "rb", 0)
except OSError as error:
    held(f"memory not readable: {error}")
    sys.exit(0)
for region in maps:
    if not region[1].startswith("rw"):
        continue
    start, end = (int(x, 16) for x in region[0].split("-"))
    if end - start > 512 << 20:
        continue
    try:
        memory.seek(start)
        data = memory.read(end - start)
    except (OSError, ValueError, OverflowError):
        continue
    at = data.find(first)
    while at >= 0:
        copies += data[at + len(first) : at + len(first) + len(second)] == second
        at = data.find(first, at + 1)
    del data
conclude(copies and f"{copies} copies of the canary in this process")
