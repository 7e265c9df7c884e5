"""The static filter's reading of Python source. A program of its own: standard library, any
Python from 3.9, no Belljar. It runs as guest code inside a sandbox, because to parse hostile
source is to risk the parser.

Standard input: {"source": text, "files": {name: base64 or null}, "rules": Rules.to_dict()}.
Standard output: {"findings": [{"line", "rule", "message"}], "unparsable"}.
"""

from __future__ import annotations

import ast
import base64
import json
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

FINDINGS = 100
PASSES = 8
CHAIN = 32  # parts looked at in one chain, or a long one would cost the square of its length
TARGETS = 16
STEPS = 3_000_000

IMPORTERS = frozenset({"__import__", "importlib.import_module", "importlib.__import__"})
OPENERS = frozenset({"open", "io.open", "os.open", "codecs.open", "pathlib.Path"})
GETTERS = frozenset({"operator.attrgetter", "operator.methodcaller"})
SEQUENCE = (ast.List, ast.Tuple)
UTF8 = frozenset({"utf-8", "utf8", "utf-8-sig", "ascii", "us-ascii"})
STANDARD = frozenset(getattr(sys, "stdlib_module_names", sys.builtin_module_names))
COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


class Found(NamedTuple):
    line: int
    rule: str
    message: str


class Rules:
    def __init__(self, given: dict[str, Any]) -> None:
        self.modules: dict[str, str] = {}
        self.attributes: dict[str, str] = {}
        self.calls: dict[str, list[tuple[str, str]]] = {}  # by what is before the first dot
        for kind, name, why in given["blocked"]:
            if kind == "module":
                self.modules[name] = why
            elif kind == "attribute":
                self.attributes[name] = why
            else:
                self.calls.setdefault(name.partition(".")[0], []).append((name, why))
        self.allowed: list[str] | None = given["allowed_modules"]
        self.paths: list[str] | None = given["allowed_paths"]
        self.dynamic: bool = given["dynamic"]

    def module(self, name: str) -> tuple[str, str]:
        """(rule, why) if the module may not be imported, or nothing twice."""
        parts = name.split(".")[:CHAIN]
        parents = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        for parent in parents:
            if parent in self.modules:
                return "blocked-module", self.modules[parent]
        if self.allowed is not None and not any(parent in self.allowed for parent in parents):
            return "module-not-allowed", "it is not among the allowed modules"
        return "", ""

    def call(self, parts: list[str]) -> tuple[str, str]:
        """(name, why) if something blocked is in these dotted parts, or nothing twice.

        Modules hang on other modules (`shutil.os.system`, `random._os`), so any part may be the
        start; but a builtin counts only by itself or on `builtins`: `model.eval()` is not one.
        """
        for start, part in enumerate(parts):
            alone = start == 0 or parts[start - 1] in ("builtins", "__builtins__")
            for first in {part, part.lstrip("_")} & self.calls.keys():
                for pattern, why in self.calls[first]:
                    dots = pattern.count(".")
                    name = ".".join([first, *parts[start + 1 : start + 1 + dots]])
                    if (alone or dots) and pattern in (name, name[: len(pattern) - 1] + "*"):
                        return ".".join(parts[start:]), why
        return "", ""

    def sensitive(self, names: set[str]) -> bool:
        """Whether one of them is a module with something blocked in it."""
        lasts = {name.rpartition(".")[2].lstrip("_") for name in names}
        patterns = [pattern for last in lasts for pattern, _ in self.calls.get(last, ())]
        return "builtins" in lasts or any("." in pattern for pattern in patterns)


class Reading:
    """One source text, with what its names stand for.

    Names are followed without regard to order or scope: whatever a name may stand for anywhere,
    it stands for everywhere. A name that is assigned nowhere stands for itself, since a kept
    sandbox may have it from an earlier run.
    """

    def __init__(self, tree: ast.Module, rules: Rules, local: set[str]) -> None:
        self.rules = rules
        self.local = local
        self.nodes = list(ast.walk(tree))
        self.own = own_names(tree, self.nodes)
        self.aliases: dict[str, set[str]] = {}
        self.starred: set[str] = set()
        self.found: set[Found] = set()
        self.steps = 0
        self.known: dict[int, set[str]] = {}
        self.judged: dict[str, tuple[str, str]] = {}

    def read(self) -> set[Found]:
        self.follow_imports()
        self.follow_assignments()
        for node in self.nodes:
            self.look(node)
        return self.found

    # What names stand for

    def follow_imports(self) -> None:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for item in node.names:
                    bound = item.asname or item.name.partition(".")[0]
                    self.alias(bound, item.name if item.asname else bound)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for item in node.names:
                    if item.name == "*":
                        self.starred.add(node.module)
                    else:
                        self.alias(item.asname or item.name, f"{node.module}.{item.name}")

    def follow_assignments(self) -> None:
        pairs = list(assignments(self.nodes))
        for _ in range(PASSES):
            before = sum(map(len, self.aliases.values()))
            for name, value in pairs:
                for target in self.resolve(value) - {name}:
                    self.alias(name, target)
            self.known.clear()
            if before == sum(map(len, self.aliases.values())):
                break

    def alias(self, name: str, target: str) -> None:
        if len(self.aliases.setdefault(name, set())) < TARGETS and target.count(".") <= CHAIN:
            self.aliases[name].add(target)

    def resolve(self, node: ast.AST) -> set[str]:
        """The dotted names an expression may stand for; "?" is a start that cannot be said."""
        if id(node) not in self.known:
            ends: list[str] = []
            starts = self.walk_down(node, ends) or ({"?"} if ends else set())
            self.known[id(node)] = {".".join([start, *reversed(ends)]) for start in starts}
        return self.known[id(node)]

    def walk_down(self, node: ast.AST, ends: list[str]) -> set[str]:
        """From `a.b.c` down to `a`, gathering c, b; through getattr, vars, imports and items."""
        while len(ends) < CHAIN:
            self.steps += 1
            if self.steps > STEPS:
                raise RecursionError
            if isinstance(node, ast.Name):
                return self.stands_for(node)
            if isinstance(node, ast.NamedExpr):
                node = node.value
            elif isinstance(node, ast.Attribute):
                if node.attr != "__dict__":
                    ends.append(node.attr)
                node = node.value
            elif isinstance(node, ast.Subscript) and (key := folded(node.slice)) is not None:
                if "sys.modules" in self.resolve(node.value):
                    return {key}
                ends.append(key)
                node = node.value
            elif isinstance(node, ast.Call) and node.args:
                functions = self.resolve(node.func)
                if functions & IMPORTERS and (name := folded(node.args[0])):
                    return {name, name.partition(".")[0]}
                if "getattr" in functions and len(node.args) > 1 and (name := folded(node.args[1])):
                    ends.append(name)
                elif "vars" not in functions:
                    break
                node = node.args[0]
            else:
                break
        return set()

    def stands_for(self, node: ast.Name) -> set[str]:
        targets = self.aliases.get(node.id, set())
        hidden = node.lineno > self.own.get(node.id, sys.maxsize)
        if hidden or (targets and node.id not in self.rules.calls):
            return targets
        return {node.id, *targets, *(f"{module}.{node.id}" for module in self.starred)}

    # What is remarked on

    def look(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for item in node.names:
                self.module(node, item.name)
        elif isinstance(node, ast.ImportFrom):
            if not node.level and not self.module(node, node.module or ""):
                for full in [f"{node.module}.{item.name}" for item in node.names]:
                    if full in self.rules.modules:
                        self.module(node, full)
                    self.reference(node, {full})
                    self.attribute(node, full.rpartition(".")[2])
        elif isinstance(node, ast.Name):
            self.reference(node, self.resolve(node))
            self.attribute(node, node.id, only_dunder=True)
        elif isinstance(node, ast.Attribute):
            self.reference(node, self.resolve(node))
            self.attribute(node, node.attr)
            if node.attr == "__dict__":
                self.computed(node, self.resolve(node.value))
        elif isinstance(node, ast.Subscript):
            self.reference(node, self.resolve(node))
            self.attribute(node, folded(node.slice), only_dunder=True)
        elif isinstance(node, ast.Call):
            named = [item.value for item in node.keywords if item.arg in ("name", "file")]
            if first := [*node.args, *named][:1]:
                self.call(node, first[0], self.resolve(node.func))
        elif type(node).__name__ == "MatchClass":  # since 3.10: `case object(__bases__=x)`
            for attribute in getattr(node, "kwd_attrs", ()):
                self.attribute(node, attribute)

    def module(self, node: ast.AST, name: str) -> bool:
        rule, why = self.rules.module(name)
        if rule == "module-not-allowed" and name.partition(".")[0] in self.local:
            rule = ""
        if rule:
            self.add(node, rule, f"import of {short(name)}: {why}")
        return rule != ""

    def reference(self, node: ast.AST, names: set[str]) -> None:
        for name in names:
            if name not in self.judged:
                parts = name.split(".")
                self.steps += sum(len(self.rules.calls.get(part, "?")) for part in parts)
                self.judged[name] = self.rules.call(parts)
            found, why = self.judged[name]
            if found:
                self.add(node, "blocked-call", f"{short(found)}: {why}")

    def attribute(self, node: ast.AST, name: str | None, *, only_dunder: bool = False) -> None:
        if name in self.rules.attributes and (name.startswith("__") or not only_dunder):
            self.add(node, "blocked-attribute", f"{name}: {self.rules.attributes[name]}")

    def call(self, node: ast.Call, first: ast.expr, functions: set[str]) -> None:
        if functions & {"getattr", "vars"}:
            name = node.args[1] if len(node.args) > 1 else None
            self.attribute(node, folded(name))
            self.reference(node, self.resolve(node))
            if not isinstance(name, ast.Constant):
                self.computed(node, self.resolve(first))
        elif functions & IMPORTERS:
            self.module(node, folded(first) or "?")
            if self.rules.dynamic and not isinstance(first, ast.Constant):
                self.add(node, "dynamic-import", "an import by a computed name")
        elif functions & OPENERS:
            self.path(node, folded(first))
        elif functions & GETTERS:
            for part in ".".join(folded(item) or "" for item in node.args).split("."):
                self.attribute(node, part)

    def computed(self, node: ast.AST, modules: set[str]) -> None:
        if self.rules.dynamic and self.rules.sensitive(modules):
            message = f"an attribute of {short(min(modules))} by a computed name"
            self.add(node, "dynamic-attribute", message)

    def path(self, node: ast.AST, path: str | None) -> None:
        if path is None or self.rules.paths is None:
            return
        inside = any(f"{path}/".startswith(f"{p.rstrip('/')}/") for p in self.rules.paths)
        if ".." in path.split("/") or (path.startswith("/") and not inside):
            self.add(node, "path", f"open of {short(path)}: outside the sandbox's folders")

    def add(self, node: ast.AST, rule: str, message: str) -> None:
        self.found.add(Found(getattr(node, "lineno", 0), rule, message[:400]))


def own_names(tree: ast.Module, nodes: list[ast.AST]) -> dict[str, int]:
    """The module's own functions and classes, by line: after it `def eval` hides the builtin."""
    own: dict[str, int] = {}
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.setdefault(statement.name, statement.lineno)
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            own.pop(node.id, None)
    return own


def assignments(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                pairs = [(target, node.value)]
                if isinstance(target, SEQUENCE) and isinstance(node.value, SEQUENCE):
                    pairs = list(zip(target.elts, node.value.elts))  # noqa: B905
                for left, right in pairs:
                    if isinstance(left, ast.Name):
                        yield left.id, right


def folded(node: ast.AST | None, depth: int = 0) -> str | None:
    """The text an expression amounts to, if it is made of constants."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    glue = ""
    if depth > CHAIN:
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [node.left, node.right]
    elif isinstance(node, ast.JoinedStr):
        parts = node.values
    elif isinstance(node, ast.FormattedValue) and node.conversion == -1 and not node.format_spec:
        parts = [node.value]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        base, items = folded(node.func.value, depth + 1), node.args[0]
        if node.func.attr != "join" or base is None or not isinstance(items, SEQUENCE):
            return None
        glue, parts = base, items.elts
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        base = folded(node.value, depth + 1)
        return base[::-1] if base and isinstance(node.slice.step, ast.UnaryOp) else None
    else:
        return None
    texts = [folded(part, depth + 1) for part in parts]
    return glue.join(text for text in texts if text) if None not in texts else None


def short(text: str) -> str:
    shown = ascii(text[:81])[1:-1]
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def encoding_remarks(source: bytes) -> Iterator[Found]:
    """Source that another reader of the same bytes may take for something else."""
    for number, line in enumerate(re.split(rb"\r\n|\r|\n", source, maxsplit=2)[:2], 1):
        name = "".join(cookie.decode() for cookie in COOKIE.findall(line)) or "utf-8"
        if name.lower().replace("_", "-") not in UTF8:
            yield Found(number, "encoding", f"declares the encoding {short(name)}; write UTF-8")
    if b"\0" in source:
        number = source.count(b"\n", 0, source.index(b"\0")) + 1
        yield Found(number, "encoding", "a NUL byte: readers disagree on whether the source ends")


def analyse(source: bytes, rules: Rules, local: set[str]) -> tuple[set[Found], str]:
    """(findings, why it could not be analysed). A syntax error is neither: the code will say so."""
    found = set(encoding_remarks(source))
    failure = ""
    try:
        # Bytes, as the runner compiles it, so that an encoding line counts.
        found |= Reading(ast.parse(source), rules, local).read()
    except SyntaxError:
        pass
    except (RecursionError, MemoryError):
        failure = "it is nested too deeply or too complex"
    except (ValueError, LookupError, SystemError) as error:
        # Older interpreters say ValueError for a NUL byte, which newer ones call a syntax error.
        if not (b"\0" in source and type(error) is ValueError):
            failure = f"the parser failed with {type(error).__name__}"
    return found, failure


def answer(request: dict[str, Any]) -> dict[str, Any]:
    rules = Rules(request["rules"])
    files = request["files"]
    # A file named like a module of the standard library gets that module, not itself, imported.
    local = {name.partition("/")[0].partition(".")[0] for name in files} - STANDARD
    findings: list[Found] = []
    failed: list[str] = []
    encoded = base64.b64encode(request["source"].encode("utf-8", "surrogatepass"))
    for name, content in [("", encoded), *sorted(files.items())]:
        prefix = f"{short(name)}: " if name else ""
        if content is None:
            failed.append(f"{prefix}it is not source, or too much of it")
            continue
        found, failure = analyse(base64.b64decode(content), rules, local)
        findings += [item._replace(message=prefix + item.message) for item in sorted(found)]
        failed += [prefix + failure] if failure else []
    if len(findings) > FINDINGS:
        findings[FINDINGS:] = [Found(0, "more", f"{len(findings) - FINDINGS} further findings")]
    return {
        "findings": [item._asdict() for item in findings],
        "unparsable": failed[0] if failed else None,
    }


def main() -> None:
    warnings.simplefilter("ignore")
    print(json.dumps(answer(json.loads(sys.stdin.buffer.read()))))


if __name__ == "__main__":
    main()
