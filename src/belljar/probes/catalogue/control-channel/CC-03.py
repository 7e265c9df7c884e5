import gc
import re
import socket

found = set()
secret_name = re.compile(
    r"secret|token|nonce|api_?key|password|hmac|auth|conn$|sock$|ctrl|pipe", re.IGNORECASE
)
frame = sys._getframe()
own_globals = frame.f_globals
while frame:
    for scope in (frame.f_globals, frame.f_locals):
        if scope is own_globals:
            continue
        for name, value in list(scope.items()):
            if not secret_name.search(name) or callable(value):
                continue
            if type(value).__name__ != "module" and value not in (None, "", b"", 0, False):
                found.add(f"frame:{name}={type(value).__name__}")
    frame = frame.f_back
for thing in gc.get_objects():
    try:
        kind = type(thing)
        if isinstance(thing, socket.socket) and thing.fileno() > 2:
            found.add(f"gc socket fd {thing.fileno()}")
        elif kind.__name__ in ("Connection", "Popen", "Listener"):
            if "multiprocessing" in kind.__module__:
                found.add(f"gc {kind.__name__}")
    except Exception:
        pass
conclude(sorted(found)[:8])
