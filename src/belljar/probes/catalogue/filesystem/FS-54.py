# {{INPUT_DIR}} holds given.txt and folder/inner.txt; nothing here may change them or add to them.
folder, given = "{{INPUT_DIR}}", "{{INPUT_DIR}}/given.txt"
inner, mine = folder + "/folder/inner.txt", "/tmp/probe-fs54"
if not os.path.exists(given) or not os.path.exists(inner):
    info("the input files were not given")
    sys.exit(3)
open(mine, "w").close()


def write(path, flags):
    fd = os.open(path, flags)
    os.write(fd, b"changed")
    os.close(fd)


def change_mode(path, mode):
    before = os.stat(path).st_mode
    os.chmod(path, mode)
    if os.stat(path).st_mode == before:
        raise OSError("it has no effect")


ATTEMPTS = {
    "write": lambda: write(given, os.O_WRONLY),
    "append": lambda: write(inner, os.O_WRONLY | os.O_APPEND),
    "truncate": lambda: os.truncate(inner, 0),
    "create": lambda: write(folder + "/new", os.O_CREAT | os.O_WRONLY),
    "mkdir": lambda: os.mkdir(folder + "/newdir"),
    "symlink": lambda: os.symlink("/etc/passwd", folder + "/link"),
    "hard link in": lambda: os.link(mine, folder + "/hard"),
    "hard link out": lambda: os.link(given, "/tmp/probe-fs54-hard"),
    "hard link by descriptor": lambda: os.link(
        f"/proc/self/fd/{os.open(given, os.O_RDONLY)}", "/tmp/probe-fs54-fd", follow_symlinks=True
    ),
    "rename within": lambda: os.rename(given, folder + "/other.txt"),
    "rename over": lambda: os.rename(mine, given),
    "rename folder": lambda: os.rename(folder, folder + "-gone"),
    "chmod": lambda: change_mode(given, 0o666),
    "chmod folder": lambda: change_mode(folder, 0o777),
    "utime": lambda: os.utime(given, (1, 1)),
    "xattr": lambda: os.setxattr(given, "user.probe", b"x"),
    "unlink": lambda: os.unlink(given),
    "rmdir": lambda: os.rmdir(folder),
    "through /proc": lambda: write(f"/proc/self/fd/{os.open(given, os.O_RDONLY)}", os.O_WRONLY),
    "through root": lambda: write("/proc/self/root" + inner, os.O_WRONLY),
}
found = []
for name, action in ATTEMPTS.items():
    try:
        action()
        found.append(name)
    except (OSError, AttributeError):  # not all of these exist behind every wall
        pass
conclude(found)
