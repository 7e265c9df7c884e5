import mmap

if not X86:
    held("x86-64 only")
    sys.exit(0)
# push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
CODE = bytes.fromhex("53b814000000cd805bc3")


def getpid32():
    try:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError as error:
        return f"no executable memory: {error}"
    page.write(CODE)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return "ANSWERED" if function() == os.getpid() else "refused"


text, killed_by = in_child(getpid32)
conclude(text == "ANSWERED" and "32-bit getpid() answered", text or f"signal {killed_by}")
