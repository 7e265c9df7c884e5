import signal
import time

if "{{INSIDE_SANDBOX_ACK}}" != "yes" or os.getuid() == 0:
    info("not acknowledged; nothing done")
    sys.exit(3)
print("KILLING", ID, flush=True)
for target in (-1, 0):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        os.kill(target, signal.SIGTERM)
    except OSError as error:
        info(error)
try:
    os.kill(-1, signal.SIGKILL)
except OSError as error:
    info(error)
time.sleep(0.2)
print("ALIVE", ID, flush=True)
os._exit(3)
