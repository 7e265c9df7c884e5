# Hoards kernel objects that are counted per user, not per process; then a neighbour asks.
import ctypes
import fcntl
import select
import time

libc = ctypes.CDLL(None)
role, kept = "{{ROLE}}", []


def new_pipe():
    ends = os.pipe()
    try:
        fcntl.fcntl(ends[1], 1031, 1 << 20)  # F_SETPIPE_SZ
    except OSError:
        pass
    return ends


def new_timer():
    if libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) < 0:
        raise OSError("timer_create")


def new_queue():
    name = f"/probe-rs50-{len(kept)}-{os.getpid()}".encode()
    if libc.mq_open(name, 0o102, 0o600, None) < 0:
        raise OSError("mq_open")


def new_memory():
    if libc.mlock(ctypes.create_string_buffer(4096), 4096) < 0:
        raise OSError("mlock")


MAKERS = {
    "pipe": new_pipe,
    "epoll": lambda: kept.append(select.epoll()),
    "timerfd": lambda: kept.append(libc.timerfd_create(1, 0)),
    "eventfd": lambda: kept.append(libc.eventfd(0, 0)),
    "inotify": lambda: libc.inotify_init1(0) >= 0 or os.open("/nonexistent", 0),
    "timer": new_timer,
    "queue": new_queue,
    "locked memory": new_memory,
}
if role == "hoarder":
    for name, make in MAKERS.items():
        count = 0
        try:
            while count < 200:
                make()
                count += 1
        except OSError:
            pass
        info(f"{name} {count}")
    print("HOARDED", ID, flush=True)
    time.sleep(float("{{STAY_S}}"))
else:
    for name, make in MAKERS.items():
        try:
            make()
            print("GOT", name)
        except OSError as error:
            print("STARVED", name, error)
