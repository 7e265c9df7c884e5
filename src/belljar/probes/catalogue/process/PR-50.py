# Signals that a careless agent dies of, stops at, or answers with a traceback.
import signal

targets = {1, os.getppid()} - {0, os.getpid()}
if "{{INSIDE_SANDBOX_ACK}}" != "yes":
    info("not acknowledged; nothing done")
    sys.exit(3)
print("SIGNALLING", ID, flush=True)
for number in (*range(1, 9), *range(10, 19), *range(20, 32), 34, 35, 64):  # all but KILL and STOP
    for pid in targets:
        try:
            os.kill(pid, number)
        except OSError:
            pass
for pid in targets:
    for _ in range(20000):
        try:
            os.kill(pid, signal.SIGCHLD)
            os.kill(pid, signal.SIGUSR1)
        except OSError:
            break
    try:
        os.kill(pid, signal.SIGSTOP)
    except OSError:
        pass
print("ALIVE", ID, flush=True)
os._exit(5)
