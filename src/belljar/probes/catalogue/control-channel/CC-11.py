print("PART1", ID, flush=True)
os.closerange(3, 65536)
os.dup2(1, 3)
os.dup2(2, 4)
for fd in range(5, 64):
    try:
        os.dup2(1, fd)
    except OSError:
        pass
print("PART2", ID, flush=True)
os._exit(0)
