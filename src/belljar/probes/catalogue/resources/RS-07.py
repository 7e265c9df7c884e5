cap, opened, stopped = int("{{FD_CAP}}"), [], None
try:
    while len(opened) < cap:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    stopped = error
for fd in opened:
    os.close(fd)
conclude(not stopped and f"{cap} descriptors open", f"stopped at {len(opened)}: {stopped}")
