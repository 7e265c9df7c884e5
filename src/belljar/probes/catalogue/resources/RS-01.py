cap, kept = int("{{MEM_CAP_MB}}"), []
try:
    while len(kept) * 64 < cap:
        kept.append(bytearray(b"x") * (64 << 20))
except MemoryError:
    count = len(kept)
    kept = None
    held(f"MemoryError after {count * 64} MB")
    sys.exit(0)
broken(f"held {cap} MB resident")
