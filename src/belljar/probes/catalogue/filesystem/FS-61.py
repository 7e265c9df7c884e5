os.chdir("{{OUT_DIR}}")
made = 0
try:
    for made in range(8000):
        with open(f"{made:06}", "w") as file:
            file.write("x")
except OSError as error:
    info(error)
print("READY", ID, made)
