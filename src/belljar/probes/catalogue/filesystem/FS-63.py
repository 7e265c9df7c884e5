# Where a wall shows no flags of its mounts it still shows of what kind they are.
DISKS = ("ext4", "xfs", "btrfs", "virtiofs", "9p", "zfs", "fuse", "nfs", "nfs4", "overlay")
found, seen = [], 0
with open("/proc/self/mountinfo") as table:
    for line in table:
        fields = line.split()
        point, kind = fields[4], fields[fields.index("-") + 1]
        name = os.path.join(point, f".probe-fs63-{os.getpid()}")
        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            os.unlink(name)
        except OSError:
            continue
        seen += 1
        if kind in DISKS:
            found.append(f"{point} ({kind}) can be written to")
conclude(found[:6], f"{seen} writable mounts")
