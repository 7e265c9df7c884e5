# Put before the probes that make raw system calls, each in a child that may be killed for it.
try:
    import ctypes

    LIBC = ctypes.CDLL(None, use_errno=True)
    LIBC.syscall.restype = ctypes.c_long
    os.fork
except (ImportError, AttributeError, OSError) as error:
    held(f"no raw system calls here: {error!r}")
    sys.exit(0)

X86 = os.uname().machine == "x86_64"
EPERM, EFAULT, EACCES, ENOSYS, SIGSYS = 1, 14, 13, 38, 31
REFUSED = (EPERM, EACCES, ENOSYS)


def syscall(x86, arm, *arguments):
    """The call by its number on this machine: (result, errno)."""
    number = x86 if X86 else arm
    if number is None:
        return -1, ENOSYS
    ctypes.set_errno(0)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result, (ctypes.get_errno() if result == -1 else 0)


def in_child(action):
    """Run `action` in a fork: (what it returned as text, the signal that killed it or 0)."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = str(action())
        except BaseException as error:
            text = f"EXC {type(error).__name__} {error}"
        os.write(send, text.encode()[:4000])
        os._exit(0)
    os.close(send)
    data = b""
    while chunk := os.read(receive, 4096):
        data += chunk
    os.close(receive)
    status = os.waitpid(pid, 0)[1]
    return data.decode(), os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def try_syscall(x86, arm, *arguments):
    """`syscall` in a child; a child killed for it (SIGSYS) counts as EPERM."""
    text, _ = in_child(lambda: "%d %d" % syscall(x86, arm, *arguments))
    if not text or text.startswith("EXC"):
        return -1, EPERM
    result, errno = text.split()
    return int(result), int(errno)


def answers_32(i386, arm, *arguments):
    """Whether the kernel carries out a call made through its 32-bit door, and a note on that."""
    numbers = (i386 if X86 else arm, *arguments, 0, 0, 0)[:4]
    text, killed_by = in_child(lambda: _int_0x80(*numbers) if X86 else _become_32_bit(*numbers))
    if X86:
        return text.isdigit(), text or f"signal {killed_by}"
    return not text and not killed_by, text or f"signal {killed_by}"


def _int_0x80(number, first, second, third):
    import mmap
    import struct

    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(
        b"\x53"  # push rbx
        + b"\xb8"
        + struct.pack("<I", number)  # mov eax
        + b"\xbb"
        + struct.pack("<I", first)  # mov ebx
        + b"\xb9"
        + struct.pack("<I", second)  # mov ecx
        + b"\xba"
        + struct.pack("<I", third)  # mov edx
        + b"\xcd\x80\x5b\xc3"  # int 0x80; pop rbx; ret
    )
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


def _become_32_bit(*numbers):
    """ARM has no such instruction, but runs 32-bit programs. This one makes the call and exits if
    that did not fail; otherwise, or if exiting is refused, an undefined instruction kills it."""
    import struct
    import tempfile

    steps = (
        *(0xE59F7020, 0xE59F0020, 0xE59F1020, 0xE59F2020),  # ldr r7, r0, r1, r2 from the end
        *(0xEF000000, 0xE3500000, 0xBA000001),  # svc 0; cmp r0, #0; blt to the last step
        *(0xE3A07001, 0xEF000000, 0xE7F000F0),  # mov r7, #1 (exit); svc 0; udf
    )
    code = struct.pack("<14I", *steps, *numbers)
    base, headers = 0x10000, 52 + 32
    size = headers + len(code)
    program = struct.pack("<16s2HI", b"\x7fELF\1\1\1", 2, 40, 1)  # executable, 32-bit ARM
    program += struct.pack("<4I6H", base + headers, 52, 0, 0x05000000, 52, 32, 1, 0, 0, 0)
    program += struct.pack("<8I", 1, 0, base, base, size, size, 5, base)
    file, path = tempfile.mkstemp()
    os.write(file, program + code)
    os.fchmod(file, 0o700)
    os.close(file)  # what somebody may write to is not executed
    file = os.open(path, os.O_RDONLY)
    os.unlink(path)
    os.execve(file, [path], {})
