HARMLESS = set(
    "null zero full random urandom tty ptmx pts shm mqueue "
    "fd stdin stdout stderr console core {{ALSO}}".split()
)
try:
    names = set(os.listdir("/dev"))
except OSError as error:
    held(error)
    sys.exit(0)
conclude(sorted(names - HARMLESS)[:8], " ".join(sorted(names)))
