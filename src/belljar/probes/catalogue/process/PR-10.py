import threading

cap = int("{{THREAD_CAP}}")
threading.stack_size(65536)
event, started, stopped = threading.Event(), 0, None
for started in range(cap):
    try:
        threading.Thread(target=event.wait, daemon=True).start()
    except (RuntimeError, OSError, MemoryError) as error:
        stopped = error
        break
event.set()
conclude(not stopped and f"{cap} threads alive", f"stopped at {started}: {stopped}")
