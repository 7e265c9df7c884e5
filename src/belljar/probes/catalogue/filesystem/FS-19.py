for folder in ("{{OUT_DIR}}", "."):
    for name, target in (
        ("leak.txt", "{{HOST_CANARY_PATH}}"),
        ("env.txt", "/proc/self/environ"),
        ("rootdir", "/"),
        ("up", "../../../../.."),
        ("abs.json", "/etc/passwd"),
    ):
        try:
            os.symlink(target, os.path.join(folder, name))
        except OSError as error:
            info(f"{name} {error}")
print("READY " + ID)
