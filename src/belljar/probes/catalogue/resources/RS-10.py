import itertools  # noqa: F401
import re  # noqa: F401

mark("{{MARK}}")
print("START", ID, flush=True)
exec("{{ENDLESS}}")
