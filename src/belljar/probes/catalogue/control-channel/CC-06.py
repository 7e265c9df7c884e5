import builtins
import decimal
import json
import signal
import threading

left = []
if getattr(builtins, "_probe_cc06", 0):
    left.append("builtins")
if getattr(json, "_probe_cc06", 0):
    left.append("module attribute")
if os.environ.get("PROBE_CC06"):
    left.append("environment")
if "/probe-cc06" in sys.path:
    left.append("sys.path")
if signal.getsignal(signal.SIGUSR1) not in (signal.SIG_DFL, None):
    left.append("signal handler")
if any(thread.name == "probe-cc06" for thread in threading.enumerate()):
    left.append("thread")
if hasattr(os, "umask") and os.umask(0o017) == 0o017:
    left.append("umask")
if decimal.getcontext().prec == 17:
    left.append("decimal context")
if sys.getrecursionlimit() == 4321:
    left.append("recursion limit")

builtins._probe_cc06 = json._probe_cc06 = 1
os.environ["PROBE_CC06"] = "1"
sys.path.append("/probe-cc06")
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
try:
    threading.Thread(target=threading.Event().wait, name="probe-cc06", daemon=True).start()
except RuntimeError:
    info("there are no threads")
decimal.getcontext().prec = 17
sys.setrecursionlimit(4321)
conclude(left and "left over: " + ", ".join(left), "state planted for the next run")
