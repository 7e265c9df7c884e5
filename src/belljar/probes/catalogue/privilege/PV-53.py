import mmap
import struct

if not X86:
    held("x86-64 only")
    sys.exit(0)


def call32(number, *arguments):
    """A system call through the i386 door, with its own numbers."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    first, second, third = (*arguments, 0, 0, 0)[:3]
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


found = []
for name, arguments in {
    "unshare(user)": (310, 0x10000000),
    "socket(AF_VSOCK)": (359, 40, 1, 0),
    "socket(AF_NETLINK, SOCK_DIAG)": (359, 16, 3, 4),
    "personality": (136, 0x0040000),
}.items():
    text, _ = in_child(lambda: call32(*arguments))
    if text.isdigit():
        found.append(name)
conclude(found)
