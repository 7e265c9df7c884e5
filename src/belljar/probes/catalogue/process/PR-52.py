import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        mark("{{MARK}}")
        os.chdir("/")
        print("DAEMON", ID, flush=True)
        for fd in (0, 1, 2):
            os.close(fd)
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(0.5)  # let the daemon introduce itself
os._exit(0)
