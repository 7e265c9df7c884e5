"""Kept sandboxes in JavaScript, TypeScript and Bash (S1, S3, L1, L5, R1)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import belljar
from belljar.errors import SandboxLost, Unsupported


@pytest.fixture(scope="module")
def js(jar: belljar.Belljar) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(jar, language="javascript", max_runs=1000) as box:
        yield box


@pytest.fixture(scope="module")
def bash(jar: belljar.Belljar) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(jar, language="bash", max_runs=1000) as box:
        yield box


# -- JavaScript ----------------------------------------------------------------------------------


def test_s1_javascript_declarations_stay_and_can_be_made_again(js: belljar.Sandbox) -> None:
    js.run("const x = 41; let y = 1; class A {}; function f() { return x }")
    assert js.run("x + y").value == "42"
    js.run("const x = 1; class A { z = 2 }")
    result = js.run("[f(), new A()]")
    assert (result.value, result.language, result.state_kept) == (
        "[ 1, A { z: 2 } ]",
        "javascript",
        True,
    )


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("const { a } = await Promise.resolve({ a: 5 }); a", "5"),
        ("async function main() { return 7 }\nmain()", "7"),
        ("{ a: 1 }", "{ a: 1 }"),
        ("undefined", None),
        ("10n ** 20n", "100000000000000000000n"),
        ("typeof require('fs').readFileSync", "'function'"),
        ("(await import('node:path')).join('a', 'b')", "'a/b'"),
        ("import fs, { readFileSync as read } from 'fs'\n[fs.readFileSync === read]", "[ true ]"),
        ("process.chdir('/tmp'); process.env.MINE = 'yes'", "'yes'"),
        ("[process.cwd(), process.env.MINE]", "[ '/tmp', 'yes' ]"),
        ("'x'.repeat(1e7).length", "10000000"),
    ],
)
def test_s1_javascript_values(js: belljar.Sandbox, code: str, value: str | None) -> None:
    result = js.run(code)
    assert (result.status, result.value, result.stderr) == ("ok", value, "")


@pytest.mark.parametrize(
    ("code", "exit_code", "name"),
    [
        ("throw new RangeError('too far')", 1, "RangeError"),
        ("function deep() { throw new TypeError('deep') }\ndeep()", 1, "TypeError"),
        ("let q =", 1, "SyntaxError"),
        ("Promise.reject(new TypeError('as the value'))", 1, "TypeError"),
        (
            "setTimeout(() => { throw new Error('later') }, 1); await new Promise(() => {})",
            1,
            "Error",
        ),
        ("throw 5", 1, "number"),
        ("try { process.exit(3) } finally { console.log('never') }", 3, None),
        ("await 1; process.exit(4)", 4, None),
        ("setTimeout(() => process.exit(5), 1); await new Promise(() => {})", 5, None),
    ],
)
def test_s1_javascript_that_fails_ends_its_run_only(
    js: belljar.Sandbox, code: str, exit_code: int, name: str | None
) -> None:
    js.run("const kept = 'still here'")
    result = js.run(code)
    assert (result.status, result.exit_code, result.state_kept) == ("error", exit_code, True)
    assert (result.error.name if result.error else None) == name
    assert "never" not in result.stdout and "inspector" not in result.stderr
    assert js.run("kept").value == "'still here'"


def test_s1_a_javascript_error_says_where(js: belljar.Sandbox) -> None:
    error = js.run("function g() {\n  throw new Error('there')\n}\ng()").error
    assert error is not None
    assert error.message == "there" and ":2:9" in error.traceback and ":4:1" in error.traceback
    syntax = js.run("1;\nlet 5 = 3;").error
    assert syntax is not None and "let 5 = 3;\n    ^" in syntax.traceback


def test_s1_a_rejection_that_nobody_handles_is_told_and_harmless(js: belljar.Sandbox) -> None:
    js.run("Promise.reject(new Error('nobody cares')); 1")
    result = js.run("await new Promise(r => setTimeout(r, 10)); 'alive'")
    assert result.value == "'alive'"


def test_l5_javascript_output_is_whole_and_in_order(js: belljar.Sandbox) -> None:
    code = (
        "for (let i = 0; i < 20000; i++) console.log(`${i} ${'x'.repeat(40)}`);\n"
        "process.stdout.end('last\\n'); console.error('err')"
    )
    result = js.run(code)
    lines = result.stdout.split("\n")
    assert lines[0] == "0 " + "x" * 40 and lines[-2:] == ["last", ""]
    assert len(result.stdout) + result.dropped.stdout >= 20000 * 42
    assert result.stderr == "err\n"
    assert js.run("console.log('and again')").stdout == "and again\n"


def test_s1_javascript_reads_the_input_of_each_run(js: belljar.Sandbox) -> None:
    read = "let s = ''; for await (const c of process.stdin) s += c; s"
    assert js.run(read, stdin="one").value == "'one'"
    assert js.run(read, stdin="two").value == "'two'"
    assert js.run("require('fs').readFileSync(0, 'utf8')", stdin="three").value == "'three'"
    assert js.run(read).value == "''"


@pytest.mark.parametrize(
    "code",
    [
        "while (true) {}",
        "await new Promise(() => {})",
        "require('child_process').execSync('sleep 30')",
    ],
)
def test_l1_javascript_out_of_time_is_interrupted_and_keeps_its_state(
    js: belljar.Sandbox, code: str
) -> None:
    js.run("const before = 7")
    result = js.run(code, timeout_s=0.4)
    assert (result.status, result.state_kept) == ("timeout", True)
    assert js.run("before").value == "7"


def test_l1_javascript_can_be_interrupted_from_outside(js: belljar.Sandbox) -> None:
    threading.Timer(0.3, js.interrupt).start()
    result = js.run("await new Promise(r => setTimeout(r, 30000))")
    assert (result.error.name if result.error else None) == "Interrupted"
    assert (result.exit_code, result.state_kept) == (130, True)


def test_s1_typescript_is_javascript_with_types(jar: belljar.Belljar) -> None:
    with belljar.Sandbox(jar, language="typescript") as box:
        box.run("interface P { name: string }\nconst p: P = { name: 'a' }")
        assert box.run("(p as P).name").value == "'a'"
        assert box.run("enum Color { Red = 1, Green }\nColor.Green").value == "2"
        assert box.run("Color[1]").value == "'Red'"
        error = box.run("let q: = 3").error
        assert error is not None and error.name == "SyntaxError"
        assert box.run("import { sep } from 'node:path'\nsep as string").value == "'/'"


# -- Bash ----------------------------------------------------------------------------------------


def test_s1_a_shell_keeps_variables_functions_folder_and_options(bash: belljar.Sandbox) -> None:
    bash.run(
        "x=41; declare -A m=([a]=1); f() {\n  echo $((x + 1))\n}\nmkdir -p deep && cd deep\n"
        "export SEEN=yes; alias say='echo said'; shopt -s nullglob"
    )
    result = bash.run("f; pwd; echo ${m[a]}; env | grep SEEN; say; echo *.none")
    assert result.stdout == "42\n/workspace/deep\n1\nSEEN=yes\nsaid\n\n"
    assert (result.stderr, result.exit_code, result.language) == ("", 0, "bash")
    bash.run("cd; (exit 6)")
    assert bash.run("echo $?").stdout == "6\n"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("exit 3; echo never", 3),
        ("leave() { for i in 1 2; do exit 4; done; }; leave\necho never", 4),
        ("false", 1),
        ("nosuchcommand", 127),
        ("if true; then", 2),
        ("echo 'never\necho", 2),
        ("return 5; echo never", 5),
        ("(set -u; echo $unset; echo never)", 1),
        ("set -u; echo $unset; echo never\necho never", 1),
        ("set +u; set -e; false; echo never", 1),
        ("g() { false; echo never; }; g\necho never", 1),
        ("y=$(false); echo never", 1),
        ("set +e; ${unset:?is not there}\necho never", 1),
        ("trap 'echo INT' INT; exit 9", 9),
    ],
)
def test_s1_a_shell_that_fails_ends_its_run_only(
    bash: belljar.Sandbox, code: str, exit_code: int
) -> None:
    """`set -e` and `set -u` stay on for the cases below them."""
    bash.run("kept=here")
    result = bash.run(code)
    assert (result.status, result.exit_code, result.state_kept) == ("error", exit_code, True)
    assert "never" not in result.stdout and "belljar" not in result.stdout + result.stderr
    assert bash.run("echo $kept").stdout == "here\n"


def test_s1_a_shell_has_streams_heredocs_input_and_jobs(bash: belljar.Sandbox) -> None:
    result = bash.run(
        "read a; echo got $a >&2; cat - <(cat <<'E'\nit's $x\nE\n)", stdin="one\ntwo\n"
    )
    assert (result.stdout, result.stderr) == ("two\nit's $x\n", "got one\n")
    assert bash.run("cat").stdout == ""
    bash.run("exec >/dev/null 2>&1; sleep 0.1 & job=$!")
    assert bash.run("wait $job; echo $? visible").stdout == "0 visible\n"
    traced = bash.run("set -x; echo traced")
    assert (traced.stdout, traced.stderr) == ("traced\n", "++ echo traced\n")
    assert bash.run("set +x").stdout == ""
    large = bash.run("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end")
    assert large.stdout.endswith("x\nend\n") and large.dropped.stdout > 1_000_000


@pytest.mark.parametrize(
    "code",
    ["sleep 30; echo never", "while :; do :; done", "while :; do sleep 0.05; done\necho never"],
)
def test_l1_a_shell_out_of_time_is_interrupted_and_keeps_its_state(
    bash: belljar.Sandbox, code: str
) -> None:
    bash.run("before=7")
    result = bash.run(code, timeout_s=0.4)
    assert (result.status, result.state_kept, result.stdout) == ("timeout", True, "")
    assert bash.run("echo $before").stdout == "7\n"


# -- ends, lies, refusals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "code", "exit_code", "after"),
    [
        ("javascript", "process.reallyExit(5)", 5, "typeof x"),
        ("bash", "exec true", 0, "echo ${x-gone}"),
        ("bash", "trap '' INT; sleep 60", None, "echo ${x-gone}"),
    ],
)
def test_r1_a_state_that_is_lost_is_told_and_restart_begins_anew(
    jar: belljar.Belljar, language: str, code: str, exit_code: int | None, after: str
) -> None:
    with belljar.Sandbox(jar, language=language) as box:
        box.run("x=1; 'kept'" if language == "javascript" else "x=1; echo kept > file")
        result = box.run(code, timeout_s=1.5)
        assert (result.exit_code, result.state_kept) == (exit_code, False)
        with pytest.raises(SandboxLost):
            box.run("1")
        box.restart()
        again = box.run(after)
        assert "undefined" in str(again.value) or again.stdout == "gone\n"
        assert box.run("1" if language == "javascript" else "cat file").status == "ok"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "const all = []; for (;;) all.push(Buffer.alloc(1 << 20, 1))"),
        ("bash", "x=$(head -c 900000000 /dev/zero | tr '\\0' x)"),
    ],
)
def test_l2_memory_that_runs_out_is_told(jar: belljar.Belljar, language: str, code: str) -> None:
    with belljar.Sandbox(jar, language=language, memory_bytes=256 << 20) as box:
        box.run("1" if language == "javascript" else "true")
        assert box.run(code).status == "out_of_memory"


@pytest.mark.parametrize(
    ("language", "write"),
    [
        ("javascript", "require('fs').writeSync(3, `{}\\n`)"),
        ("bash", "printf '{}\\n' >&101"),
    ],
)
def test_r1_code_that_speaks_in_the_drivers_place_lies_about_itself_only(
    jar: belljar.Belljar, language: str, write: str
) -> None:
    with belljar.Sandbox(jar, language=language) as box:
        forged = '{"done": {"number": 1, "exit_code": 9, "value": "forged"}}'
        result = box.run(write.replace("{}", forged, 1))
        assert (result.exit_code, result.value, result.state_kept) == (9, "forged", True)
        box.run(write.replace("{}", '{"done": {"number": 1, "exit_code": 9}}', 1))
        honest = box.run("40 + 2" if language == "javascript" else "echo 42")
        assert "42" in (honest.value or honest.stdout)
        result = box.run(write.replace("{}", "not JSON", 1))
        with pytest.raises(SandboxLost):
            box.run("1")
            box.run("1")


def test_s6_what_only_python_can_is_refused_for_others(
    js: belljar.Sandbox, jar: belljar.Belljar
) -> None:
    assert js.checkpoints() == ()
    with pytest.raises(Unsupported, match="for Python"):
        js.rollback(1)
    with pytest.raises(Unsupported, match="for Python"):
        js.fork()
    with (
        pytest.raises(Unsupported, match="for Python"),
        belljar.Sandbox(jar, language="bash", checkpoints=3),
    ):
        pass
    with (
        pytest.raises(Unsupported, match="go keeps no state"),
        belljar.Sandbox(jar, language="go"),
    ):
        pass


def test_s1_python_can_be_restarted(jar: belljar.Belljar) -> None:
    with belljar.Sandbox(jar, environment="base") as box:
        box.run("x = 1; open('f', 'w').write('stays')")
        box.run("import os; os._exit(1)")
        box.restart()
        assert box.run("'x' in globals(), open('f').read()").value == "(False, 'stays')"
        assert len(box.checkpoints()) == 1
