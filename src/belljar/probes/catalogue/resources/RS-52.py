import time

end = time.time() + float("{{STAY_S}}")
for _ in range(3):
    if os.fork() == 0:
        break
while time.time() < end:
    pass
os._exit(0)
