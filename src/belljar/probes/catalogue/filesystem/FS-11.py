DISKS = ("ext4", "xfs", "btrfs", "virtiofs", "9p", "zfs")
found = []
with open("/proc/self/mountinfo") as table:
    for line in table:
        fields = line.split()
        dash = fields.index("-")
        root, point, options, kind = fields[3], fields[4], fields[5].split(","), fields[dash + 1]
        if "rw" not in options or not os.path.isdir(point) or not os.access(point, os.W_OK):
            continue
        if kind in DISKS and root == "/":
            found.append(f"whole {kind} writable at {point}")
        elif kind not in ("proc", "devpts", "mqueue") and not {"nosuid", "nodev"} <= set(options):
            found.append(f"{point} ({kind}) lacks nosuid, nodev")
conclude(found[:6])
