# Values that must differ between sandboxes forked from one warm interpreter.
import hashlib
import multiprocessing
import random
import secrets
import ssl
import tempfile
import uuid

print("VALUE random", random.random())
print("VALUE random.Random", random.Random().random())
print("VALUE shuffle", random.sample(range(10**6), 4))
print("VALUE secrets", secrets.token_hex(8))
print("VALUE urandom", os.urandom(8).hex())
print("VALUE ssl", ssl.RAND_bytes(8).hex())
print("VALUE uuid4", uuid.uuid4())
print("VALUE uuid1", uuid.uuid1())
print("SMALL uuid1-clock", uuid.uuid1().clock_seq)
print("VALUE tempfile", os.path.basename(tempfile.mktemp()))
print("VALUE authkey", hashlib.sha256(bytes(multiprocessing.current_process().authkey)).hexdigest())
if "numpy" in sys.modules or "{{WITH_NUMPY}}" == "yes":
    import numpy

    print("VALUE numpy", numpy.random.random())
    print("VALUE numpy-generator", numpy.random.default_rng().random())
