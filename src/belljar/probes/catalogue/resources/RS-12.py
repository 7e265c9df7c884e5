import threading


def flood(fd, byte):
    for _ in range(256):
        try:
            os.write(fd, byte * (1 << 18))
        except OSError:
            return


threads = [threading.Thread(target=flood, args=a) for a in ((1, b"o"), (2, b"e"))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
