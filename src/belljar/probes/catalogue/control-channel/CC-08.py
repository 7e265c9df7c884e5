SHADOW = """\
try:
    open("SHADOWED-" + __name__, "w").write("x")
except OSError:
    pass
raise ImportError("shadow")
"""
for name in "json traceback io pickle random struct ast base64 linecache tokenize".split():
    with open(name + ".py", "w") as module:
        module.write(SHADOW)
print("PLANTED", ID, flush=True)
1 / 0
