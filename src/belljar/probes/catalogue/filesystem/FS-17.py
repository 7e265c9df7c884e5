import signal

if not hasattr(os, "fork"):
    held("no fork")
    sys.exit(0)
pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)
    os._exit(0)
status = os.waitpid(pid, 0)[1]
for name in ("core", f"core.{pid}"):
    try:
        os.unlink(name)
    except OSError:
        pass
conclude(os.WCOREDUMP(status) and "a core was dumped", f"signal {os.WTERMSIG(status)}, no core")
