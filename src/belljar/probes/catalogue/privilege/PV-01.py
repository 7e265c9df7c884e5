with open("/proc/self/status") as file:
    status = {k: v.strip() for k, _, v in (line.partition(":") for line in file)}
sets = ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd")
conclude([f"{name}={status[name]}" for name in sets if int(status.get(name, "0"), 16)])
