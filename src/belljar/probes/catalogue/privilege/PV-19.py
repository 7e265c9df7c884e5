import fcntl
import pty
import termios

found = []
try:
    os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    found.append("has a controlling terminal")
except OSError:
    pass


def push():
    try:
        _, terminal = pty.openpty()
    except OSError as error:
        return f"no terminal: {error}"
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    fcntl.ioctl(terminal, termios.TIOCSTI, b"x")
    return "PUSHED"


text, killed_by = in_child(push)
if text == "PUSHED":
    found.append("TIOCSTI works")
conclude(found, text or f"signal {killed_by}")
