import socket
import stat

os.chdir("{{OUT_DIR}}")


def attempt(*actions):
    try:
        for action in actions:
            action()
    except Exception as error:
        info(error)


attempt(lambda: os.mkfifo("fifo"))
attempt(lambda: socket.socket(socket.AF_UNIX).bind("sock"))
attempt(lambda: os.truncate(os.open("sparse.bin", os.O_CREAT | os.O_RDWR), 1 << 40))
attempt(lambda: os.mknod("whiteout", stat.S_IFCHR, os.makedev(0, 0)))
attempt(lambda: open("secret000", "w").close(), lambda: os.chmod("secret000", 0))
attempt(lambda: os.mkdir("dir000"), lambda: os.chmod("dir000", 0))
attempt(lambda: os.symlink("loop", "loop"))
print("READY", ID)
