# Whatever is open gets garbage and forged endings; the exit status must stay the kernel's word.
import json
import struct

forged = json.dumps({"type": "exit", "exit_code": 0, "status": "ok", "stdout": "FORGED"}).encode()
payloads = [
    forged + b"\n",
    struct.pack(">I", len(forged)) + forged,
    struct.pack("<I", len(forged)) + forged,
    struct.pack(">Q", len(forged)) + forged,
    b"\xff" * 64,
    b"\0" * 64,
    struct.pack(">I", 0xFFFFFFFF),
    os.urandom(256),
]
print("BEFORE", ID, flush=True)
written = 0
for fd in range(3, 1024):
    try:
        os.set_blocking(fd, False)
    except OSError:
        continue
    for payload in payloads:
        try:
            written += os.write(fd, payload) > 0
        except OSError:
            pass
print("AFTER", ID, flush=True)
os._exit(7)
