# Each asks for the value that the process has already, so nothing changes even where it is allowed.
import resource

found = []
for pid in {1, os.getppid()} - {0, os.getpid()}:
    for name, action in {
        "setpriority": lambda: os.setpriority(
            os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)
        ),
        "sched_setaffinity": lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)),
        "sched_setscheduler": lambda: os.sched_setscheduler(
            pid, os.sched_getscheduler(pid), os.sched_getparam(pid)
        ),
        "prlimit": lambda: resource.prlimit(
            pid, resource.RLIMIT_NOFILE, resource.prlimit(pid, resource.RLIMIT_NOFILE)
        ),
    }.items():
        try:
            action()
            found.append(f"{name}:{pid}")
        except OSError:
            pass
    one_process = 1
    current, _ = try_syscall(252, 31, one_process, pid)
    if current >= 0 and try_syscall(251, 30, one_process, pid, current)[0] == 0:
        found.append(f"ioprio_set:{pid}")
conclude(found)
