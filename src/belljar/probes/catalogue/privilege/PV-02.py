with open("/proc/self/status") as file:
    status = {k: v.strip() for k, _, v in (line.partition(":") for line in file)}
if "NoNewPrivs" not in status:  # gVisor's /proc leaves it out; the kernel can still be asked
    import ctypes

    status["NoNewPrivs"] = str(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))
wanted = {"NoNewPrivs": "1", "Seccomp": "2"}
conclude(
    [f"{name}={status.get(name)}" for name, value in wanted.items() if status.get(name) != value],
    f"filters={status.get('Seccomp_filters')}",
)
