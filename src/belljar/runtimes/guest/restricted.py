"""Runs main.py as RestrictedPython: a small language, checked when compiled and while it runs.

Sent into the sandbox beside the code, where it is the program that is executed. A layer inside a
wall and never one itself: it makes mistakes of harmless code harmless, and gives an attacker less
to begin with. What it offers is these tables; everything else is absent.
"""

# ruff: noqa: E402
import sys

# Before any other import, that of __future__ too: what the caller sent along is data here, and a
# file named traceback.py, or random.py, would be run without any restriction.
sys.path[:] = [
    entry
    for entry in sys.path
    if entry.startswith("/") and not entry.startswith(("/workspace", "/tmp", "/data"))
]

import builtins
import collections
import importlib
import operator
import re
import traceback
import types
from typing import Any, Callable, Dict, Optional, Tuple

CODE = "/workspace/main.py"
LIBRARY = "/workspace/_belljar_restricted.zip"
REFUSALS = 20
SEAL = "@belljar-seal@"
"""Replaced by the host, for each run: with it a refusal is known to be ours."""

BUILTINS = (
    "all", "any", "ascii", "bin", "bytearray", "classmethod", "dict", "enumerate", "filter",
    "format", "frozenset", "input", "iter", "list", "map", "max", "min", "next", "property",
    "reversed", "set", "staticmethod", "sum", "RecursionError", "TimeoutError", "NotImplemented",
)  # fmt: skip
"""Beside those that RestrictedPython itself calls safe."""

PUBLIC: Tuple[str, ...] = ()
MODULES = {
    "base64": PUBLIC,
    "bisect": PUBLIC,
    "calendar": ("isleap", "leapdays", "monthrange", "monthcalendar", "timegm", "weekday"),
    "cmath": PUBLIC,
    # UserString.format would be str.format, which follows attributes.
    "collections": ("ChainMap", "Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"),
    "datetime": PUBLIC,
    "decimal": PUBLIC,
    "fractions": PUBLIC,
    "functools": ("cache", "cmp_to_key", "lru_cache", "partial", "reduce"),
    "hashlib": ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "blake2b", "blake2s"),
    "heapq": PUBLIC,
    "itertools": PUBLIC,
    "json": ("JSONDecodeError", "dumps", "loads"),
    "math": PUBLIC,
    # attrgetter and methodcaller reach attributes by name, past every check.
    "operator": (
        "add", "and_", "contains", "countOf", "eq", "floordiv", "ge", "getitem", "gt", "index",
        "indexOf", "invert", "itemgetter", "le", "lt", "mod", "mul", "ne", "neg", "not_", "or_",
        "pos", "pow", "sub", "truediv", "truth", "xor",
    ),
    "random": PUBLIC,
    "re": PUBLIC,
    "statistics": PUBLIC,
    "string": (
        "ascii_letters", "ascii_lowercase", "ascii_uppercase", "capwords", "digits", "hexdigits",
        "octdigits", "printable", "punctuation", "whitespace",
    ),
    "textwrap": PUBLIC,
    "time": ("monotonic", "perf_counter", "sleep", "strftime", "time"),
    "unicodedata": ("bidirectional", "category", "combining", "name", "normalize", "numeric"),
}  # fmt: skip
"""What can be imported, and which names of it; PUBLIC: those it calls so itself."""

CLOSED = (types.ModuleType, types.FrameType, types.TracebackType, types.CodeType)
"""Whoever gets hold of one of these, from wherever, has none of its attributes: they lead to the
interpreter."""
FOLLOWING = ("format", "format_map")
"""Methods of texts that follow attributes of any name."""

WRITABLE = {
    dict, list, bytearray, collections.Counter, collections.OrderedDict, collections.defaultdict,
    collections.deque,
}  # fmt: skip


class RestrictedSyntaxError(Exception):
    """The code is Python, and not of the restricted kind. Nothing of it ran."""


def compiled(source: str) -> types.CodeType:
    from RestrictedPython.compile import compile_restricted_exec

    compile(source, CODE, "exec", dont_inherit=True)  # what is no Python at all says so as usual
    result = compile_restricted_exec(source, CODE)
    if result.code is None:
        raise RestrictedSyntaxError(SEAL + "; ".join(map(_refusal, result.errors[:REFUSALS])))
    return result.code


def _refusal(text: str) -> str:
    found = re.match(r"Line (\d+): (.*)", " ".join(text.split()))
    return f"line {found[1]}: {found[2]}" if found else f"line 0: {text}"


def namespace() -> Dict[str, Any]:
    """The globals of the code: the guards that its compiled form calls, and what it may use."""
    from RestrictedPython import Guards

    get = _attribute(Guards.safer_getattr_raise)
    safe = dict(Guards.safe_builtins)
    safe.update({name: getattr(builtins, name) for name in BUILTINS if hasattr(builtins, name)})
    safe.update(__import__=_import, getattr=_getattr(get), hasattr=_hasattr(get))
    safe.update({name: _named(safe[name]) for name in ("setattr", "delattr")})
    return {
        "__builtins__": safe,
        "__name__": "__main__",
        "__metaclass__": _make_class,
        "_getattr_": get,
        "_getitem_": lambda item, key: item[key],
        "_getiter_": iter,
        "_iter_unpack_sequence_": Guards.guarded_iter_unpack_sequence,
        "_unpack_sequence_": Guards.guarded_unpack_sequence,
        "_write_": lambda item: item if type(item) in WRITABLE else Guards.full_write_guard(item),
        "_inplacevar_": _in_place,
        "_print_": _Print,
    }


def _make_class(name: str, bases: Tuple[type, ...], body: Dict[str, Any]) -> type:
    made: Any = type(name, bases, body)
    made._guarded_writes = True  # instances of the code's own classes are its own
    return made  # type: ignore[no-any-return]


def _in_place(name: str, left: object, right: object) -> object:
    return IN_PLACE[name](left, right)


IN_PLACE: Dict[str, Callable[[Any, Any], Any]] = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "@=": operator.imatmul,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
}


class _Shown(types.ModuleType):
    """Of a module what the code may use."""


def _attribute(get: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """The library looks at names. Here what is asked counts, and what is found: both come from
    places that no list of names foresees, such as the `obj` of an AttributeError, or the methods of
    `str` in a wrapper around it."""

    def guarded(item: Any, name: str) -> Any:
        found = get(item, name)
        if (
            (issubclass(type(item), CLOSED) and type(item) is not _Shown)
            or (name == "obj" and issubclass(type(item), AttributeError))
            or _follows(found)
        ):
            raise NotImplementedError(f"{name!r} of this is not in the restricted language")
        return found

    return guarded


def _follows(found: Any) -> bool:
    if type(found) is types.MethodDescriptorType:
        return found in (str.format, str.format_map)
    if type(found) is types.BuiltinMethodType:
        return found.__name__ in FOLLOWING and isinstance(found.__self__, str)
    return False


def _named(change: Callable[..., None]) -> Callable[..., None]:
    """`setattr` and `delattr`, which the library lets through for any name of what is the code's
    own: also `__class__`, and what the interpreter calls by itself."""

    def guarded(item: Any, name: str, *value: Any) -> None:
        if type(name) is not str:
            raise TypeError("attribute names are texts")
        if name.startswith("_"):
            raise AttributeError(f"{name!r} begins with an underscore")
        change(item, name, *value)

    return guarded


def _getattr(get: Callable[[Any, str], Any]) -> Callable[..., Any]:
    def guarded(item: Any, name: str, *default: Any) -> Any:
        try:
            return get(item, name)
        except AttributeError:
            if not default or (isinstance(name, str) and name.startswith("_")):
                raise
            return default[0]

    return guarded


def _hasattr(get: Callable[[Any, str], Any]) -> Callable[[Any, str], bool]:
    def guarded(item: Any, name: str) -> bool:
        try:
            get(item, name)
        except (AttributeError, NotImplementedError):
            return False
        return True

    return guarded


class _Print:
    """`print` becomes calls of this."""

    def __init__(self, _getattr_: Any = None) -> None:
        pass

    def _call_print(self, *items: Any, **options: Any) -> None:
        print(*items, **options)


_imported: Dict[str, types.ModuleType] = {}


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> types.ModuleType:
    if level or name not in MODULES:
        known = ", ".join(sorted(MODULES))
        raise ImportError(f"{name!r} is not in the restricted language; there are: {known}")
    if name not in _imported:
        module, shown = importlib.import_module(name), _Shown(name)
        names = MODULES[name] or getattr(module, "__all__", None) or dir(module)
        for item in names:
            value = getattr(module, item, None)
            # A module's own imports would lead on to everything.
            if not item.startswith("_") and not isinstance(value, types.ModuleType):
                setattr(shown, item, value)
        _imported[name] = shown
    return _imported[name]


def show(kind: type, error: BaseException, trace: Optional[types.TracebackType]) -> None:
    """As the interpreter does, from the code's own first frame on."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename != CODE:
        first = first.tb_next
    if isinstance(error, RestrictedSyntaxError):
        first = trace  # it has none; whoever reads our standard error looks for the head line
    traceback.print_exception(kind, error, first)


def main() -> None:
    sys.excepthook = show
    sys.path.insert(0, LIBRARY)
    with open(CODE, encoding="utf-8") as file:
        source = file.read()
    code, names = compiled(source), namespace()
    sys.path.remove(LIBRARY)
    exec(code, names)


if __name__ == "__main__":
    main()
