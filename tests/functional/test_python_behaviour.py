"""Python behaves as on a bare host: the same program, in a sandbox and beside it (R1, R2, I3)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable

import pytest

from belljar import Belljar

Bare = Callable[..., "subprocess.CompletedProcess[str]"]

EXITS = {
    "end": "pass",
    "zero": "import sys; sys.exit(0)",
    "three": "import sys; sys.exit(3)",
    "none": "raise SystemExit",
    "true": "import sys; sys.exit(True)",
    "negative": "import sys; sys.exit(-1)",
    "above 255": "import sys; sys.exit(256 + 7)",
    "huge": "import sys; sys.exit(2**70)",
    "text": "import sys; print('x'); sys.exit('why')",
    "tuple": "import sys; sys.exit((1, 2))",
    "subclass": "class E(SystemExit): pass\nraise E(4)",
    "builtin exit": "exit(5)",
    "builtin quit": "quit(6)",
    "raw exit": "import os; print('lost?', flush=True); os._exit(7)",
    "exception": "print('before')\n1 / 0",
    "chained": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('k') from e",
    "nested calls": "def f(n):\n    return 1 / n if n == 0 else f(n - 1)\nf(3)",
    "group": "raise ExceptionGroup('g', [ValueError(1), KeyError(2)])",
    "note": "e = ValueError('v')\ne.add_note('a note')\nraise e",
    "syntax error": "x = = 1",
    "indentation": "if 1:\nprint(2)",
    "null byte in text": "x = '\\0'; print(repr(x))",
    "syntax error at run time": "exec('a b')",
    "name suggestion": "pritn(1)",
    "unprintable": "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
    "recursion": "import sys\nsys.setrecursionlimit(60)\ndef f(): f()\nf()",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "own SIGINT": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "abort": "import os; os.abort()",
    "SIGSEGV": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "thread fails": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='T')\n"
    "t.start(); t.join()",
    "atexit fails": "import atexit\n@atexit.register\ndef f(): 1 / 0",
    "atexit exits": "import atexit, sys\natexit.register(sys.exit, 3)",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hooked', a[0].__name__)\n1 / 0",
    "hook fails": "import sys\ndef f(*a): raise KeyError('in hook')\nsys.excepthook = f\n1 / 0",
    "stdout closed": "import sys; sys.stdout.close()",
    "stdout gone": "import os, sys; print('x'); os.close(1)",
    "stdout None": "import sys; sys.stdout = None; print('x')",
    "del fails": "class C:\n    def __del__(self): 1 / 0\nC()",
    "warning": "import warnings; warnings.warn('careful')",
    "assertion": "assert 1 == 2, 'no'",
    "async": "import asyncio\nasync def f(): raise ValueError('inside')\nasyncio.run(f())",
}


def comparable(text: str) -> str:
    """Without addresses, times, and the few frames of ours below the code's own."""
    ours = r'Traceback \(most recent call last\):\n  File "<belljar>", .*\n(?=\w)'
    text = re.sub(ours, "", text)
    # The first releases of 3.12 and 3.13 complain of a huge exit status at a later moment.
    complaint = (
        r"(Exception ignored on threading shutdown:\n)?OverflowError: Python int too large.*\n"
    )
    text = re.sub(complaint, "", text)
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    text = re.sub(r"(in|after) [0-9.]+ ?s", "in … s", text)
    return re.sub(r"repeated \d+ more", "repeated … more", text)


@pytest.mark.parametrize("code", EXITS.values(), ids=EXITS.keys())
def test_ends_as_on_a_bare_host(jar: Belljar, bare: Bare, code: str) -> None:
    """R1: exit code, signal and both streams, judged by a real interpreter beside it."""
    inside, outside = jar.run(code), bare(code)
    ended = -inside.signal if inside.signal else inside.exit_code
    assert ended == outside.returncode
    assert comparable(inside.stderr) == comparable(outside.stderr)
    assert inside.stdout == outside.stdout
    if outside.returncode == 0:
        assert inside.status == "ok"
    else:
        assert inside.status == ("error" if outside.returncode > 0 else "killed")


PROGRAMS = {
    "threads": """
import threading, queue
q = queue.Queue()
threads = [threading.Thread(target=lambda n=n: q.put(n * n)) for n in range(20)]
for t in threads: t.start()
for t in threads: t.join()
print(sorted(q.get() for _ in range(20)), threading.active_count(), threading.current_thread().name)
""",
    "thread pool": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(16) as pool: print(sum(pool.map(lambda n: n + 1, range(1000))))
""",
    "subprocess": """
import subprocess, sys
print(subprocess.run([sys.executable, '-c', 'print(input()[::-1])'], input='abc', text=True,
                     capture_output=True))
print(subprocess.check_output('echo $((6*7)) | tr 4 x', shell=True))
print(subprocess.run(['false']).returncode, subprocess.run(['sh', '-c', 'kill -9 $$']).returncode)
a = subprocess.Popen(['seq', '5000'], stdout=subprocess.PIPE)
b = subprocess.Popen(['wc', '-l'], stdin=a.stdout, stdout=subprocess.PIPE)
print(b.communicate())
try: subprocess.run(['no-such-program'])
except FileNotFoundError as e: print(e)
try: subprocess.run(['sleep', '9'], timeout=0.1)
except subprocess.TimeoutExpired as e: print(e)
""",
    "a child that prints": """
import os, subprocess, sys
print('parent', flush=True); subprocess.run([sys.executable, '-c', 'print("child")'])
print('after', flush=True); os.system('echo system')
print(os.popen('echo popen').read(), flush=True)
pid = os.posix_spawnp('echo', ['echo', 'spawned'], os.environ); print(os.waitpid(pid, 0)[1])
""",
    "fork": """
import os
r, w = os.pipe()
if (pid := os.fork()) == 0:
    os.write(w, b'from the child'); os._exit(5)
print(os.read(r, 100), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
    "exec": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(\"new\")'])",
    **{
        f"multiprocessing {method}": f"""
import multiprocessing as mp
def square(n): return n * n
def child(q, v, lock):
    with lock: v.value += 1
    q.put('Process' in mp.current_process().name)
class Thing:
    def __init__(self, x): self.x = x
def unwrap(t): return t.x
if __name__ == '__main__':
    ctx = mp.get_context('{method}')
    with ctx.Pool(2) as pool:
        print(pool.map(square, range(10)), pool.map(unwrap, [Thing(1), Thing(2)]))
    q, v, lock = ctx.Queue(), ctx.Value('i', 0), ctx.Lock()
    ps = [ctx.Process(target=child, args=(q, v, lock)) for _ in range(2)]
    for p in ps: p.start()
    print([q.get() for _ in ps])
    for p in ps: p.join()
    print(v.value, [p.exitcode for p in ps])
    a, b = ctx.Pipe(); a.send({{1: 'x'}}); print(b.recv())
"""
        for method in ("fork", "spawn", "forkserver")
    },
    "process pool": """
from concurrent.futures import ProcessPoolExecutor
def f(n): return n * 2
if __name__ == '__main__':
    with ProcessPoolExecutor(2) as pool: print(list(pool.map(f, range(5))))
""",
    "manager": """
import multiprocessing as mp
if __name__ == '__main__':
    with mp.Manager() as m:
        d = m.dict(); d['a'] = 1; print(dict(d))
""",
    "shared memory": """
from multiprocessing import shared_memory
import mmap
s = shared_memory.SharedMemory(create=True, size=1000); s.buf[:3] = b'abc'
t = shared_memory.SharedMemory(name=s.name); print(bytes(t.buf[:3]), s.size >= 1000)
t.close(); s.close(); s.unlink()
m = mmap.mmap(-1, 4096); m[:2] = b'hi'; print(m[:2]); m.close()
open('f', 'wb').write(bytes(8192))
with open('f', 'r+b') as f, mmap.mmap(f.fileno(), 0) as m: m[100:103] = b'xyz'
print(open('f', 'rb').read()[99:104])
""",
    "asyncio": """
import asyncio, sys
async def server(r, w):
    w.write((await r.readline()).upper()); await w.drain(); w.close()
async def main():
    s = await asyncio.start_server(server, '127.0.0.1', 0)
    r, w = await asyncio.open_connection(*s.sockets[0].getsockname())
    w.write(b'hello\\n'); print(await r.read())
    w.close(); s.close()
    p = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(7)', stdout=-1)
    print(await p.communicate(), await asyncio.to_thread(sum, [1, 2]))
    try:
        async with asyncio.timeout(0.05): await asyncio.sleep(5)
    except TimeoutError: print('timeout')
    print(await asyncio.gather(*(asyncio.sleep(0.01, n) for n in range(5))))
asyncio.run(main())
""",
    "loopback": """
import socket, threading, http.server, urllib.request
s = socket.create_server(('127.0.0.1', 0))
def serve():
    c, _ = s.accept(); c.sendall(c.recv(100)[::-1]); c.close()
t = threading.Thread(target=serve); t.start()
c = socket.create_connection(s.getsockname()); c.sendall(b'abc'); print(c.recv(100)); t.join()
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'page')
    def log_message(self, *a): pass
h = http.server.ThreadingHTTPServer(('localhost', 0), H)
threading.Thread(target=h.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f'http://localhost:{h.server_port}/').read())
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0))
u.sendto(b'x', u.getsockname()); print(u.recv(9))
a, b = socket.socketpair(); a.send(b'pair'); print(b.recv(9))
""",
    "sqlite": """
import sqlite3
c = sqlite3.connect('db.sqlite'); print(c.execute('pragma journal_mode=wal').fetchone())
c.execute('create table t(a, b)')
c.executemany('insert into t values (?, ?)', [(1, 'x'), (2, 'y')])
c.commit(); print(sqlite3.connect('db.sqlite').execute('select sum(a), max(b) from t').fetchall())
c.close()
""",
    "tempfile": """
import tempfile, os
with tempfile.TemporaryDirectory() as d: open(d + '/x', 'w').write('1'); print(os.listdir(d))
with tempfile.NamedTemporaryFile('w+') as f: f.write('y'); f.seek(0); print(f.read())
with tempfile.TemporaryFile() as f: print(f.write(b'z'))
print(tempfile.gettempdir(), os.path.exists(d))
""",
    "signals": """
import signal, os, time
def handler(n, frame): print('got', signal.Signals(n).name)
for s in (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP): signal.signal(s, handler)
signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(0.2)
for s in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP): os.kill(os.getpid(), s)
try: signal.raise_signal(signal.SIGINT); time.sleep(5)
except KeyboardInterrupt: print('interrupted')
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]); os.kill(os.getpid(), signal.SIGUSR2)
print(signal.sigwait([signal.SIGUSR2]).name)
os.setpgid(0, 0) if os.getpgrp() != os.getpid() else None
os.killpg(0, signal.SIGUSR1)
""",
    "signals as found": """
import signal
for s in sorted(signal.valid_signals()):
    print(int(s), getattr(signal.getsignal(s), '__name__', signal.getsignal(s)))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getitimer(signal.ITIMER_REAL))
""",
    "broken pipe": """
import os
r, w = os.pipe(); os.close(r)
try: os.write(w, b'x')
except BrokenPipeError as e: print(e)
""",
    "terminal": """
import os, pty
pid, fd = pty.fork()
if pid == 0:
    print(os.isatty(0), os.get_terminal_size().columns >= 0, flush=True); os._exit(0)
data = b''
try:
    while piece := os.read(fd, 100): data += piece
except OSError: pass
print(data, os.waitpid(pid, 0)[1])
m, s = pty.openpty(); os.write(s, b'x'); print(os.read(m, 9), os.isatty(s))
""",
    "files": """
import fcntl, os, shutil, pathlib, glob
f = open('lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_EX)
os.makedirs('a/b/c'); pathlib.Path('a/b/x.txt').write_text('hi'); os.symlink('a', 'l')
shutil.copytree('a', 'copy'); shutil.make_archive('arc', 'zip', 'a'); os.link('a/b/x.txt', 'hard')
print(sorted(glob.glob('**/*', recursive=True)), os.stat('hard').st_nlink)
os.chmod('hard', 0o600); print(oct(os.stat('hard').st_mode)); shutil.rmtree('a')
print(oct(os.umask(0)), os.access('lock', os.W_OK), os.truncate('lock', 5), os.path.getsize('lock'))
""",
    "readiness": """
import os, select
r, w = os.pipe(); os.write(w, b'x')
p = select.poll(); p.register(r); e = select.epoll(); e.register(r, select.EPOLLIN)
print(select.select([r], [], [], 1)[0] == [r], p.poll(1)[0][1], e.poll(1)[0][1])
d = os.eventfd(3); print(os.eventfd_read(d))
""",
    "module": """
print(__name__, __file__, sorted(k for k in globals()), type(__builtins__).__name__)
import sys, __main__, inspect
def f():
    'documented'
print(sys.argv, __main__.__dict__ is globals(), inspect.getsource(f), f.__module__, sys.path[0])
print([p for p in sys.path if 'packages' not in p])
import os; print(os.getcwd(), os.path.abspath('x'))
""",
    "interpreter": """
import sys, gc, threading, locale, time, os
print(sys.version, sys.executable, sys.prefix, sys.base_prefix, sys.platlibdir)
print(sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), gc.get_threshold())
print(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), locale.getencoding())
print(sys.dont_write_bytecode, sys.warnoptions, sys._xoptions, hasattr(sys, 'ps1'))
print(threading.main_thread() is threading.current_thread(), threading.active_count())
print(sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__)
print(time.tzname, os.nice(0))
print([m for m in sys.modules if 'belljar' in m], sys.pycache_prefix)
""",
    "standard streams": """
import sys
for s in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__):
    print(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.fileno(),
          s.isatty(), type(s.buffer).__name__, type(s.buffer.raw).__name__, s.buffer.raw.closefd,
          s.newlines)
print(sys.stdout is sys.__stdout__, repr(sys.stdout), sys.stdin.seekable(), sys.stdout.seekable())
""",
    "names of site": "print(exit, quit, type(copyright), type(license), type(credits), type(help))",
    "help": "help(len)",
    "unicode": r"""
print('é ✓ 🎉 \x00 \u202e', 'x' * 10); import sys
sys.stderr.write('\ud800\n'); sys.stdout.flush(); sys.stdout.buffer.write(b'\xf0\x9f\x8e\x89\n')
""",
    "warnings": r"""
import warnings, sys
print(warnings.filters)
warnings.warn('old', DeprecationWarning); warnings.warn('pending', PendingDeprecationWarning)
exec("'\\d'")
""",
    "exit order": """
import atexit, weakref, threading, time
class C:
    def __init__(self, n): self.n = n
    def __del__(self): print('del', self.n)
first, second = C(1), C(2)
_private = C(3)
holder = [C(4)]
atexit.register(print, 'atexit 1'); atexit.register(print, 'atexit 2')
weakref.finalize(holder[0], print, 'finalize')
def slow():
    time.sleep(0.2); print('thread done')
threading.Thread(target=slow).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print('main done')
""",
    "del uses globals": """
import json
def helper(): return 'helped'
class C:
    def __del__(self): print(json.dumps([1]), helper(), C.__name__)
c = C()
other = [c]
""",
    "cycles at exit": """
class Node:
    def __del__(self): print('node gone')
a, b = Node(), Node(); a.other, b.other = b, a
""",
    "exit in a thread": """
import threading, sys
t = threading.Thread(target=lambda: sys.exit(9)); t.start(); t.join(); print('still here')
""",
    "thread hook": """
import threading
threading.excepthook = lambda a: print('hook', a.exc_type.__name__, a.thread.name)
t = threading.Thread(target=lambda: 1 / 0, name='T'); t.start(); t.join()
""",
    "memory": """
import gc, weakref
class C: pass
c = C(); c.me = c; r = weakref.ref(c); del c; gc.collect(); print(r())
print(gc.get_count()[1] >= 0, gc.garbage, gc.get_debug(), gc.callbacks)
""",
    "pickle": """
import pickle, copy, dataclasses, typing
@dataclasses.dataclass
class D:
    x: 'int'
print(pickle.loads(pickle.dumps(D(1))), copy.deepcopy(D(2)), typing.get_type_hints(D))
""",
    "doctest": """
def f(n):
    '''
    >>> f(2)
    4
    '''
    return n * 2
import doctest; print(doctest.testmod())
""",
    "unittest": """
import unittest
class T(unittest.TestCase):
    def test_a(self): self.assertEqual(1, 1)
if __name__ == '__main__':
    result = unittest.main(argv=['x'], exit=False, verbosity=0).result; print(result)
""",
    "argparse": """
import argparse
try: argparse.ArgumentParser().parse_args(['--nope'])
except SystemExit as e: print(e.code)
""",
    "logging": """
import logging
logging.warning('careful'); logging.getLogger('x').error('e'); logging.info('not shown')
""",
    "ctypes": """
import ctypes, os
libc = ctypes.CDLL(None); print(libc.getpid() == os.getpid(), libc.abs(-5))
""",
    "large output": "for n in range(30000): print(n)",
    "stack": "import resource; print(resource.getrlimit(resource.RLIMIT_STACK))",
}  # fmt: skip


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_works_as_on_a_bare_host(jar: Belljar, bare: Bare, code: str) -> None:
    """R2, I3: threads, processes, signals, files, sockets and the interpreter's own ways."""
    inside, outside = jar.run(code, environment="base"), bare(code)
    assert comparable(inside.stderr) == comparable(outside.stderr)
    assert comparable(inside.stdout) == comparable(outside.stdout)
    assert inside.exit_code == outside.returncode


def test_the_whole_standard_library_can_be_imported(jar: Belljar, bare: Bare) -> None:
    """R2: every module that the bare host can import."""
    code = """
import importlib, sys, warnings
warnings.simplefilter('ignore')
for name in sorted(sys.stdlib_module_names - {'antigravity', 'this', 'idlelib', 'turtledemo'}):
    try: importlib.import_module(name)
    except ImportError: print(name)
"""
    inside, outside = jar.run(code), bare(code)
    assert inside.success, inside.stderr
    assert inside.stdout == outside.stdout


def test_helper_modules_come_along(jar: Belljar) -> None:
    """R4: modules and packages beside the code are imported, and cleared at the end like it."""
    result = jar.run(
        "import helper, pkg.part, json\nprint(helper.answer(), pkg.part.up(), helper.__file__)\n"
        "from pkg import part; print(part is pkg.part)\n",
        files={
            "helper.py": "import atexit\natexit.register(print, 'bye')\ndef answer(): return 42\n"
            "class C:\n    def __del__(self): print('helper cleared')\nc = C()\n",
            "pkg/__init__.py": "",
            "pkg/part.py": "from . import other\ndef up(): return other.X\n",
            "pkg/other.py": "X = 'relative'\n",
        },
    )
    assert result.stderr == ""
    assert result.stdout == "42 relative /workspace/helper.py\nTrue\nbye\nhelper cleared\n"
    assert result.files == ()


@pytest.mark.parametrize(
    "name", ["agent", "runner", "protocol", "belljar", "csv", "random", "json", "threading"]
)
def test_a_module_may_be_named_like_one_that_is_already_warm(jar: Belljar, name: str) -> None:
    """R2: as on a bare host, the caller's own module goes before one of the standard library,
    unless an interpreter that has just started has it already."""
    result = jar.run(f"import {name}; print({name}.MINE)", files={f"{name}.py": "MINE = 1"})
    assert result.stdout == "1\n", result.stderr


def test_files_left_open_are_written(jar: Belljar) -> None:
    """R1: as a bare interpreter flushes them in its last moments."""
    result = jar.run(
        "f = open('text', 'w'); f.write('unflushed ✓')\n"
        "g = open('binary', 'wb'); g.write(b'x' * 100)\n"
        "keep = {'h': open('/data/output/deep', 'w')}; keep['h'].write('in a dict')\n"
        "def gen():\n    with open('in generator', 'w') as i:\n        i.write('y'); yield\n"
        "it = gen(); next(it)\n"
    )
    assert {file.name: file.content for file in result.files} == {
        "text": "unflushed ✓".encode(),
        "binary": b"x" * 100,
        "deep": b"in a dict",
        "in generator": b"y",
    }


def test_input_reads_lines(jar: Belljar) -> None:
    """R4"""
    result = jar.run("print(input('name? '), input())\ninput()", stdin="Ann\nBob\n")
    assert result.stdout == "name? Ann Bob\n"
    assert result.error
    assert result.error.name == "EOFError"


def test_the_environment_holds_what_is_documented_and_nothing_else(jar: Belljar) -> None:
    """I2: nothing of the host's environment is visible, in os.environ or in /proc."""
    result = jar.run(
        "import os, json\nprint(json.dumps([dict(os.environ),"
        " open('/proc/self/environ').read().split(chr(0))]))",
        env={"MINE": "1"},
    )
    names, executed = json.loads(result.stdout)
    assert set(names) == {
        "PATH", "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR", "LANG",
        "PYTHONDONTWRITEBYTECODE", "MINE",
    }  # fmt: skip
    assert {entry.partition("=")[0] for entry in executed if entry} <= {
        "LC_CTYPE",
        "LD_BIND_NOW",
        *names,
    }
    result = jar.run("import os; print(*sorted(os.environ))", fresh_exec=True, env={"MINE": "1"})
    assert set(result.stdout.split()) - {"LC_CTYPE"} == set(names)


RANDOM = """
import os, random, secrets, uuid, tempfile, json, multiprocessing
{more}
print(json.dumps([random.random(), secrets.token_hex(), str(uuid.uuid1()), str(uuid.uuid4()),
    os.path.basename(tempfile.mktemp()), os.urandom(8).hex(), random.SystemRandom().random(),
    multiprocessing.current_process().authkey.hex(), {values}]))
"""


@pytest.mark.parametrize("environment", ["base", "data"])
def test_nothing_random_repeats(jar: Belljar, environment: str) -> None:
    """Forks of one warm interpreter must not share a seed: numpy's, random's, uuid's …"""
    more = "import numpy, numpy.random" if environment == "data" else ""
    values = "numpy.random.rand(), numpy.random.default_rng().random()" if more else ""
    code = RANDOM.format(more=more, values=values)
    runs = [json.loads(jar.run(code, environment=environment).stdout) for _ in range(4)]
    for drawn in zip(*runs, strict=True):
        assert len(set(drawn)) == 4, drawn


def test_fresh_exec_is_a_new_interpreter(jar: Belljar, bare: Bare) -> None:
    """F1: another hash seed and address layout each time, which a fork cannot have."""
    code = "print(hash('x'), id(object()))"
    forked = {jar.run(code).stdout.split()[0] for _ in range(3)}
    fresh = {tuple(jar.run(code, fresh_exec=True).stdout.split()) for _ in range(3)}
    assert len(forked) == 1
    assert len({seed for seed, _ in fresh}) == len({address for _, address in fresh}) == 3


@pytest.mark.parametrize("name", ["interpreter", "standard streams", "signals as found", "exec"])
def test_fresh_exec_is_as_a_bare_host_too(jar: Belljar, bare: Bare, name: str) -> None:
    """F1"""
    inside, outside = jar.run(PROGRAMS[name], fresh_exec=True), bare(PROGRAMS[name])
    assert (inside.stdout, inside.stderr) == (outside.stdout, outside.stderr)


def test_fresh_exec_tells_the_exception_too(jar: Belljar) -> None:
    """R1: a result's `error` does not depend on how the interpreter was started."""
    forked, fresh = jar.run("1 / 0"), jar.run("1 / 0", fresh_exec=True)
    assert (fresh.status, fresh.exit_code) == ("error", 1)
    assert forked.error
    assert fresh.error
    assert (fresh.error.name, fresh.error.message) == (forked.error.name, forked.error.message)


def test_a_fixed_hash_seed_can_be_asked_for(jar: Belljar) -> None:
    """R4: with fresh_exec, the one variable of the interpreter that changes results only."""
    env = {"PYTHONHASHSEED": "7"}
    seen = {jar.run("print(hash('x'))", fresh_exec=True, env=env).stdout for _ in range(2)}
    assert len(seen) == 1
