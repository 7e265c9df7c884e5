with open("/proc/self/status") as file:
    status = {k: v.strip() for k, _, v in (line.partition(":") for line in file)}
wanted = {"NoNewPrivs": "1", "Seccomp": "2"}
conclude(
    [f"{name}={status.get(name)}" for name, value in wanted.items() if status.get(name) != value],
    f"filters={status.get('Seccomp_filters')}",
)
