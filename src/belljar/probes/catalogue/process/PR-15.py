import signal
import time

mark("{{MARK}}")
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
if hasattr(signal, "pthread_sigmask"):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print("SPINNING", ID, flush=True)
end = time.time() + 120
while time.time() < end:
    pass
