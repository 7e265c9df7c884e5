# What the agent reports of an exception is the guest's text: it must be bounded and cannot hang.
def endless():
    while True:
        pass


def nested():
    error = None
    for _ in range(20000):
        new = ValueError("deep")
        new.__context__ = error
        error = new
    raise error


TEXTS = {
    "huge": lambda: "x" * (64 << 20),
    "surrogate": lambda: "\ud800\0\x1b[2J",
    "raises": nested,
    "endless": endless,
}
text = TEXTS["{{CASE}}"]
name = "N" * (8 << 20) if "{{CASE}}" == "huge" else "Hostile"
raise type(name, (Exception,), {"__str__": lambda self: text()})("x")
