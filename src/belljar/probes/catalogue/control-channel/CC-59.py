# The warm interpreter's own modules are in reach: none of their state may speak for the agent.
import types

SAFE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
found = []
for name, module in list(sys.modules.items()):
    if (
        "belljar" not in name
        and "guest" not in name
        and "zygote" not in name
        and "agent" not in name
    ):
        continue
    for key, value in list(vars(module).items()) if module else []:
        if key.startswith("__") or isinstance(value, SAFE):
            continue
        number = value if type(value) is int else getattr(value, "fileno", lambda: -1)
        try:
            number = number if isinstance(number, int) else number()
        except (OSError, ValueError):
            continue
        if "fd" in key.lower() and isinstance(number, int) and number > 2:
            try:
                os.fstat(number)
                found.append(f"{name}.{key} is open descriptor {number}")
            except OSError:
                pass
        elif not isinstance(value, int) and number > 2:
            found.append(f"{name}.{key} holds descriptor {number}")
conclude(found)
