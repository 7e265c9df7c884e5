import ctypes
import shutil
import subprocess

# What the flags of a mount are is FS-11's to say, where a wall shows them: nosuid is one of two
# reasons for which a set-id bit has no effect, and one of them must be seen.
harmless = ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) == 1  # PR_GET_NO_NEW_PRIVS
found = []
source = shutil.which("id") or "/bin/sh"
for folder in (".", "/tmp", "/dev/shm", "/data/output"):
    path = os.path.join(folder, f".probe-pv57-{os.getpid()}")
    try:
        shutil.copyfile(source, path)
    except OSError:
        continue
    if not harmless and not os.statvfs(path).f_flag & os.ST_NOSUID:
        found.append(f"{folder} is not nosuid, and new privileges can be had")
    for owner in (0, os.getuid()):
        try:
            os.chown(path, owner, -1)
            os.chmod(path, 0o6755)
            run = subprocess.run([path, "-u"], capture_output=True, text=True, timeout=5)
        except (OSError, subprocess.SubprocessError):
            continue
        if source.endswith("id") and run.stdout.strip() not in ("", str(os.getuid())):
            found.append(f"became {run.stdout.strip()} in {folder}")
    os.unlink(path)
conclude(found)
