try:
    import resource
except ImportError:
    held("no resource limits here")
    sys.exit(0)
found = []
for name in "NOFILE NPROC AS FSIZE CORE MEMLOCK CPU STACK".split():
    kind = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY:
        continue
    try:
        resource.setrlimit(kind, (soft, hard + 1))
        found.append(name)
        resource.setrlimit(kind, (soft, hard))
    except (ValueError, OSError):
        pass
conclude(found)
