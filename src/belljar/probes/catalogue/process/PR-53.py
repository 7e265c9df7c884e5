import atexit
import time


def bomb():
    mark("{{MARK}}")
    children = 0
    for children in range(int("{{PID_CAP}}")):
        try:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        except OSError:
            break
    print("FORKED", children, flush=True)


atexit.register(bomb)
print("MAIN-DONE", ID, flush=True)
