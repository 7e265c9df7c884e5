import shutil

folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"probe-fs64-{os.getpid()}")
os.mkdir(folder)
made, stopped = 0, None
try:
    for made in range(300_000):
        os.close(os.open(f"{folder}/{made}", os.O_CREAT | os.O_WRONLY))
except (OSError, MemoryError) as error:
    stopped = error
finally:
    shutil.rmtree(folder, ignore_errors=True)
conclude(not stopped and f"created {made} files", f"stopped at {made}: {stopped}")
