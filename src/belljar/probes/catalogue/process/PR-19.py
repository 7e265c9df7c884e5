found = []
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    found.append("SCHED_FIFO")
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
except (OSError, AttributeError):
    pass
try:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(nice - 1, -20))
    found.append("nice -1")
    os.setpriority(os.PRIO_PROCESS, 0, nice)
except (OSError, AttributeError):
    pass
conclude(found)
