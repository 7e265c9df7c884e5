found = []
FOLDERS = (
    "/ /usr /usr/local/lib /etc /opt /lib /bin /var/lib /home /root /srv /boot /run /proc /sys"
)
for folder in (FOLDERS + " /data /data/input /dev").split():
    path = os.path.join(folder, f".probe-fs13-{os.getpid()}")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.unlink(path)
        found.append(folder)
    except OSError:
        pass
conclude(found)
