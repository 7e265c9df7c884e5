"""What is refused before anything starts (R5, I5)."""

from __future__ import annotations

import os
from typing import Any

import pytest

from belljar.environments import catalogue
from belljar.errors import (
    CodeTooLarge,
    InvalidFileName,
    InvalidRequest,
    LimitExceeded,
    UnknownEnvironment,
    UnknownLanguage,
    Unsupported,
)
from belljar.jar import Belljar
from belljar.kept.sync import Sandbox
from belljar.testing.base import Suite
from belljar.testing.suite.runs import LANGUAGES, SAMPLES


class Refusals(Suite):
    @pytest.mark.parametrize(
        ("kind", "options"),
        [
            (UnknownLanguage, {"language": "cobol"}),
            (UnknownEnvironment, {"environment": "nowhere"}),
            (LimitExceeded, {"timeout_s": 100_000}),
            (LimitExceeded, {"memory_bytes": "much"}),
            (LimitExceeded, {"timeout_s": -1}),
            (InvalidFileName, {"files": {"../x": ""}}),
            (InvalidFileName, {"inputs": {"/etc/passwd": ""}}),
            (InvalidRequest, {"env": {"LD_PRELOAD": "x"}}),
            (InvalidRequest, {"need": "strongest"}),
            (InvalidRequest, {"no_such_option": 1}),
        ],
        ids=lambda value: "" if isinstance(value, type) else next(iter(value)),
    )
    def test_r5_wrong_requests(
        self, jar: Belljar, kind: type[InvalidRequest], options: dict[str, Any]
    ) -> None:
        with pytest.raises(kind):
            jar.run("print(1)", engine=self.engine, **options)

    def test_r5_code_that_is_too_long(self, jar: Belljar) -> None:
        with pytest.raises(CodeTooLarge):
            jar.run("#" * 100_001, engine=self.engine)

    def test_i5_missing_languages_are_refused(self, jar: Belljar) -> None:
        for language in LANGUAGES:
            if self.can.languages is not None and language not in self.can.languages:
                self.refused(jar, language, code=SAMPLES[language], language=language)

    def test_i5_missing_environments_are_refused(self, jar: Belljar) -> None:
        for environment in (e.name for e in catalogue.BUILT_IN if e.runtime == "python"):
            if self.can.environments is not None and environment not in self.can.environments:
                self.refused(jar, environment, environment=environment)

    def test_i5_missing_options_are_refused(self, jar: Belljar) -> None:
        if not self.can.fresh_exec:
            self.refused(jar, "fresh_exec", fresh_exec=True)
        if not self.can.processes:
            self.refused(jar, "processes", processes=3)
        if not self.can.live_stdin:
            with open(os.devnull) as nothing:
                self.refused(jar, "stdin_descriptor", stdin_descriptor=nothing.fileno())
        if not self.can.disk_files:
            self.refused(jar, "disk_files", disk_files=200)
        if not self.can.files:
            self.refused(jar, "files", files={"x": ""})
            self.refused(jar, "files", inputs={"x": ""})

    def test_i5_sandboxes_that_cannot_be_kept_are_refused(self, jar: Belljar) -> None:
        if self.can.kept:
            pytest.skip(f"{self.engine} keeps sandboxes")
        with pytest.raises(Unsupported, match="keep") as refusal:
            Sandbox(jar, engine=self.engine).open()
        assert self.engine in refusal.value.message
        assert "jail" in refusal.value.hint, "which engine can"

    def test_i5_where_there_are_no_processes_none_starts(self, jar: Belljar) -> None:
        code = (
            "import sys\ntry:\n    import subprocess\n"
            "    subprocess.run([sys.executable or '/bin/true', '-c', 'pass'])\n"
            "    print('started')\n"
            "except (OSError, ImportError, AttributeError, ValueError):\n    print('refused')"
        )
        expected = "started\n" if self.can.processes else "refused\n"
        result = jar.run(code, engine=self.engine, timeout_s=60)
        assert result.stdout == expected, result.stderr

    def refused(self, jar: Belljar, says: str, *, code: str = "print(1)", **options: Any) -> None:
        with pytest.raises(Unsupported, match=says) as refusal:
            jar.run(code, engine=self.engine, **options)
        assert self.engine in refusal.value.message
        assert refusal.value.hint, "which engine can"
