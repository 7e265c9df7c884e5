class Huge:
    def __repr__(self):
        return "R" * (1 << 28)

    def _repr_html_(self):
        return "<script>fetch('/v1/admin')</script>"

    def _repr_mimebundle_(self, **k):
        return {
            "text/html": "<img src=x onerror=alert(1)>",
            "application/json": float("nan"),
            "\ud800": b"\xff",
        }


class Endless:
    def __repr__(self):
        while True:
            pass


Huge()
