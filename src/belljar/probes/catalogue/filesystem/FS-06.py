# Opened and closed, never written.
found = []
for path in """
    /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sysrq-trigger
    /proc/sys/vm/overcommit_memory /proc/sys/fs/binfmt_misc/register /sys/kernel/uevent_helper
    /proc/sys/kernel/hostname /proc/sys/net/ipv4/ip_forward
""".split():
    try:
        os.close(os.open(path, os.O_WRONLY))
        found.append(path)
    except OSError:
        pass
conclude(found)
