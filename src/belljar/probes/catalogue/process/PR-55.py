# Group or session 0 is one of an outer pid namespace: kill(0, ...) would reach out of this one.
found = []
if os.getpgid(0) == 0:
    found.append("the process group lies outside")
if os.getsid(0) == 0:
    found.append("the session lies outside")
if os.getppid() == 0 and os.getpid() != 1:
    found.append("the parent lies outside")
conclude(found, f"pid {os.getpid()} group {os.getpgid(0)} session {os.getsid(0)}")
