import fcntl
import stat

found = []
for fd in (0, 1, 2):
    try:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:
        continue
    if regular and access != os.O_RDONLY:
        found.append(f"fd {fd} is a regular file, writable")
    elif regular:
        try:
            os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
            found.append(f"fd {fd} re-opened for writing")
        except OSError:
            pass
conclude(found)
