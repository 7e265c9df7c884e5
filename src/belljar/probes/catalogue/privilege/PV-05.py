import stat

with open("/proc/self/status") as file:
    status = {k: v.strip() for k, _, v in (line.partition(":") for line in file)}
if "NoNewPrivs" not in status:  # gVisor's /proc leaves it out; the kernel can still be asked
    import ctypes

    status["NoNewPrivs"] = str(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))
found, seen = [], 0
for folder in "/bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/lib/openssh /opt".split():
    try:
        entries = list(os.scandir(folder))
    except OSError:
        continue
    for entry in entries:
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and mode & 0o6000:
            seen += 1
            if status.get("NoNewPrivs") != "1" and not os.statvfs(entry.path).f_flag & os.ST_NOSUID:
                found.append(entry.path)
conclude(found and f"effective set-id: {found[:5]}", f"{seen} set-id files without effect")
