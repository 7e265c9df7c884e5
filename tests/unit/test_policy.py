"""Policy (R4, R5): what is refused before anything starts, with which words; and what passes."""

from __future__ import annotations

import ast
import dataclasses
import enum
import fractions
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import (
    CodeTooLarge,
    InvalidFileName,
    InvalidRequest,
    InvalidVariable,
    LimitExceeded,
    UnknownEngine,
    UnknownEnvironment,
    UnknownLanguage,
)
from belljar.model import GIB, KIB, MIB, NEEDS, Limits, Request
from belljar.policy import names, variables
from belljar.policy.decide import STDIN_BYTES, Decision, decide
from belljar.policy.limits import BOUNDS, requested_limits
from belljar.policy.quote import quote, size
from belljar.runtimes import languages
from belljar.settings import Settings

SETTINGS = Settings(home=Path("unused"))


def shown(value: object) -> str:
    """A test id for values that pytest cannot print."""
    return ascii(quote(value))[:30]


@dataclass(frozen=True)
class FakeLanguage:
    name: str
    minimum_memory_bytes: int = 16 * MIB
    file_name: str = "main"
    minimum_processes: int = 1


KNOWN = {
    "python": FakeLanguage("python", 24 * MIB, "main.py"),
    "py": FakeLanguage("python", 24 * MIB, "main.py"),
    "bash": FakeLanguage("bash", 4 * MIB, "main.sh"),
    "go": FakeLanguage("go", 256 * MIB, "main.go", 12),
}


ENGINES = ("auto", "jail")


def look_up(name: str) -> FakeLanguage:
    if name not in KNOWN:
        raise UnknownLanguage("language: that is unknown", hint="known languages: python, bash, go")
    return KNOWN[name]


def judge(settings: Settings = SETTINGS, **fields: Any) -> Decision:
    fields.setdefault("code", "print(1)")
    return decide(
        Request(**fields),
        settings,
        languages=look_up,
        engines=ENGINES,
        known_languages=("python", "bash", "go"),
    )


def refused(kind: type[InvalidRequest], **fields: Any) -> str:
    with pytest.raises(kind) as caught:
        judge(**fields)
    assert type(caught.value) is kind
    return str(caught.value)


# What passes


def test_r5_a_plain_request_passes_unchanged() -> None:
    request = Request(code="print(1)")
    decision = decide(request, SETTINGS, languages=look_up, engines=ENGINES)
    assert decision == Decision(request=request, filter="off")


def test_r2_the_language_gets_its_own_name() -> None:
    assert judge(language="py").request.language == "python"


@pytest.mark.parametrize("code", ["", "\0", "é" * 50_000, "x" * 100_000, "\r\n"], ids=shown)
def test_r5_code_that_passes(code: str) -> None:
    """Empty code is fine, and a NUL byte is the guest's error, not the caller's."""
    assert judge(code=code).request.code == code


def test_r4_what_comes_along_is_copied_and_made_bytes() -> None:
    files: dict[str, Any] = {"a.txt": "é", "d/b": bytearray(b"b"), "d/c": memoryview(b"c")}
    env = {"A": "1"}
    request = judge(files=files, inputs={"a.txt": b"x"}, env=env, stdin="hé").request
    files["late"] = b""
    env["LD_PRELOAD"] = "late"
    assert request.files == {"a.txt": "é".encode(), "d/b": b"b", "d/c": b"c"}
    assert all(type(content) is bytes for content in request.files.values())
    assert request.inputs == {"a.txt": b"x"}
    assert request.env == {"A": "1"}
    assert request.stdin == "hé".encode()


def test_r2_the_built_in_languages_fit() -> None:
    """What the runtimes say of themselves is what policy asks for."""
    for language in languages.BUILT_IN:
        request = Request(code="", language=language.name)
        assert (
            decide(request, SETTINGS, languages=languages.get, engines=ENGINES).request == request
        )
        least = dataclasses.replace(Limits(), memory_bytes=language.minimum_memory_bytes - 1)
        with pytest.raises(LimitExceeded, match=rf"limits.memory_bytes: .*{language.name} needs"):
            decide(
                dataclasses.replace(request, limits=least),
                SETTINGS,
                languages=languages.get,
                engines=ENGINES,
            )
    with pytest.raises(UnknownLanguage, match="python"):
        decide(
            Request(code="", language="cobol"), SETTINGS, languages=languages.get, engines=ENGINES
        )


# Code, language, environment, engine, filter


@pytest.mark.parametrize("code", ["x" * 100_001, "é" * 50_001, "\ud800" * 100_001], ids=shown)
def test_r5_code_over_100_kb(code: str) -> None:
    message = refused(CodeTooLarge, code=code)
    assert "code: " in message
    assert "100000 bytes" in message
    assert "code_bytes" in message


def test_r5_the_operator_sets_the_code_size() -> None:
    with pytest.raises(CodeTooLarge, match="11 bytes are above the maximum of 10"):
        judge(dataclasses.replace(SETTINGS, code_bytes=10), code="x = 'éé'\n")


def test_r5_lone_surrogates_in_code() -> None:
    assert "line 2 is not valid Unicode" in refused(InvalidRequest, code="a\nb\ud800")


@pytest.mark.parametrize("code", [None, b"print(1)", 1, ["a"]])
def test_r5_code_is_text(code: object) -> None:
    assert "code: must be text" in refused(InvalidRequest, code=code)


@pytest.mark.parametrize(
    "language", ["cobol", "", "Python ", "x" * 10_000, None, 1, b"python", []], ids=shown
)
def test_r2_unknown_language(language: object) -> None:
    message = refused(UnknownLanguage, language=language)
    assert "known languages: python, bash, go" in message
    assert len(message) < 300


def test_r2_what_is_no_name_is_not_looked_up() -> None:
    def look_up(name: str) -> FakeLanguage:
        raise AssertionError(name)

    for language in (None, 1, "", "x" * 10_000):
        request = Request(code="", language=language)  # type: ignore[arg-type]
        with pytest.raises(UnknownLanguage):
            decide(request, SETTINGS, languages=look_up, engines=ENGINES)


@pytest.mark.parametrize(
    "environment", ["", "../up", "a/b", "a b", ".hidden", "-x", "a\n", "é", "x" * 65, None, 3]
)
def test_r5_environment_names(environment: object) -> None:
    assert "environment: " in refused(UnknownEnvironment, environment=environment)


@pytest.mark.parametrize("environment", ["auto", "base", "data", "my-env_1.2"])
def test_r5_environment_names_that_pass(environment: str) -> None:
    assert judge(environment=environment).request.environment == environment


@pytest.mark.parametrize("engine", ["docker", "", "JAIL", None, 1, []])
def test_r5_unknown_engine(engine: object) -> None:
    assert "known engines: auto, jail" in refused(UnknownEngine, engine=engine)


def test_r5_engines_can_be_added() -> None:
    request = Request(code="", engine="docker")
    decide(request, SETTINGS, languages=look_up, engines=("auto", "docker"))


@pytest.mark.parametrize("mode", ["on", "", None, True, []])
def test_p1_unknown_filter_mode(mode: object) -> None:
    assert "one of off, warn, deny" in refused(InvalidRequest, filter=mode)


def test_p1_only_python_can_be_filtered() -> None:
    assert judge(filter="deny").filter == "deny"
    assert judge(filter="warn").filter == "warn"
    assert "reads Python only" in refused(InvalidRequest, filter="deny", language="bash")
    decision = judge(filter="warn", language="bash")
    assert decision.filter == "off"
    assert "not analysed" in decision.warnings[0]
    assert judge(filter="off", language="bash").warnings == ()


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_r5_fresh_exec_is_a_yes_or_no(value: object) -> None:
    assert "fresh_exec: " in refused(InvalidRequest, fresh_exec=value)


# Limits


def limits(**fields: Any) -> Limits:
    return dataclasses.replace(Limits(), **fields)


def test_l1_every_limit_has_a_bound() -> None:
    assert list(BOUNDS) == [field.name for field in dataclasses.fields(Limits)]


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        -1,
        -0.5,
        True,
        False,
        "5",
        b"5",
        None,
        [],
        1j,
        10**5000,
        -(10**5000),
        1e308,
        fractions.Fraction(10**400, 1),
    ],
    ids=shown,
)
def test_l1_malformed_limits(name: str, value: object) -> None:
    message = refused(LimitExceeded, limits=limits(**{name: value}))
    assert message.startswith(f"limits.{name}: ")
    assert len(message) < 300


@pytest.mark.parametrize("name", [name for name in BOUNDS if not name.startswith("result_")])
@pytest.mark.parametrize("value", [0, 0.0, 1e-9])
def test_l1_zero_and_tiny_limits(name: str, value: float) -> None:
    refused(LimitExceeded, limits=limits(**{name: value}))


@pytest.mark.parametrize("name", BOUNDS)
def test_l1_the_operator_sets_the_maximum(name: str) -> None:
    most = getattr(SETTINGS.maxima, name)
    assert getattr(judge(limits=limits(**{name: most})).request.limits, name) == most
    message = refused(LimitExceeded, limits=limits(**{name: most + 1}))
    assert f"limits.{name}: " in message
    assert "above the maximum" in message
    assert f"maxima.{name}" in message


def test_r5_time_out_above_the_maximum() -> None:
    assert refused(LimitExceeded, limits=limits(timeout_s=500)) == (
        "limits.timeout_s: 500 is above the maximum of 120 "
        "(the maximum is the operator's setting maxima.timeout_s)"
    )


@pytest.mark.parametrize("name", [name for name, bound in BOUNDS.items() if bound.whole])
def test_l1_whole_numbers(name: str) -> None:
    message = refused(LimitExceeded, limits=limits(**{name: getattr(SETTINGS.maxima, name) - 0.5}))
    assert "not a whole number" in message


def test_l1_numbers_get_their_right_types() -> None:
    """JSON clients send 1e9 for a count and 5 for a time."""

    class Level(enum.IntEnum):
        TEN = 10

    given = limits(
        timeout_s=5, memory_bytes=1e9, cpus=fractions.Fraction(1, 2), processes=Level.TEN
    )
    checked = judge(limits=given).request.limits
    assert (checked.timeout_s, type(checked.timeout_s)) == (5.0, float)
    assert (checked.memory_bytes, type(checked.memory_bytes)) == (10**9, int)
    assert (checked.cpus, type(checked.cpus)) == (0.5, float)
    assert (checked.processes, type(checked.processes)) == (10, int)


def test_l2_memory_below_what_the_language_needs() -> None:
    message = refused(LimitExceeded, language="go", limits=limits(memory_bytes=64 * MIB))
    assert "64 MiB" in message
    assert "go needs at least 268435456 (256 MiB)" in message
    judge(language="go", limits=limits(memory_bytes=256 * MIB))


def test_l3_fewer_processes_than_the_language_needs() -> None:
    """Threads count: a runtime that cannot start them hangs."""
    message = refused(LimitExceeded, language="go", limits=limits(processes=11))
    assert message == "limits.processes: 11 is below what go needs (go needs at least 12)"
    judge(language="go", limits=limits(processes=12))


def test_l4_nothing_may_come_back_but_the_disk_has_a_size() -> None:
    """0 means none for results; for a tmpfs it would mean no limit."""
    judge(limits=limits(result_files=0, result_bytes=0))
    refused(LimitExceeded, limits=limits(disk_bytes=0))
    refused(LimitExceeded, limits=limits(disk_files=0))


def test_l1_limits_are_limits() -> None:
    for wrong in (None, {}, {"timeout_s": 1}):
        assert "limits: must be Limits" in refused(InvalidRequest, limits=wrong)


def test_l1_requested_limits_start_from_the_defaults() -> None:
    settings = dataclasses.replace(SETTINGS, defaults=Limits(timeout_s=7))
    assert requested_limits(settings, {}) == Limits(timeout_s=7)
    assert requested_limits(settings, {"timeout_s": None, "processes": 3}) == Limits(
        timeout_s=7, processes=3
    )
    with pytest.raises(InvalidRequest, match="'colour' is not a limit"):
        requested_limits(settings, {"colour": 1})


def test_l1_a_default_above_the_maximum_is_lowered_but_a_wish_is_refused() -> None:
    maxima = dataclasses.replace(SETTINGS.maxima, timeout_s=10.0)
    settings = dataclasses.replace(SETTINGS, maxima=maxima)
    assert requested_limits(settings, {}).timeout_s == 10.0
    judge(settings, limits=requested_limits(settings, {}))
    with pytest.raises(LimitExceeded, match="30 is above the maximum of 10"):
        judge(settings, limits=requested_limits(settings, {"timeout_s": 30}))


# Files


BAD_NAMES = {
    "empty": "",
    "dot": ".",
    "up": "..",
    "escape": "../x",
    "inner escape": "a/../../x",
    "harmless inner up": "a/../b",
    "absolute": "/etc/passwd",
    "two slashes": "a//b",
    "trailing slash": "a/",
    "dot component": "./a",
    "NUL": "a\0b",
    "newline": "a\nb",
    "escape code": "a\x1b[31m",
    "C1 control": "a\x9bm",
    "line separator": "a\u2028b",
    "backslash": "a\\b",
    "windows escape": "..\\x",
    "surrogate": "a\ud800",
    "long component": "x" * 256,
    "long component in bytes": "é" * 128,
    "long path": "/".join(["x" * 100] * 11),
    "long path in bytes": "/".join(["é" * 20] * 26),
    "deep path": "/".join("a" * 33),
    "huge": "x" * 1_000_000,
    "bytes": b"a",
    "number": 1,
    "None": None,
}


@pytest.mark.parametrize("field", ["files", "inputs"])
@pytest.mark.parametrize("name", BAD_NAMES)
def test_r4_bad_file_names(field: str, name: str) -> None:
    message = refused(InvalidFileName, **{field: {BAD_NAMES[name]: b""}})
    assert message.startswith(f"{field}: ")
    assert len(message) < 300
    assert message.encode().decode().isprintable()


@pytest.mark.parametrize(
    "name",
    ["a", "a.b", "...", "..a", "a b", "-rf", "~", "é/ü", "日本\u3000語", "👩\u200d🔬"],
)
def test_r4_good_file_names(name: str) -> None:
    assert name in judge(files={name: b""}).request.files


def test_r4_names_up_to_the_maximum() -> None:
    judge(files={"x" * 255: b"", "/".join("a" * 32): b"", "/".join(["x" * 204] * 5): b""})


def test_r4_a_name_is_a_file_or_a_folder() -> None:
    for pair in ({"a": b"", "a/b": b""}, {"a/b/c/d": b"", "a/b": b""}, {"a/b": b"", "a": b""}):
        assert "as a file and as a folder" in refused(InvalidFileName, inputs=pair)
    judge(files={"a": b"", "ab/c": b"", "ab/d": b""})
    judge(files={"a": b""}, inputs={"a/b": b""})


def test_r4_the_code_has_its_file() -> None:
    assert "'main.py' is where the code itself goes" in refused(
        InvalidFileName, files={"main.py": b""}
    )
    refused(InvalidFileName, files={"main.py/x": b""})
    judge(files={"main.go": b"", "x/main.py": b""}, inputs={"main.py": b""})
    refused(InvalidFileName, files={"main.go": b""}, language="go")


def test_r4_a_checked_name_is_the_name_that_is_used() -> None:
    """`str()` of such a member is not the text that was checked."""

    class Name(str, enum.Enum):  # noqa: UP042
        A = "a.txt"

    (name,) = judge(files={Name.A: b""}).request.files
    assert name == "a.txt"


@pytest.mark.parametrize("field", ["files", "inputs"])
@pytest.mark.parametrize("value", [None, 1, ["a"], {"a": b""}, 1.5])
def test_r4_contents_are_bytes(field: str, value: object) -> None:
    assert f"{field}['a']: must be bytes" in refused(InvalidRequest, **{field: {"a": value}})


def test_r4_contents_are_valid_text() -> None:
    assert "files['a']: not valid Unicode" in refused(InvalidRequest, files={"a": "\ud800"})


@pytest.mark.parametrize("field", ["files", "inputs", "env"])
@pytest.mark.parametrize("value", [None, [], "a", 1, [("a", b"")]])
def test_r4_mappings_are_mappings(field: str, value: object) -> None:
    kind = InvalidVariable if field == "env" else InvalidRequest
    assert refused(kind, **{field: value}).startswith(f"{field}: must map")


def test_l4_files_and_inputs_fit_the_disk() -> None:
    content = b"x" * (40 * KIB)
    message = refused(
        LimitExceeded,
        files={"a": content},
        inputs={"b": content},
        limits=limits(disk_bytes=64 * KIB),
    )
    assert "disk of 64 KiB" in message
    judge(files={"a": content}, inputs={"b": content}, limits=limits(disk_bytes=84 * KIB))


def test_l4_small_files_take_a_page_each() -> None:
    many = {f"{i}": b"x" for i in range(16)}
    refused(LimitExceeded, files=many, limits=limits(disk_bytes=64 * KIB))
    judge(files=dict.fromkeys(many, b""), limits=limits(disk_bytes=64 * KIB))


def test_l4_files_and_folders_are_counted() -> None:
    many = {f"d{i}/f": b"" for i in range(8)}
    message = refused(LimitExceeded, files=many, limits=limits(disk_files=16))
    assert "17 files and folders" in message
    judge(files=many, limits=limits(disk_files=17))


@pytest.mark.parametrize("value", [None, 1, ["a"]])
def test_r4_stdin_is_bytes(value: object) -> None:
    assert "stdin: must be bytes" in refused(InvalidRequest, stdin=value)


def test_r4_stdin_has_a_maximum() -> None:
    judge(stdin=b"x" * STDIN_BYTES)
    assert "stdin: " in refused(LimitExceeded, stdin=b"x" * (STDIN_BYTES + 1))


# Environment variables

REFUSED_NAMES = """
LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT ld_preload GLIBC_TUNABLES GCONV_PATH LOCPATH NLSPATH
MALLOC_TRACE MALLOC_ARENA_MAX HOSTALIASES RES_OPTIONS
PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONINSPECT PYTHONWARNINGS PYTHON_GIL PYTHONHASHSEED
PythonPath NODE_OPTIONS NODE_PATH NODE_CHANNEL_FD OPENSSL_CONF
BASH_ENV BASH_XTRACEFD SHELLOPTS BASHOPTS PS4 IFS
GOFLAGS GOROOT GOTOOLDIR GOENV GOCACHE GOCACHEPROG GOPROXY GODEBUG CC CXX CGO_CFLAGS
GIT_SSH GIT_SSH_COMMAND GIT_CONFIG_COUNT PATH BELLJAR_HOME belljar_x
"""

ALLOWED_NAMES = """
HOME TMPDIR TZ LANG LC_ALL USER SHELL TERM ENV DEBUG API_KEY OPENAI_API_KEY http_proxy NODE_ENV
NODE_NAME GOMAXPROCS GOGC GOOGLE_API_KEY GIT_AUTHOR_NAME OMP_NUM_THREADS PYTHONUNBUFFERED
PYTHONDONTWRITEBYTECODE path cc _ a1 PYT LD BELLJARS LDAP_URL
"""


@pytest.mark.parametrize("name", REFUSED_NAMES.split())
def test_r4_refused_variables_say_why(name: str) -> None:
    message = refused(InvalidVariable, env={"FINE": "1", name: "1"})
    assert message.startswith(f"env: {name} is refused (")
    assert len(message) > len(f"env: {name} is refused ()") + 10


@pytest.mark.parametrize("name", ALLOWED_NAMES.split())
def test_r4_allowed_variables(name: str) -> None:
    assert judge(env={name: "1"}).request.env == {name: "1"}


def test_r4_every_row_has_a_reason_and_works() -> None:
    for row in variables.REFUSED:
        assert row.why
        for pattern in row.names.split():
            assert variables.refusal(pattern.replace("*", "X")) == row.why


@pytest.mark.parametrize(
    "name", ["", "1A", "A-B", "A B", "A=B", "A\n", "é", "A\0", "\ud800", "A.B", None, 1, b"A"]
)
def test_r4_malformed_variable_names(name: object) -> None:
    assert "is not a variable name" in refused(InvalidVariable, env={name: "1"})


@pytest.mark.parametrize("value", ["a\0b", "\ud800", None, 1, b"x", True, ["a"]])
def test_r4_malformed_variable_values(value: object) -> None:
    message = refused(InvalidVariable, env={"A": value})
    assert "'A'" in message


def test_r4_values_are_not_repeated_in_errors() -> None:
    """They may be secrets, and errors are logged."""
    for env in ({"A": "hunter2\0"}, {"LD_PRELOAD": "hunter2"}, {"A": "hunter2\ud800"}):
        assert "hunter2" not in refused(InvalidVariable, env=env)


def test_r4_variables_are_bounded() -> None:
    judge(env={f"V{i}": "" for i in range(variables.COUNT)})
    refused(InvalidVariable, env={f"V{i}": "" for i in range(variables.COUNT + 1)})
    judge(env={"A": "x" * (variables.TOTAL_BYTES - 3)})
    refused(InvalidVariable, env={"A": "x" * (variables.TOTAL_BYTES - 2)})
    refused(InvalidVariable, env={"A": "é" * (variables.TOTAL_BYTES // 2)})
    refused(InvalidVariable, env={"A" * variables.TOTAL_BYTES: ""})


def test_r4_the_hash_seed_needs_a_new_interpreter() -> None:
    assert "fresh_exec" in refused(InvalidVariable, env={"PYTHONHASHSEED": "0"})
    for seed in ("0", "4294967295", "random"):
        judge(env={"PYTHONHASHSEED": seed}, fresh_exec=True)
        judge(env={"PYTHONHASHSEED": seed}, language="bash")
    for wrong in ("", "-1", "4294967296", "9" * 5000, "x", "²", None, 0):
        refused(InvalidVariable, env={"PYTHONHASHSEED": wrong}, fresh_exec=True)


# Whatever arrives


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**4000, -(10**4000), math.nan, math.inf, object, object()])
    | st.floats()
    | st.text(alphabet=st.characters(categories=None))
    | st.binary()
)
GARBAGE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet=st.characters(categories=None)) | st.integers(), inner)
        | st.tuples(inner)
    ),
    max_leaves=8,
)
NAMES = st.text(alphabet="a./\\\0\nLD_\ud800é", max_size=8)
MAPPINGS = st.dictionaries(NAMES | SCALARS.filter(lambda x: x == x), GARBAGE, max_size=4)


def test_limits_fields_are_all_fuzzed() -> None:
    assert {field.name for field in dataclasses.fields(Request)} == set(REQUESTS)


REQUESTS: dict[str, st.SearchStrategy[Any]] = {
    "code": GARBAGE | st.text(),
    "language": GARBAGE | st.sampled_from(sorted(KNOWN)),
    "environment": GARBAGE | st.just("auto"),
    "engine": GARBAGE | st.just("auto"),
    "language_level": GARBAGE | st.just("full"),
    "need": GARBAGE | st.lists(st.sampled_from(NEEDS)),
    "limits": GARBAGE | st.builds(Limits, **{name: st.just(1) | GARBAGE for name in BOUNDS}),
    "packages": GARBAGE | st.lists(GARBAGE | st.text()),
    "network": GARBAGE | st.lists(GARBAGE | st.text()),
    "secrets": GARBAGE | MAPPINGS,
    "stdin": GARBAGE | st.binary(),
    "env": GARBAGE | MAPPINGS | st.dictionaries(NAMES, st.text()),
    "files": GARBAGE | MAPPINGS | st.dictionaries(NAMES, st.binary()),
    "inputs": GARBAGE | MAPPINGS | st.dictionaries(NAMES, st.binary()),
    "filter": GARBAGE | st.sampled_from(["off", "warn", "deny"]),
    "fresh_exec": GARBAGE | st.booleans(),
}


@given(st.data(), st.sampled_from(sorted(REQUESTS)))
def test_r5_one_field_of_garbage(data: st.DataObject, field: str) -> None:
    """Nothing but InvalidRequest, with a message that can be printed, whatever one field holds."""
    try:
        judge(**{field: data.draw(REQUESTS[field])})
    except InvalidRequest as error:
        str(error).encode()
        assert len(str(error)) < 1000


@given(st.fixed_dictionaries({}, optional=REQUESTS))
def test_r5_many_fields_of_garbage(fields: dict[str, Any]) -> None:
    try:
        decision = judge(**fields)
    except InvalidRequest as error:
        str(error).encode()
    else:
        assert decide(decision.request, SETTINGS, languages=look_up, engines=ENGINES).request == (
            decision.request
        )


@given(st.dictionaries(st.text(alphabet="ab./", min_size=1, max_size=9), st.binary(max_size=3)))
def test_r4_names_that_pass_can_be_written_and_stay_inside(files: dict[str, bytes]) -> None:
    """The property itself: joined to a folder, no name leaves it, and no two collide."""
    try:
        accepted = judge(files=files).request.files
    except InvalidFileName:
        return
    root = Path("/root/of/it")
    paths = {Path(*root.parts, name) for name in accepted}
    assert len(paths) == len(accepted)
    for path in paths:
        assert ".." not in path.parts
        assert root in path.parents
        assert not paths & set(path.parents)


@given(GARBAGE)
def test_r5_a_request_is_a_request(value: object) -> None:
    with pytest.raises(InvalidRequest, match="request: must be a Request"):
        decide(value, SETTINGS, languages=look_up, engines=ENGINES)  # type: ignore[arg-type]


def test_quotes_are_short_and_plain() -> None:
    assert quote("a" * 100) == repr("a" * 60) + "…"
    assert quote("\ud800\x1b\u202e") == "'\\ud800\\x1b\\u202e'"
    assert quote(500.0) == "500"
    assert quote(0.5) == "0.5"
    assert quote(Odd()) == "a value of type Odd"
    assert (size(3), size(1536), size(GIB)) == ("3 bytes", "1.5 KiB", "1 GiB")


def test_policy_is_pure() -> None:
    """Policy imports nothing above it, and decide nothing that reads or starts anything."""
    folder = Path(names.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                head, _, rest = module.partition(".")
                if head == "belljar":
                    below = {"errors", "model", "network", "settings", "policy"}
                    assert rest.partition(".")[0] in below, path
                elif path.name not in ("filter.py", "analyse.py"):
                    assert head not in {"os", "io", "pathlib", "subprocess", "socket"}, path
