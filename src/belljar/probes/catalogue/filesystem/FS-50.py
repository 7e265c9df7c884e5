# The host's identity is given as digests only, so that this text is not itself the leak.
import hashlib
import socket

IDENTITY = "{{HOST_IDENTITY_DIGESTS}}".split()


def digest(text):
    return hashlib.sha256(text.strip().encode()).hexdigest()


found = []
for path in """
    /proc/sys/kernel/random/boot_id /etc/machine-id /var/lib/dbus/machine-id /etc/hostname
    /proc/sys/kernel/hostname /proc/cmdline /sys/class/dmi/id/product_uuid
    /sys/class/dmi/id/product_serial /sys/class/dmi/id/board_serial
""".split():
    try:
        with open(path, errors="replace") as file:
            text = file.read(4096)
    except OSError:
        continue
    if digest(text) in IDENTITY:
        found.append(path)
for way, name in (("uname", os.uname().nodename), ("gethostname", socket.gethostname())):
    if digest(name) in IDENTITY:
        found.append(way)
conclude(found)
