# Signal 0: only asks whether the process could be signalled.
pid, token = int("{{HOST_PID}}"), "{{HOST_PROC_TOKEN}}"
try:
    os.kill(pid, 0)
except ProcessLookupError:
    held("no such process")
except PermissionError:
    held("not permitted (the number exists in this view)")
else:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            command = file.read()
    except OSError:
        command = ""
    conclude(
        token in command and "the host's process can be signalled", "another process of this view"
    )
