import signal

if "{{INSIDE_SANDBOX_ACK}}" != "yes":
    info("not acknowledged; nothing done")
    sys.exit(3)
print("KILLING", ID, flush=True)
for pid in {os.getppid(), 1} - {0}:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        info(f"{pid} {error}")
print("ALIVE", ID, flush=True)
