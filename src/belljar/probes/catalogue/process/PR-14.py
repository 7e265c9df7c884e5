mark("{{MARK}}")
started = 0
for started in range(400):
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        break
print("READY", ID, started, flush=True)
os._exit(0)
