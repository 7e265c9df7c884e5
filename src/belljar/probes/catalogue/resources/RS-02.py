cap, found = int("{{MEM_CAP_MB}}") << 20, []
for name, make in {
    "bytes": lambda: b"x" * cap,
    "list": lambda: [0] * (cap // 8),
    "str": lambda: "a" * cap,
    "bytearray": lambda: bytearray(b"x") * cap,
}.items():
    try:
        make()
        found.append(name)
    except (MemoryError, OverflowError):
        pass
conclude(found and f"{cap >> 20} MB in one expression: {found}")
