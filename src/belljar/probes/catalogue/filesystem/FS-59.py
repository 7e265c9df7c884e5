# A path far beyond PATH_MAX, which only descriptor-relative walking can enter.
depth = 0
for folder in ("{{OUT_DIR}}", "{{WORK_DIR}}"):
    os.chdir(folder)
    try:
        for depth in range(3000):
            os.mkdir("d" * 50)
            os.chdir("d" * 50)
        with open("bottom.txt", "w") as file:
            file.write("at the bottom")
    except OSError as error:
        info(f"{folder} stopped at {depth}: {error}")
os.chdir("/")
print("READY", ID, depth)
