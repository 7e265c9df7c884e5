import array
import socket

found = []
for pid in {1, os.getppid()} - {0, os.getpid()}:

    def steal():
        pidfd, _ = syscall(434, 434, pid, 0)
        if pidfd < 0:
            return "0"
        return sum(syscall(438, 438, pidfd, fd, 0)[0] >= 0 for fd in range(0, 64))

    text, _ = in_child(steal)
    if text.isdigit() and int(text):
        found.append(f"{text} descriptors of {pid}")
# A descriptor can also be asked for: nobody at the other end of stdio should hand one over.
for fd in (0, 1, 2):
    try:
        end = socket.socket(fileno=os.dup(fd))
        end.setblocking(False)
        _, ancillary, _, _ = end.recvmsg(1, socket.CMSG_SPACE(array.array("i", [0]).itemsize))
        if ancillary:
            found.append(f"fd {fd} brought a descriptor")
    except OSError:
        pass
conclude(found)
