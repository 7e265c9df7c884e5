# The kernel reads 32 bits of these arguments: a filter that compares 64 sees another value.
import fcntl
import pty
import termios

HIGH, found = 1 << 32, []
for family, kind, protocol, name in (
    (40, 1, 0, "AF_VSOCK"),
    (16, 3, 4, "SOCK_DIAG"),
    (17, 3, 768, "AF_PACKET"),
):
    for extra in ((HIGH, 0, 0), (0, HIGH, 0), (0, 0, HIGH)):
        words = [value + add for value, add in zip((family, kind, protocol), extra)]
        if try_syscall(41, 198, *words)[0] >= 0:
            found.append(f"{name} {extra}")
if try_syscall(135, 92, HIGH | 0x0040000)[0] >= 0:
    found.append("personality")


def clone_user():
    result, _ = syscall(56, 220, HIGH | 0x10000000 | 17, 0, 0, 0, 0)
    if result == 0:
        os._exit(0)
    if result > 0:
        os.waitpid(result, 0)
    return result


def push(request):
    _, terminal = pty.openpty()
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    return syscall(16, 29, terminal | HIGH, request | HIGH, ctypes.create_string_buffer(b"x"))[0]


text, _ = in_child(clone_user)
if text.isdigit() and int(text) > 0:
    found.append("clone into a user namespace")
for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C)):
    text, _ = in_child(lambda: push(request))
    if text == "0":
        found.append(name)
conclude(found)
