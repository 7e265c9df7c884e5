"""R2: five languages, each with streams, exit codes, standard input, variables and files."""

from __future__ import annotations

import os
import threading

import pytest

from belljar import Belljar, Result

LANGUAGES = ("python", "javascript", "typescript", "bash", "go")

GO = "package main\nimport (\n{imports}\n)\nfunc main() {{\n{body}\n}}\n"


def go(body: str, *imports: str) -> str:
    return GO.format(imports="\n".join(f'"{name}"' for name in imports), body=body)


STREAMS = {
    "python": "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
    "javascript": "console.log('out'); console.error('err'); process.exit(3)",
    "typescript": "const n: number = 3; console.log('out'); console.error('err'); process.exit(n)",
    "bash": "echo out; echo err >&2; exit 3",
    "go": go('fmt.Println("out"); fmt.Fprintln(os.Stderr, "err"); os.Exit(3)', "fmt", "os"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_streams_and_exit_code(jar: Belljar, language: str) -> None:
    """R1, R2"""
    result = jar.run(STREAMS[language], language=language)
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert (result.status, result.language) == ("error", language)
    assert result.error is None
    assert result.usage.cpu_ms > 0


ECHO = {
    "python": "import os, sys; print(sys.stdin.read().upper() + os.environ['NAME'])",
    "javascript": "const fs = require('fs');\n"
    "console.log(fs.readFileSync(0, 'utf8').toUpperCase() + process.env.NAME)",
    "typescript": "import { readFileSync } from 'node:fs';\n"
    "console.log(readFileSync(0, 'utf8').toUpperCase() + process.env.NAME)",
    "bash": 'read -r line; echo "${line^^}"; echo "$NAME"',
    "go": go(
        "data, _ := io.ReadAll(os.Stdin)\n"
        'fmt.Println(strings.ToUpper(string(data)) + os.Getenv("NAME"))',
        "fmt",
        "io",
        "os",
        "strings",
    ),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_standard_input_and_variables(jar: Belljar, language: str) -> None:
    """R2, R4: also in Go, whose compiler must not swallow what is meant for the program."""
    result = jar.run(ECHO[language], language=language, stdin="hello\n", env={"NAME": "välue ✓"})
    assert result.stderr == ""
    assert result.stdout == "HELLO\nvälue ✓\n"


READERS = {
    "python": "import sys; print(len(sys.stdin.buffer.read()))",
    "python, new": "import sys; print(len(sys.stdin.buffer.read()))",
    "bash": "wc -c",
    "javascript": "console.log(require('fs').readFileSync(0).length)",
    "go": 'package main\nimport ("fmt"; "io"; "os")\n'
    "func main() { b, _ := io.ReadAll(os.Stdin); fmt.Println(len(b)) }",
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("size", [0, 3_000_000])
def test_every_language_reads_from_a_pipe(jar: Belljar, reader: str, size: int) -> None:
    """R2, R4: three megabytes or nothing at all, then the end."""
    readable, writable = os.pipe()

    def write() -> None:
        with open(writable, "wb") as file:
            file.write(bytes(size))

    writer = threading.Thread(target=write)
    writer.start()
    language = reader.partition(",")[0]
    try:
        result = jar.run(
            READERS[reader],
            language=language,
            fresh_exec=reader.endswith("new"),
            stdin_descriptor=readable,
        )
    finally:
        os.close(readable)
        writer.join()
    assert (result.stdout.strip(), result.stderr) == (str(size), "")


FILES = {
    "python": "d = open('/data/input/in').read() + open('here').read()\n"
    "open('made', 'w').write(d); open('/data/output/out', 'w').write(d)",
    "javascript": "import fs from 'node:fs';\n"
    "const d = fs.readFileSync('/data/input/in') + fs.readFileSync('here');\n"
    "fs.writeFileSync('made', d); fs.writeFileSync('/data/output/out', d)",
    "typescript": "import * as fs from 'node:fs';\n"
    "const d: string = '' + fs.readFileSync('/data/input/in') + fs.readFileSync('here');\n"
    "fs.writeFileSync('made', d); fs.writeFileSync('/data/output/out', d)",
    "bash": "cat /data/input/in here | tee made > /data/output/out",
    "go": go(
        'a, _ := os.ReadFile("/data/input/in"); b, _ := os.ReadFile("here")\n'
        'd := append(a, b...)\nos.WriteFile("made", d, 0644)\n'
        'os.WriteFile("/data/output/out", d, 0644)',
        "os",
    ),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_files_in_and_out(jar: Belljar, language: str) -> None:
    """R2, R4, S2: and nothing that a compiler or runtime leaves lying about."""
    result = jar.run(FILES[language], language=language, files={"here": "B"}, inputs={"in": "A"})
    assert result.success, result.stderr
    assert {file.path: file.content for file in result.files} == {
        "/workspace/made": b"AB",
        "/data/output/out": b"AB",
    }


FAILURES = {
    "python": ("def f(:", 1, "SyntaxError"),
    "javascript": ("let x = ;", 1, "SyntaxError"),
    "typescript": ("let x: = 1;", 1, "main.ts"),
    "bash": ("if then", 2, "syntax error"),
    "go": (go('x := 1; var y int = "text"'), 1, "main.go:6"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_cannot_be_compiled_says_so(jar: Belljar, language: str) -> None:
    """R2: the compiler's words on stderr, a line number, an exit code; nothing ran."""
    code, exit_code, words = FAILURES[language]
    result = jar.run(code, language=language)
    assert (result.status, result.exit_code, result.stdout) == ("error", exit_code, "")
    assert words in result.stderr
    assert result.files == ()


CRASHES = {
    "python": ("raise ValueError('boom')", 1),
    "javascript": ("throw new TypeError('boom')", 1),
    "typescript": ("function f(x: string): never { throw new Error(x) } f('boom')", 1),
    "bash": ("set -e; echo boom >&2; false; echo not reached", 1),
    "go": (go('panic("boom")'), 2),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_fails_at_run_time_says_so(jar: Belljar, language: str) -> None:
    """R1, R2"""
    code, exit_code = CRASHES[language]
    result = jar.run(code, language=language)
    assert (result.status, result.exit_code) == ("error", exit_code)
    assert "boom" in result.stderr


LOOPS = {
    "python": "while True: pass",
    "javascript": "while (true) {}",
    "typescript": "while (true) {}",
    "bash": "while :; do :; done",
    "go": go("for {}"),
}


def test_every_language_runs_out_of_time(jar: Belljar) -> None:
    """L1: in all languages, side by side."""
    futures = [jar.submit(code, language=name, timeout_s=4) for name, code in LOOPS.items()]
    assert [future.result(timeout=60).status for future in futures] == ["timeout"] * 5


HOGS = {
    "javascript": "const a = []; while (true) a.push(Buffer.alloc(1 << 20, 1))",
    "bash": 'x=xxxxxxxxxxxxxxxx; while :; do x="$x$x"; done',
    "go": go("var a [][]byte\nfor { b := make([]byte, 1<<20)\nfor i := range b { b[i] = 1 }\n"
             "a = append(a, b) }"),
}  # fmt: skip


@pytest.mark.parametrize("language", HOGS)
def test_memory_bombs_of_other_languages(jar: Belljar, language: str, has_groups: bool) -> None:
    """L2: killed, or ended by its own runtime when an rlimit refuses the memory."""
    result = jar.run(HOGS[language], language=language, memory_bytes=200 << 20, timeout_s=25)
    if has_groups:
        assert result.status == "out_of_memory"
    else:
        assert result.status in ("out_of_memory", "error", "killed")
        assert result.duration_ms < 20_000


def test_typescript_is_more_than_stripped_types(jar: Belljar) -> None:
    """R2: enums, parameter properties and namespaces need to be transformed."""
    result = jar.run(
        "enum Color { Red = 1, Green }\n"
        "namespace N { export const x = 5 }\n"
        "class P { constructor(private readonly n: number) {} get() { return this.n } }\n"
        "interface Shape { side?: number }\n"
        "const s: Shape = {}; type Id<T> = T;\n"
        "console.log(Color[2], N.x, new P(7).get(), s?.side ?? 'none' as Id<string>);",
        language="typescript",
    )
    assert (result.stdout, result.stderr) == ("Green 5 7 none\n", "")


def test_javascript_modules_of_both_kinds(jar: Belljar) -> None:
    """R2: require, import and top-level await, also of files that come along."""
    common = jar.run(
        "const { f } = require('./lib.cjs'); console.log(f(2), __filename)",
        language="js",
        files={"lib.cjs": "exports.f = x => x * 2"},
    )
    modern = jar.run(
        "import { f } from './lib.mjs'; console.log(f(await Promise.resolve(3)))",
        language="js",
        files={"lib.mjs": "export const f = x => x * 2"},
    )
    assert (common.stdout, modern.stdout) == ("4 /workspace/main.js\n", "6\n")


def test_javascript_has_threads_and_children(jar: Belljar) -> None:
    """R2, I3"""
    result = jar.run(
        "const { Worker } = require('worker_threads'), cp = require('child_process');\n"
        "console.log(cp.execSync('echo child').toString().trim());\n"
        "const w = new Worker(`require('worker_threads').parentPort.postMessage(6 * 7)`,"
        " { eval: true });\n"
        "w.on('message', m => { console.log(m); });",
        language="javascript",
    )
    assert (result.stdout, result.stderr) == ("child\n42\n", "")


def test_bash_pipes_functions_and_jobs(jar: Belljar) -> None:
    """R2"""
    result = jar.run(
        "f() { local n=$1; echo $((n * n)); }\n"
        "seq 1 5 | while read -r n; do f $n; done | sort -rn | paste -sd,\n"
        "a=(x 'y z'); echo ${#a[@]} \"${a[1]}\"; diff <(echo 1) <(echo 2) | head -1\n"
        "sleep 0.1 & wait $!; echo $? ${PIPESTATUS[0]}; cat <<< here; pwd; echo $0\n"
        "awk 'BEGIN{print 1/4}'; printf '%s\\n' \"$(date +%Y | wc -c)\"\n",
        language="bash",
    )
    assert result.stderr == ""
    assert result.stdout == ("25,16,9,4,1\n2 y z\n1c1\n0 0\nhere\n/workspace\nmain.sh\n0.25\n5\n")


def test_go_has_goroutines_and_its_library(jar: Belljar) -> None:
    """R2"""
    result = jar.run(
        go(
            "var wg sync.WaitGroup; var mu sync.Mutex; n := 0\n"
            "for i := 0; i < 100; i++ { wg.Add(1); go func() { defer wg.Done(); mu.Lock();"
            " n++; mu.Unlock() }() }\nwg.Wait()\n"
            'b, _ := json.Marshal(map[string]int{"n": n}); fmt.Println(string(b))\n'
            'out, err := exec.Command("echo", "child").Output(); fmt.Print(string(out), err)',
            "encoding/json",
            "fmt",
            "os/exec",
            "sync",
        ),
        language="go",
    )
    assert (result.stdout, result.stderr) == ('{"n":100}\nchild\n<nil>', "")


def test_a_tenant_cannot_change_the_build_cache_of_the_next(jar: Belljar) -> None:
    """R3, S5: two builds of the same program are fresh; the shared cache is read-only."""
    code = go(
        'err := os.WriteFile(os.Getenv("GOCACHE") + "/planted", nil, 0644)\n'
        'fmt.Println(err != nil)\nerr = os.WriteFile("/opt/belljar/go/planted", nil, 0644)\n'
        "fmt.Println(err != nil)",
        "fmt",
        "os",
    )
    results: list[Result] = [jar.run(code, language="go") for _ in range(2)]
    for result in results:
        assert result.stdout.endswith("true\n"), result.stderr


@pytest.mark.parametrize("language", ["javascript", "typescript", "bash", "go"])
def test_other_languages_are_pooled_and_fresh_too(jar: Belljar, language: str) -> None:
    """R3: what one run leaves, the next does not find."""
    code = {
        "bash": "ls /tmp /dev/shm /workspace; touch /tmp/left /dev/shm/left left",
        "go": go(
            'for _, p := range []string{"/tmp/left", "/dev/shm/left", "left"} {\n'
            "_, err := os.Stat(p); fmt.Println(err != nil); os.WriteFile(p, nil, 0644) }",
            "fmt",
            "os",
        ),
    }.get(
        language,
        "const fs = require('node:fs'); for (const p of ['/tmp/left', '/dev/shm/left', 'left'])"
        " { console.log(!fs.existsSync(p)); fs.writeFileSync(p, '') }",
    )
    first, second = (jar.run(code, language=language) for _ in range(2))
    assert first.success, first.stderr
    assert first.stdout == second.stdout
    assert "left" not in first.stdout
    assert "false" not in first.stdout
