found = []
try:
    with open("/proc/self/oom_score_adj", "r+") as file:
        score = int(file.read())
        file.seek(0)
        file.write(str(max(score - 1, -1000)))
        file.flush()
        if score > -1000:
            found.append("oom_score_adj")
            file.seek(0)
            file.write(str(score))
except (OSError, ValueError):
    pass
conclude(found)
