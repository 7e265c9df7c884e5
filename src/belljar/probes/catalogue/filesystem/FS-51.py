found = []
for path in """
    /proc/kcore /proc/kmsg /proc/keys /proc/key-users /proc/timer_list /proc/sched_debug
    /proc/latency_stats /proc/slabinfo /proc/vmallocinfo /proc/pagetypeinfo /proc/interrupts
    /proc/modules /proc/partitions /proc/diskstats /proc/mdstat /proc/swaps /dev/kmsg /dev/mem
    /sys/kernel/security/lsm /sys/kernel/notes /sys/kernel/debug/sched/debug
""".split():
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        continue
    try:
        if os.read(fd, 64):
            found.append(path)
    except OSError:
        pass
    os.close(fd)
for folder in "/proc/acpi /proc/scsi /proc/asound /proc/bus /proc/irq /sys/firmware".split():
    try:
        if os.listdir(folder):
            found.append(folder)
    except OSError:
        pass
for table in ("/proc/kallsyms", "/proc/iomem"):
    try:
        with open(table) as file:
            if any(int(line.split()[0].split("-")[0], 16) for line in file.readlines()[10:50]):
                found.append(f"{table} with addresses")
    except (OSError, ValueError, IndexError):
        pass
conclude(found)
