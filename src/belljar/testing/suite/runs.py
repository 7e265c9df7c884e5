"""One run and its result (R1-R4)."""

from __future__ import annotations

import os

import pytest

from belljar.environments import catalogue
from belljar.errors import Unavailable
from belljar.jar import Belljar
from belljar.runtimes import languages
from belljar.testing.base import Suite

SAMPLES = {
    "python": "print(6 * 7)",
    "javascript": "console.log(6 * 7)",
    "typescript": "const n: number = 6; console.log(n * 7)",
    "bash": "echo $((6 * 7))",
    "go": 'package main\nimport "fmt"\nfunc main() { fmt.Println(6 * 7) }\n',
}
LANGUAGES = [language.name for language in languages.BUILT_IN]


class Runs(Suite):
    def test_r1_a_result_says_everything(self, jar: Belljar) -> None:
        code = "import sys\nprint('out')\nprint('err', file=sys.stderr)"
        result = jar.run(code, engine=self.engine)
        assert (result.status, result.exit_code, result.signal) == ("ok", 0, None), result.stderr
        assert (result.stdout, result.stderr) == ("out\n", "err\n")
        assert result.success and not result.timed_out and not result.truncated
        assert (result.engine, result.language, result.environment) == (
            self.engine,
            "python",
            "base",
        )
        assert result.duration_ms > 0
        assert result.isolation, "what the wall is made of"
        assert result.files == () and result.error is None and result.warnings == ()
        assert result.engine_reason == "", "it was named, not chosen"

    def test_r1_every_run_has_an_id_of_its_own(self, jar: Belljar) -> None:
        ids = {jar.run("pass", engine=self.engine).execution_id for _ in range(3)}
        assert len(ids) == 3

    @pytest.mark.parametrize("code", [1, 3, 255])
    def test_r1_exit_codes_are_the_codes_own(self, jar: Belljar, code: int) -> None:
        result = jar.run(f"import sys\nprint('said')\nsys.exit({code})", engine=self.engine)
        assert (result.status, result.exit_code, result.stdout) == ("error", code, "said\n")

    def test_r1_an_exception_is_a_result(self, jar: Belljar) -> None:
        result = jar.run("print('before')\n{}['key']", engine=self.engine)
        assert (result.status, result.exit_code, result.stdout) == ("error", 1, "before\n")
        assert result.error and (result.error.name, result.error.message) == ("KeyError", "'key'")
        assert "main.py" in result.error.traceback and "line 2" in result.stderr

    def test_r1_a_syntax_error_is_a_result(self, jar: Belljar) -> None:
        result = jar.run("print('never')\nif", engine=self.engine)
        assert (result.status, result.exit_code, result.stdout) == ("error", 1, "")
        assert result.error and result.error.name == "SyntaxError"

    def test_r1_a_signal_is_a_result(self, jar: Belljar) -> None:
        self.needs("processes")
        result = jar.run("import os\nos.kill(os.getpid(), 15)", engine=self.engine)
        assert (result.status, result.exit_code, result.signal) == ("killed", None, 15)

    def test_r1_streams_are_bytes_and_stay_apart(self, jar: Belljar) -> None:
        code = (
            "import sys\nsys.stdout.buffer.write(b'\\xff\\0\\n')\nsys.stdout.flush()\n"
            "print('é\\u2028🔔', end='', file=sys.stderr)"
        )
        result = jar.run(code, engine=self.engine)
        assert (result.stdout, result.stderr) == ("\ufffd\0\n", "é\u2028🔔")

    def test_r1_the_code_is_main_py_in_the_workspace(self, jar: Belljar) -> None:
        code = "import os, sys\nprint(os.getcwd(), __file__, __name__, sys.argv)"
        result = jar.run(code, engine=self.engine)
        expected = "/workspace /workspace/main.py __main__ ['/workspace/main.py']\n"
        assert result.stdout == expected, result.stderr

    def test_r1_usage_is_told(self, jar: Belljar) -> None:
        result = jar.run("x = sum(range(3_000_000))", engine=self.engine, timeout_s=60)
        assert result.status == "ok"
        assert result.usage.cpu_ms > 1

    @pytest.mark.parametrize("language", LANGUAGES)
    def test_r2_languages(self, jar: Belljar, language: str) -> None:
        if self.can.languages is not None and language not in self.can.languages:
            pytest.skip(f"{self.engine} declares that it does not run {language}")
        try:
            timeout_s = min(120, self.seconds(60))
            result = jar.run(
                SAMPLES[language], language=language, engine=self.engine, timeout_s=timeout_s
            )
        except Unavailable as error:
            pytest.skip(str(error))
        assert (result.status, result.stdout) == ("ok", "42\n"), result.stderr
        assert result.language == language

    @pytest.mark.parametrize("environment", [catalogue.DATA.name])
    def test_s5_environments(self, jar: Belljar, environment: str) -> None:
        if self.can.environments is not None and environment not in self.can.environments:
            pytest.skip(f"{self.engine} declares that it does not have {environment!r}")
        try:
            result = jar.run(
                "import numpy, pandas\nprint(pandas.Series(numpy.arange(4)).sum())",
                environment=environment,
                engine=self.engine,
                timeout_s=min(120, self.seconds(30)),
            )
        except Unavailable as error:
            pytest.skip(str(error))
        assert (result.status, result.stdout) == ("ok", "6\n"), result.stderr
        assert result.environment == environment

    def test_r4_standard_input(self, jar: Belljar) -> None:
        code = "import sys\nfirst = input()\nprint(first, repr(sys.stdin.read()))"
        result = jar.run(code, stdin="one\ntwo\nthree", engine=self.engine)
        assert result.stdout == "one 'two\\nthree'\n", result.stderr

    def test_r4_much_standard_input(self, jar: Belljar) -> None:
        code = "import sys\ndata = sys.stdin.buffer.read()\nprint(len(data), data[-4:])"
        content = b"x" * 1_000_000 + b"\0end"
        result = jar.run(code, stdin=content, engine=self.engine, timeout_s=60)
        assert result.stdout == "1000004 b'\\x00end'\n", result.stderr

    def test_r4_no_standard_input_is_an_empty_one(self, jar: Belljar) -> None:
        result = jar.run("import sys\nprint(repr(sys.stdin.read()))", engine=self.engine)
        assert result.stdout == "''\n", result.stderr

    def test_r4_variables(self, jar: Belljar) -> None:
        code = "import os\nprint(os.environ['GIVEN'], os.environ['HOME'])"
        result = jar.run(code, env={"GIVEN": "a=b c"}, engine=self.engine)
        assert result.stdout == "a=b c /workspace\n", result.stderr

    def test_i2_nothing_of_the_hosts_environment(
        self, jar: Belljar, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BELLJAR_TEST_SECRET", "of-the-host")
        result = jar.run("import os\nprint(dict(os.environ))", engine=self.engine)
        assert result.status == "ok" and "of-the-host" not in result.stdout
        assert os.uname().nodename not in result.stdout

    def test_r1_a_new_interpreter_per_run(self, jar: Belljar) -> None:
        self.needs("fresh_exec")
        code = "import sys\nprint(__name__, hash('x'))\nraise SystemExit(4)"
        results = [
            jar.run(code, fresh_exec=True, engine=self.engine, timeout_s=60) for _ in range(2)
        ]
        assert [result.exit_code for result in results] == [4, 4], results[0].stderr
        seeds = {result.stdout for result in results}
        assert len(seeds) == 2, f"the hash seed is another each time: {seeds}"
