import builtins
import io
import json
import traceback

sys.excepthook = lambda *a: None
sys.stderr = io.StringIO()
json.dumps = lambda *a, **k: '{"exit_code":0,"status":"ok"}'
traceback.print_exc = traceback.format_exc = lambda *a, **k: ""
sys.exit = lambda *a: None
builtins.print = lambda *a, **k: None
os._exit = lambda *a: None
raise RuntimeError("must be visible as a failure")
