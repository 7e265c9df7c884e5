"""Runs do not meet: neither one after the other nor side by side (R3, F1, F2)."""

from __future__ import annotations

import time

from belljar.jar import Belljar
from belljar.testing.base import Suite

LEAVE = """
import builtins, os, sys
for place in ('/workspace', '/tmp', '/data/output', '/dev/shm'):
    try:
        open(place + '/left-behind', 'w').write('mark')
    except OSError:
        pass
builtins.left_behind = sys.left_behind = 'mark'
os.environ['LEFT_BEHIND'] = 'mark'
print('left')
"""
LOOK = """
import builtins, os, sys
found = [place for place in ('/workspace', '/tmp', '/data/output', '/data/input', '/dev/shm')
         if os.path.exists(place + '/left-behind')]
found += [name for name in ('builtins', 'sys') if hasattr(sys.modules[name], 'left_behind')]
found += ['environ'] * ('LEFT_BEHIND' in os.environ)
print(found, sorted(os.listdir('/workspace')))
"""
CLEAN = "[] ['main.py']\n"


class Neighbours(Suite):
    def test_f1_a_sandbox_is_never_used_again(self, jar: Belljar) -> None:
        for _ in range(self.repeats):
            assert jar.run(LEAVE, engine=self.engine).stdout == "left\n"
            looked = jar.run(LOOK, engine=self.engine)
            assert looked.stdout == CLEAN, looked.stdout + looked.stderr

    def test_f2_many_at_once(self, jar: Belljar) -> None:
        code = "import time\ntime.sleep(0.2)\nopen('mine', 'w').write('{n}')\nprint({n} ** 2)"
        futures = [
            jar.submit(code.format(n=n), engine=self.engine, timeout_s=min(120, self.seconds(60)))
            for n in range(self.at_once)
        ]
        results = [future.result(self.seconds(120)) for future in futures]
        assert [result.stdout for result in results] == [
            f"{n**2}\n" for n in range(self.at_once)
        ], [result.stderr for result in results]
        contents = [[file.content for file in result.files] for result in results]
        assert contents == [[str(n).encode()] for n in range(self.at_once)]

    def test_r3_neighbours_do_not_see_each_other(self, jar: Belljar) -> None:
        stay_s = self.seconds(2)
        neighbour = jar.submit(
            f"{LEAVE}\nimport time\nsys.stdout.flush()\ntime.sleep({stay_s})",
            engine=self.engine,
            timeout_s=min(120, self.seconds(40)),
        )
        looks = 0
        while not neighbour.done():
            looked = jar.run(LOOK, engine=self.engine)
            assert looked.stdout == CLEAN, looked.stdout + looked.stderr
            looks += 1
            time.sleep(0.05)
        assert neighbour.result().status == "ok" and looks >= 1

    def test_r3_a_background_process_ends_with_the_run(self, jar: Belljar) -> None:
        """It would write on; and the answer does not wait for it."""
        self.needs("processes")
        code = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        time.sleep(0.05)
        print('still here', flush=True)
print('parent done', flush=True)
os._exit(0)
"""
        started = time.monotonic()
        result = jar.run(code, engine=self.engine, timeout_s=min(120, self.seconds(30)))
        assert (result.status, result.exit_code) == ("ok", 0), result.stderr
        assert "parent done" in result.stdout
        assert time.monotonic() - started < self.seconds(15)

    def test_i4_there_is_no_network(self, jar: Belljar) -> None:
        code = """
try:
    import socket
    socket.setdefaulttimeout(5)
    socket.create_connection(('192.0.2.1', 80))
    print('connected')
except (OSError, ImportError, AttributeError) as error:
    print('refused')
try:
    socket.gethostbyname('example.com')
    print('resolved')
except (OSError, NameError, AttributeError) as error:
    print('refused')
"""
        started = time.monotonic()
        result = jar.run(code, engine=self.engine, timeout_s=min(120, self.seconds(20)))
        assert result.stdout == "refused\nrefused\n", result.stdout + result.stderr
        assert time.monotonic() - started < self.seconds(5), "refused at once, not by waiting"
