SEIZE, DETACH = 0x4206, 17
me, parent = os.getpid(), os.getppid()


def seize():
    seized = []
    for pid in {parent, 1} - {0, me}:
        result, _ = syscall(101, 117, SEIZE, pid, 0, 0)
        if result == 0:
            syscall(101, 117, DETACH, pid, 0, 0)
            seized.append(pid)
    return f"seized {seized}" if seized else ""


text, killed_by = in_child(seize)
conclude(text.startswith("seized") and text, text or f"signal {killed_by}")
