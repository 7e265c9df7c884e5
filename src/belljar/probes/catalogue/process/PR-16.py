import signal
import time

mark("{{MARK}}")
print("STOPPING", ID, flush=True)
me = os.getpid()
stopped = os.fork()
if stopped == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
if os.fork() == 0:  # so that nothing stays for ever where there is no wall
    time.sleep(90)
    for pid in (stopped, me):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    os._exit(0)
os.kill(me, signal.SIGSTOP)
