"""From a request to a decision (R5): everything that can be refused is refused here.

Pure: nothing is read, opened or started, and no engine is imported. The order is the one in which
a caller would want to hear about mistakes: what to run, what it gets, what comes along.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast, get_args

from belljar.errors import (
    CodeTooLarge,
    InvalidRequest,
    LimitExceeded,
    UnknownEngine,
    UnknownEnvironment,
    UnknownLanguage,
    Unsupported,
)
from belljar.model import MIB, NEEDS, FilterMode, LanguageLevel, Limits, Need, Request
from belljar.policy.limits import check_limits, check_minimum
from belljar.policy.names import check_names
from belljar.policy.quote import quote, size
from belljar.policy.variables import check_variables
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.network import Allow, Secret

FILTER_MODES: tuple[str, ...] = get_args(FilterMode)
LANGUAGE_LEVELS: tuple[str, ...] = get_args(LanguageLevel)
STDIN_BYTES = 16 * MIB
NAME_CHARACTERS = 64

_ENVIRONMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PAGE_BYTES = 4096


class Language(Protocol):
    """What policy needs to know of a runtime."""

    @property
    def name(self) -> str: ...
    @property
    def minimum_memory_bytes(self) -> int: ...
    @property
    def minimum_processes(self) -> int: ...
    @property
    def file_name(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A request that may run."""

    request: Request
    """Normalised: the language's own name, limits in their right types, copies of the rest."""
    filter: FilterMode
    """The mode to apply; "off" where the static filter cannot read the language."""
    warnings: tuple[str, ...] = ()


def decide(
    request: Request,
    settings: Settings,
    *,
    languages: Callable[[str], Language],
    engines: Collection[str],
    known_languages: Collection[str] = (),
) -> Decision:
    """The decision, or an InvalidRequest that names the field and says what would be right.

    `languages` looks a name up, or raises UnknownLanguage; what is no name is not looked up.
    """
    if not isinstance(request, Request):
        raise InvalidRequest(f"request: must be a Request, not {quote(request)}")
    language = _language(request.language, languages, known_languages)
    code_bytes = _check_code(request.code, settings.code_bytes)
    _check_environment(request.environment)
    _check_engine(request.engine, engines)
    need = _need(request.need, request.engine)
    if not isinstance(request.fresh_exec, bool):
        raise InvalidRequest(f"fresh_exec: must be True or False, not {quote(request.fresh_exec)}")
    _check_level(request.language_level, language.name)
    mode, warnings = _filter(request.filter, language.name)
    packages = _packages(request.packages, language.name)

    limits = check_limits(request.limits, settings)
    for name in ("memory_bytes", "processes"):
        check_minimum(name, limits, getattr(language, f"minimum_{name}"), who=language.name)

    env = check_variables(request.env, language=language.name, fresh_exec=request.fresh_exec)
    stdin = _content("stdin", request.stdin)
    if len(stdin) > STDIN_BYTES:
        raise LimitExceeded(
            f"stdin: {size(len(stdin))} is above the maximum of {size(STDIN_BYTES)}",
            hint="send large data as an input file",
        )
    files, file_folders = _files("files", request.files, reserved=language.file_name)
    inputs, input_folders = _files("inputs", request.inputs)
    sizes = [code_bytes, *map(len, files.values()), *map(len, inputs.values())]
    network, secrets, env = _network(request, settings, env)
    _check_disk(sizes, folders=len(file_folders) + len(input_folders), limits=limits)

    return Decision(
        request=dataclasses.replace(
            request,
            language=language.name,
            need=need,
            limits=limits,
            stdin=stdin,
            env=env,
            files=files,
            inputs=inputs,
            packages=packages,
            network=network,
            secrets=secrets,
        ),
        filter=mode,
        warnings=warnings,
    )


def _language(
    name: object, languages: Callable[[str], Language], known: Collection[str]
) -> Language:
    if isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS:
        return languages(name)
    raise UnknownLanguage(
        f"language: {quote(name)} is unknown", hint=f"known languages: {', '.join(known)}"
    )


def _check_code(code: object, most: int) -> int:
    """The length of the code in bytes."""
    if not isinstance(code, str):
        raise InvalidRequest(f"code: must be text, not {quote(code)}")
    # No character takes less than a byte, so that a huge text need not be encoded to be refused.
    length, shown = len(code), f"at least {len(code)}"
    if length <= most:
        try:
            length = len(code.encode())
            shown = f"{length}"
        except UnicodeEncodeError as error:
            line = code.count("\n", 0, error.start) + 1
            raise InvalidRequest(
                f"code: line {line} is not valid Unicode (a lone surrogate)",
                hint="decode the source with errors='strict' before sending it",
            ) from None
    if length > most:
        raise CodeTooLarge(
            f"code: {shown} bytes are above the maximum of {most} bytes",
            hint="send data as files; the maximum is the operator's setting code_bytes",
        )
    return length


def _check_environment(name: object) -> None:
    fits = isinstance(name, str) and len(name) <= NAME_CHARACTERS and _ENVIRONMENT.fullmatch(name)
    if not fits:
        raise UnknownEnvironment(
            f"environment: {quote(name)} is not the name of an environment",
            hint='names are letters, digits, ".", "_" and "-", for example "base" or "data"',
        )


def _check_engine(name: object, known: Collection[str]) -> None:
    if not isinstance(name, str) or name not in known:
        raise UnknownEngine(
            f"engine: {quote(name)} is unknown",
            hint=f"known engines: {', '.join(known)}",
        )


def _need(given: object, engine: str) -> tuple[Need, ...]:
    """Each once, in the order of NEEDS, so that equal needs are equal."""
    if given == ():
        return ()
    needs = [given] if isinstance(given, str) else given
    if not isinstance(needs, Collection):
        raise InvalidRequest(f"need: must be a name or several, not {quote(given)}")
    for name in needs:
        if name not in NEEDS:
            raise InvalidRequest(
                f"need: {quote(name)} is unknown", hint=f"one or more of {', '.join(NEEDS)}"
            )
    if needs and engine != "auto":
        raise InvalidRequest(
            f"need: the engine is already named ({engine})", hint="give engine or need, not both"
        )
    return cast("tuple[Need, ...]", tuple(name for name in NEEDS if name in needs))


def _check_level(level: object, language: str) -> None:
    if not isinstance(level, str) or level not in LANGUAGE_LEVELS:
        raise InvalidRequest(
            f"language_level: {quote(level)} is unknown",
            hint=f"one of {', '.join(LANGUAGE_LEVELS)}",
        )
    if level == "restricted" and language != "python":
        raise InvalidRequest(
            f"language_level: there is no restricted {language}",
            hint="only Python has a restricted level",
        )


def _filter(mode: object, language: str) -> tuple[FilterMode, tuple[str, ...]]:
    if not isinstance(mode, str) or mode not in FILTER_MODES:
        raise InvalidRequest(
            f"filter: {quote(mode)} is unknown",
            hint=f"one of {', '.join(FILTER_MODES)}",
        )
    if language == "python" or mode == "off":
        return cast(FilterMode, mode), ()
    if mode == "deny":
        raise InvalidRequest(
            f"filter: {language} code cannot be filtered",
            hint='the static filter reads Python only; use filter="off" or "warn"',
        )
    return "off", (f"filter: not analysed, the static filter reads Python only, not {language}",)


def _packages(given: object, language: str) -> tuple[str, ...]:
    """In normal form. Which of them may be had depends on the environment as well, so that is
    judged when the environment is known."""
    if given == ():
        return ()
    from belljar.policy.packages import parse_all  # few runs want any

    found = parse_all(given)
    if found and language != "python":
        raise Unsupported(f"packages: there are none for {language}", hint="they are for Python")
    return tuple(map(str, found))


def _network(
    request: Request, settings: Settings, env: dict[str, str]
) -> tuple[tuple[Allow, ...], dict[str, Secret], dict[str, str]]:
    if not request.network and request.secrets == {}:
        return (), {}, env
    from belljar.network import rules
    from belljar.policy import network

    found = network.check_network(request.network, settings)
    if found:
        network.check_environment(env)
        if request.language_level == "restricted":
            raise Unsupported("network: restricted Python has none", hint="leave out either")
    secrets = network.check_secrets(request.secrets, found, env)
    if found and network.names_packages(rules(request.network)):
        env = {**network.package_variables(settings), **env}
    return found, secrets, env


def _files(
    field: str, given: object, *, reserved: str = ""
) -> tuple[dict[str, bytes], Collection[str]]:
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{field}: must map names to contents, not {quote(given)}")
    if not given:
        return {}, ()
    folders = check_names(field, given, reserved=reserved)
    contents = {name: _content(f"{field}[{quote(name)}]", value) for name, value in given.items()}
    return contents, folders


def _content(field: str, value: object) -> bytes:
    """Bytes as they are, text as UTF-8."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{field}: not valid Unicode (a lone surrogate)") from None
    raise InvalidRequest(f"{field}: must be bytes or text, not {quote(value)}")


def _check_disk(sizes: list[int], *, folders: int, limits: Limits) -> None:
    """Whether code and files fit into the sandbox's disk, counted as a tmpfs counts: in pages."""
    total = sum(-(-length // _PAGE_BYTES) * _PAGE_BYTES for length in sizes)
    if total > limits.disk_bytes:
        raise LimitExceeded(
            f"files: code, files and inputs take {size(total)}, more than the sandbox's disk of "
            f"{size(limits.disk_bytes)}",
            hint="ask for more disk_bytes",
        )
    if len(sizes) + folders > limits.disk_files:
        raise LimitExceeded(
            f"files: {len(sizes) + folders} files and folders are more than "
            f"limits.disk_files of {limits.disk_files}",
            hint="ask for more disk_files",
        )
