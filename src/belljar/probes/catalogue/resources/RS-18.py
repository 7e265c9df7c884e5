import ctypes
import time

libc = ctypes.CDLL(None)


def fork_sleepers(most, seconds):
    started = 0
    try:
        while started < most:
            if os.fork() == 0:
                time.sleep(seconds)
                os._exit(0)
            started += 1
    except OSError:
        pass
    return started


def take_terminals():
    taken = 0
    try:
        while taken < 1000:
            os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
            taken += 1
    except OSError:
        pass
    return taken


role, stay_s = "{{ROLE}}", float("{{STAY_S}}")
if role == "ask-inotify":
    print("GOT" if libc.inotify_init1(0) >= 0 else "STARVED", ID, flush=True)
elif role == "ask-processes":
    print("GOT" if fork_sleepers(20, 0.2) == 20 else "STARVED", ID, flush=True)
elif role == "ask-terminals":
    print("GOT" if take_terminals() else "STARVED", ID, flush=True)
elif role == "hoard-inotify":
    taken = 0
    while taken < 5000 and libc.inotify_init1(0) >= 0:
        taken += 1
    print("HOARDED", ID, taken, flush=True)
    time.sleep(stay_s)
elif role == "hoard-processes":
    print("HOARDED", ID, fork_sleepers(int("{{PID_CAP}}"), stay_s), flush=True)
    time.sleep(stay_s)
elif role == "hoard-terminals":
    for _ in range(5):  # the kernel has some three thousand for all namespaces together
        if os.fork() == 0:
            info(take_terminals())
            time.sleep(stay_s)
            os._exit(0)
    time.sleep(0.5)
    print("HOARDED", ID, flush=True)
    time.sleep(stay_s)
