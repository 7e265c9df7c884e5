"""S1: one run after the other in one interpreter, and none that spoils the next."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

Cells = Any
Start = Any


def test_s1_variables_imports_and_functions_stay(cell: Cells) -> None:
    cell("import math\nx = 41\ndef f(n):\n    return n + x")
    assert cell("f(1)").value == "42"
    cell("x = 1")
    assert cell("f(math.floor(2.5))").value == "3"


def test_s1_the_namespace_is_main(cell: Cells) -> None:
    cell("import sys, pickle\nclass Point:\n    pass")
    assert cell("sys.modules['__main__'].Point is Point").value == "True"
    assert cell("type(pickle.loads(pickle.dumps(Point()))) is Point").value == "True"
    assert cell("__name__").value == "'__main__'"


def test_s1_streams_stay_apart(cell: Cells) -> None:
    ran = cell("import sys\nprint('out', end='')\nprint('err', end='', file=sys.stderr)")
    assert (ran.status, ran.stdout, ran.stderr) == ("ok", "out", "err")


def test_s1_what_is_printed_can_be_seen_at_once(cell: Cells) -> None:
    """A line, not only a full buffer: somebody may be watching."""
    ran = cell("import time\nprint('started')\ntime.sleep(30)", interrupt="started\n")
    assert ran.error["name"] == "KeyboardInterrupt"


def test_r4_input_is_read_from_stdin(cell: Cells) -> None:
    ran = cell("name = input('who? ')", stdin="Ada\nrest\n")
    assert ran.stdout == "who? "
    assert cell("name").value == "'Ada'"
    assert cell("input()", stdin="new\n").value == "'new'"
    assert cell("input()").error["name"] == "EOFError"


# -- how a run ends --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("import sys; sys.exit(-1)", 255, ""),
        ("import sys; sys.exit('no more')", 1, "no more\n"),
        ("exit(4)", 4, ""),
    ],
)
def test_s1_sys_exit_ends_the_run_and_not_the_interpreter(
    cell: Cells, code: str, exit_code: int, said: str
) -> None:
    cell("x = 1")
    ran = cell(code + "\nx = 2")
    assert (ran.status, ran.exit_code, ran.stderr) == ("exit", exit_code, said)
    assert ran.error is None
    assert cell("x").value == "1"
    assert cell("input()", stdin="still\n").value == "'still'"


def test_s1_an_error_is_shown_like_a_scripts(cell: Cells, tmp_path: Path) -> None:
    cell("def divide(a, b):\n    # a comment\n    return a / b\n")
    ran = cell("x = 1\n\ndivide(x, 0)")
    lines = ran.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert '  File "<run 2>", line 3, in <module>' in lines
    assert "    divide(x, 0)" in lines
    assert '  File "<run 1>", line 3, in divide' in lines
    assert "    return a / b" in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert ran.stderr.count("File ") == 2  # none of ours
    assert (ran.status, ran.exit_code, ran.value) == ("error", 1, None)
    assert ran.error == {
        "name": "ZeroDivisionError",
        "message": "division by zero",
        "traceback": ran.stderr,
    }
    assert cell("x").value == "1"


def test_s1_chained_errors_show_none_of_our_frames(cell: Cells) -> None:
    ran = cell("try:\n    %cd /nowhere/at/all\nexcept OSError as e:\n    raise ValueError from e")
    assert ran.stderr.count("File ") == 2
    assert ran.stderr.count('File "<run 1>", line 2') == 1
    assert "direct cause" in ran.stderr


@pytest.mark.parametrize(
    ("code", "line", "shown"),
    [
        ("x = 1\ny = = 2\n", 2, "    y = = 2\n        ^\n"),
        ("if x:\nprint(1)", 2, "    print(1)\n"),
        ("x = 1\nreturn 5", 2, "    return 5\n"),
        ("print('never closed", 1, "    print('never closed\n"),
        ("!ls\nx = (1", 2, "    x = (1\n"),
        ("for x in 3\n    !ls", 1, "    for x in 3\n"),
        ("%time x = = 1", 1, "    %time x = = 1\n    ^\n"),
    ],
)
def test_s1_a_syntax_error_is_shown_as_python_shows_it(
    cell: Cells, code: str, line: int, shown: str
) -> None:
    ran = cell(code)
    assert ran.error["name"] in ("SyntaxError", "IndentationError")
    assert f'  File "<run 1>", line {line}\n' in ran.stderr
    assert shown in ran.stderr
    assert "__belljar" not in ran.stderr
    if not code.startswith("%"):
        assert "Traceback" not in ran.stderr


def test_s1_an_interrupt_ends_the_run_and_keeps_the_state(cell: Cells) -> None:
    cell("x = [1]")
    ran = cell("x.append(2)\nprint('go')\nwhile True:\n    pass", interrupt="go")
    assert (ran.status, ran.exit_code) == ("error", 130)
    assert ran.error["name"] == "KeyboardInterrupt"
    assert ran.stderr.endswith("KeyboardInterrupt\n")
    assert cell("x").value == "[1, 2]"


def test_s1_an_interrupt_between_runs_does_nothing(cell: Cells) -> None:
    cell("x = 1")
    for _ in range(5):
        cell.process.send_signal(signal.SIGINT)
        time.sleep(0.005)
    assert cell("x").value == "1"


def test_s1_code_that_ignores_interrupts_does_not_make_the_next_run_deaf(cell: Cells) -> None:
    cell("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    ran = cell("print('go')\nwhile True:\n    pass", interrupt="go")
    assert ran.error["name"] == "KeyboardInterrupt"


def test_s1_an_interrupt_never_tears_an_output_apart(cell: Cells) -> None:
    """Half a message to the agent would be the end of the sandbox."""
    for _ in range(20):
        ran = cell("print('go')\nwhile True:\n    display('x' * 10000)", interrupt="go")
        assert ran.error["name"] == "KeyboardInterrupt"
        assert all(len(output["data"]["text/plain"]) == 10002 for output in ran.outputs)


def test_l2_memory_and_recursion_errors_are_survived(cell: Cells) -> None:
    ran = cell("def f(n):\n    return f(n + 1)\nf(0)")
    assert ran.error["name"] == "RecursionError"
    assert "more times]" in ran.stderr
    ran = cell(
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 34))\n"
        "x = 'a' * (1 << 33)"
    )
    assert ran.error["name"] == "MemoryError"
    assert cell("1 + 1").value == "2"
    cell("import sys\nsys.setrecursionlimit(60)")
    assert cell("f(0)").error["name"] == "RecursionError"
    assert cell("1 + 1").value == "2"


def test_l5_a_long_error_is_bounded(cell: Cells) -> None:
    ran = cell("raise ValueError('begin' + 'x' * 1_000_000 + 'end')")
    assert len(ran.error["message"]) < 10_000
    assert len(ran.error["traceback"]) < 40_000
    assert ran.error["message"].startswith("begin") and ran.error["message"].endswith("end")
    assert "characters left out" in ran.error["message"]


def test_s1_errors_that_cannot_be_shown(cell: Cells) -> None:
    ran = cell("class Bad(Exception):\n    def __str__(self):\n        raise OSError\nraise Bad")
    assert ran.error["name"] == "Bad"
    assert cell("1 + 1").value == "2"


@pytest.mark.parametrize("code", ["x\0 = 1", "'\ud800'.encode()", "x = '\ud800'; x.encode()"])
def test_s1_text_that_cannot_be_compiled_is_an_error_of_the_run(cell: Cells, code: str) -> None:
    assert cell(code).status == "error"
    assert cell("1 + 1").value == "2"


# -- accidents -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "accident",
    [
        "import sys; sys.stdout.close()",
        "import sys; sys.stdout = sys.stderr = None",
        "import sys; sys.stdout = open('log', 'w'); print('into the file')",
        "import sys; sys.stdout.detach()",
        "import sys; sys.stdout.buffer.raw.close()",
        "import os; os.close(1); os.close(2)",
        "import os; f = os.open('/dev/null', os.O_RDWR); os.dup2(f, 1); os.dup2(f, 2)",
        "import os; os.set_blocking(1, False); os.set_blocking(2, False)",
        "import sys; sys.excepthook = None; del sys.__stdout__",
        "import sys; sys.excepthook = lambda *error: 1 / 0",
        "import builtins; builtins.print = None; import sys; print = sys.stdout.write",
        "import sys; del sys.modules['__main__']",
        "globals().clear()",
        "import sys; sys.meta_path.clear(); sys.path_hooks.clear()",
        "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
        "import linecache; linecache.clearcache()",
        "import builtins; del builtins.display",
        "import sys; sys.setrecursionlimit(80)",
        "import gc; gc.disable(); import sys; sys.displayhook = None",
        "import signal; signal.set_wakeup_fd(-1); signal.pthread_sigmask(signal.SIG_BLOCK, [])",
        "import os; os.closerange(64, 200)",
    ],
)
def test_s1_what_one_run_breaks_works_in_the_next(cell: Cells, accident: str) -> None:
    cell(accident)
    ran = cell("import sys\nsys.stdout.write('fine\\n')\nsys.stderr.write('too\\n')\n6 * 7")
    assert ran.status == "ok", ran
    assert (ran.value, ran.stdout, ran.stderr) == ("42", "fine\n", "too\n")
    ran = cell("undefined_name")
    assert ran.error["name"] == "NameError"
    assert "NameError" in ran.stderr


def test_s1_a_hook_for_errors_is_used(cell: Cells) -> None:
    cell(
        "import sys\n"
        "sys.excepthook = lambda kind, error, trace: print('mine:', error, file=sys.stderr)"
    )
    ran = cell("raise ValueError('seen')")
    assert ran.stderr == "mine: seen\n"
    assert ran.error["traceback"].endswith("ValueError: seen\n")


def test_s1_threads_go_on_after_the_run(cell: Cells) -> None:
    code = """
    import threading
    seen, go, done = [], threading.Event(), threading.Event()
    def work():
        go.wait(5)
        seen.append(1)
        display("from the thread")
        done.set()
    threading.Thread(target=work).start()
    """
    assert cell(code).outputs == []
    ran = cell("go.set()\ndone.wait(5), seen")
    assert ran.value == "(True, [1])"
    assert {output["data"]["text/plain"] for output in ran.outputs} == {
        "'from the thread'",
        "(True, [1])",
    }


def test_s1_what_a_thread_shows_between_runs_comes_with_the_next(cell: Cells) -> None:
    code = "import threading\nt = threading.Timer(0.05, lambda: display(1))\nt.start()"
    cell(code)
    time.sleep(0.3)
    (output,) = cell("pass").outputs
    assert output["data"] == {"text/plain": "1"}


def test_s1_a_fork_by_the_code_ends_with_the_code(cell: Cells) -> None:
    """The child must not come back as a second interpreter on the same channel."""
    ran = cell(
        "import os\npid = os.fork()\nif pid == 0:\n    display(1)\n"
        "'child' if pid == 0 else 'parent'"
    )
    assert ran.value == "'parent'"
    assert [output["data"]["text/plain"] for output in ran.outputs] == ["'parent'"]
    assert cell("os.waitpid(pid, 0)[1]").value == "0"
    ran = cell("pid = os.fork()\nif pid == 0:\n    raise SystemExit(7)\nos.waitpid(pid, 0)[1] >> 8")
    assert ran.value == "7"
    ran = cell("pid = os.fork()\nif pid == 0:\n    1 / 0\nos.waitpid(pid, 0)[1] >> 8")
    assert (ran.value, "ZeroDivisionError" in ran.stderr) == ("1", True)


def test_s1_processes_of_multiprocessing_work(cell: Cells) -> None:
    code = """
    import multiprocessing
    def square(n):
        return n * n
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(square, range(4))
    found
    """
    assert cell(code).value == "[0, 1, 4, 9]"


def test_s1_a_module_written_between_two_runs_is_found(cell: Cells, tmp_path: Path) -> None:
    for number in range(5):
        name = f"written_{number}"
        assert cell(f"import {name}").error["name"] == "ModuleNotFoundError"
        (tmp_path / f"{name}.py").write_text("answer = 42")
        assert cell(f"import {name}; {name}.answer").value == "42"


def test_s1_a_module_of_the_callers_does_not_replace_ours(cell: Cells, tmp_path: Path) -> None:
    for name in ("inspect", "asyncio", "selectors", "subprocess", "timeit"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')")
    assert cell("len?").status == "ok"
    assert cell("!true").status == "ok"
    assert cell("%timeit -n 1 -r 1 pass").status == "ok"


def test_s1_future_imports_hold_for_later_runs(cell: Cells) -> None:
    cell("from __future__ import annotations")
    assert cell("def f(x: nowhere): pass\nf.__annotations__").value == "{'x': 'nowhere'}"


def test_s1_annotations_are_those_of_a_module(cell: Cells) -> None:
    """Since Python 3.14 nothing of them is there until somebody asks."""
    ran = cell("import sys\n('__annotations__' in globals()) == (sys.version_info < (3, 14))")
    assert ran.value == "True"
    ran = cell("import __main__\nx: int = 1\n__main__.__annotations__")
    assert ran.value == "{'x': <class 'int'>}"


def test_s1_the_source_of_a_function_can_be_read(cell: Cells) -> None:
    cell("def f():\n    return 'here'")
    ran = cell("import inspect\nprint(inspect.getsource(f))")
    assert ran.stdout == "def f():\n    return 'here'\n\n"


def test_s1_indented_code_is_understood(cell: Cells) -> None:
    ran = cell("\n    x = [\n  1,\n    ]\n")  # not all of it is indented: Python's own error
    assert ran.error["name"] == "IndentationError"
    ran = cell("\n    for n in range(2):\n        x = n\n\n    x / 0\n")
    assert "    x / 0\n" in ran.stderr and "line 5" in ran.stderr


# -- await -----------------------------------------------------------------------------------------


def test_s1_await_at_the_top_level(cell: Cells) -> None:
    cell("import asyncio\nasync def f(n):\n    await asyncio.sleep(0)\n    return n")
    assert cell("await f(3)").value == "3"
    assert cell("x = await f(4)\nx + 1").value == "5"
    assert cell("[await f(n) async for n in aiter([])]").status == "error"
    assert cell("async with asyncio.Lock() as lock:\n    y = 2\ny").value == "2"


def test_s1_one_event_loop_lives_from_run_to_run(cell: Cells) -> None:
    cell("import asyncio\nqueue = asyncio.Queue()")
    cell(
        "async def feed():\n    for n in range(3):\n        await queue.put(n)\n"
        "        await asyncio.sleep(0)\n"
        "await asyncio.sleep(0)\n"
        "loop = asyncio.get_running_loop()\ntask = loop.create_task(feed())"
    )
    assert cell("[await queue.get() for _ in range(3)]").value == "[0, 1, 2]"
    assert cell("await asyncio.sleep(0)\nasyncio.get_running_loop() is loop").value == "True"
    assert cell("asyncio.run(asyncio.sleep(0, 'own'))").value == "'own'"
    assert cell("await asyncio.sleep(0)\nasyncio.get_running_loop() is loop").value == "True"
    assert cell("asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 6))").value == "6"
    cell("loop.close()")
    assert cell("await asyncio.sleep(0, 5)").value == "5"


def test_s1_an_error_while_awaiting_shows_only_the_code(cell: Cells) -> None:
    ran = cell("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    1 / 0\nawait f()")
    assert ran.stderr.count("File ") == 2
    assert '"<run 1>", line 5, in <module>' in ran.stderr


def test_s1_an_interrupt_while_awaiting_shows_where(cell: Cells) -> None:
    cell("import asyncio")
    ran = cell("print('go')\nawait asyncio.sleep(60)", interrupt="go")
    assert ran.error["name"] == "KeyboardInterrupt"
    assert '"<run 2>", line 2, in <module>' in ran.stderr
    assert cell("await asyncio.sleep(0, 1)").value == "1"


def test_s6_a_forked_loop_is_its_own(cell: Cells) -> None:
    """Branching forks the interpreter: both sides go on, threads and all that wakes them."""
    cell(
        "import asyncio, os, time\n"
        "await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0)"
    )
    code = """
    async def work():
        return await asyncio.get_running_loop().run_in_executor(None, lambda: 5)
    pid = os.fork()
    if pid == 0:
        await_it = asyncio.get_event_loop()
        os._exit(await_it.run_until_complete(work()))
    os.waitpid(pid, 0)[1] >> 8
    """
    assert cell(code).value == "5"
    assert cell("await work()").value == "5"
