import subprocess
import time

mark("{{MARK}}")
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
subprocess.Popen(["/bin/sh", "-c", "sleep 60"])
print("LEFT", ID, flush=True)
sys.stdout.flush()
os._exit(6)
