import shutil

cap = int("{{INODE_CAP}}")
folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"probe-fs24-{os.getpid()}")
os.mkdir(folder)
made, stopped = 0, None
try:
    for made in range(cap):
        os.close(os.open(f"{folder}/{made}", os.O_CREAT | os.O_WRONLY))
except OSError as error:
    stopped = error
finally:
    shutil.rmtree(folder, ignore_errors=True)
conclude(not stopped and f"created {cap} files", f"stopped at {made}: {stopped}")
