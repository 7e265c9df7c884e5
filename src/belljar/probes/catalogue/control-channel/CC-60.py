# With fresh_exec the heap lies elsewhere as well.
with open("/proc/self/maps") as maps:
    for line in maps:
        if line.rstrip().endswith("[heap]"):
            print("VALUE", line.split()[-1], line.split("-")[0])
