# Names that break line-based listings, JSON and terminals.
os.chdir("{{OUT_DIR}}")
NAMES = [
    b"new\nline.txt",
    b"carriage\rreturn",
    b"\xff\xfe-not-utf8",
    b"esc\x1b[2J\x1b]0;title\x07",
    b"-rf",
    b"..%2f..%2fetc%2fpasswd",
    b"..\\..\\windows",
    b"\xe2\x80\xaetxt.exe",
    b"\xe2\x80\xa8line-separator",
    b"nul\xc0\x80byte",
    b"x" * 255,
    b"con",
    b" ",
    b"...",
    b"{{PROBE_ID}}\"'`$(id)",
]
for name in NAMES:
    try:
        with open(name, "wb") as file:
            file.write(b"content of a hostile name")
    except OSError as error:
        info(f"{name!r} {error}")
print("READY", ID)
