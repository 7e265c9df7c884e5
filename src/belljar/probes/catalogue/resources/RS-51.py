# A flood in single bytes: as many reads and frames on the host's side as a guest can cause.
block = b"y" * 65536
for _ in range(int("{{FLOOD_BLOCKS}}")):
    view = memoryview(block)
    while view:
        view = view[os.write(1, view) :]
for _ in range(20000):
    os.write(2, b"e")
