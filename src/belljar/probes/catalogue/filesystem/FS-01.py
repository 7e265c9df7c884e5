path, token = "{{HOST_CANARY_PATH}}", "{{HOST_CANARY_TOKEN}}"
try:
    with open(path) as file:
        text = file.read(4096)
except OSError as error:
    held(error)
else:
    conclude(token in text and f"read host canary {path}", "another file lives at that path")
