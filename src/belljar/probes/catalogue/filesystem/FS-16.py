import struct

if not hasattr(os, "setxattr"):
    held("no extended attributes here")
    sys.exit(0)
ATTRIBUTES = (
    ("trusted.overlay.opaque", b"y"),
    ("security.capability", struct.pack("<IIIII", 0x02000000, 0, 0, 0, 0)),
)
found = []
for folder in (".", "/tmp", "/data/output"):
    path = os.path.join(folder, f".probe-fs16-{os.getpid()}")
    try:
        open(path, "w").close()
    except OSError:
        continue
    for name, value in ATTRIBUTES:
        try:
            os.setxattr(path, name, value)
            found.append(f"{name} in {folder}")
        except OSError:
            pass
    os.unlink(path)
conclude(found)
