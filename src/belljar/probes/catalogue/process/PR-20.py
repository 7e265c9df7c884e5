import time

mark("{{MARK}}")
if hasattr(os, "fork") and os.fork() == 0:  # a grandchild of its own session must die as well
    os.setsid()
    time.sleep(120)
    os._exit(0)
print("SLEEPING", ID, flush=True)
time.sleep(120)
