# Values that must differ between sandboxes forked from one warm interpreter.
import hashlib
import random
import secrets
import tempfile
import uuid

try:
    import multiprocessing
    import ssl
except ImportError:  # a Python without processes and sockets
    multiprocessing = ssl = None

try:
    import sqlite3
except ImportError:
    sqlite3 = None

print("VALUE random", random.random())
print("VALUE random.Random", random.Random().random())
print("VALUE shuffle", random.sample(range(10**6), 4))
print("VALUE secrets", secrets.token_hex(8))
print("VALUE urandom", os.urandom(8).hex())
if ssl:
    print("VALUE ssl", ssl.RAND_bytes(8).hex())
if sqlite3 and ssl:  # that of WebAssembly takes its seed from the clock, which docs/wasm.md says
    drawn = sqlite3.connect(":memory:").execute("select hex(randomblob(8))").fetchone()
    print("VALUE sqlite", *drawn)
print("VALUE uuid4", uuid.uuid4())
print("VALUE uuid1", uuid.uuid1())
print("SMALL uuid1-clock", uuid.uuid1().clock_seq)
print("VALUE tempfile", os.path.basename(tempfile.mktemp()))
if multiprocessing:
    key = bytes(multiprocessing.current_process().authkey)
    print("VALUE authkey", hashlib.sha256(key).hexdigest())
if "numpy" in sys.modules or "{{WITH_NUMPY}}" == "yes":
    import numpy

    print("VALUE numpy", numpy.random.random())
    print("VALUE numpy-generator", numpy.random.default_rng().random())
