"""`--allow-host`, `--secret` and their like, in every verb that makes sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from belljar.cli.table import Option
from belljar.errors import InvalidRequest

if TYPE_CHECKING:
    from belljar.network import Secret

OPTIONS = (
    Option(
        "allow_host",
        "--allow-host",
        "HOST[:PORT]",
        "A host that the code may reach, such as api.example.com or *.example.org:443. Repeatable.",
        "many",
    ),
    Option(
        "allow_method",
        "--allow-method",
        "METHOD",
        "Only these, such as GET. Default: any. Repeatable.",
        "many",
    ),
    Option(
        "allow_path",
        "--allow-path",
        "PATTERN",
        "Only these paths, such as /v1/*. Default: any. Repeatable.",
        "many",
    ),
    Option(
        "secret",
        "--secret",
        "NAME=SOURCE@HOST",
        "A credential that code uses without having it: API_KEY=env:API_KEY@api.example.com, or"
        " =file:PATH@HOST. Repeatable.",
        "many",
    ),
    Option(
        "secret_header",
        "--secret-header",
        "NAME=HEADER",
        "Where it goes, if not 'Authorization: Bearer {}'. Repeatable.",
        "many",
    ),
)


def options(
    allow_host: list[str],
    allow_method: list[str],
    allow_path: list[str],
    secret: list[str],
    secret_header: list[str],
) -> dict[str, Any]:
    """`network` and `secrets`, as far as something was given."""
    if not (allow_host or allow_method or allow_path or secret or secret_header):
        return {}
    found: dict[str, Any] = {}
    if allow_host:
        from belljar.network import Allow

        found["network"] = (Allow(*allow_host, methods=allow_method, paths=allow_path),)
    elif allow_method or allow_path:
        raise InvalidRequest(
            "--allow-method and --allow-path say what may be asked of a host",
            hint="name one with --allow-host",
        )
    if secret or secret_header:
        found["secrets"] = secrets(secret, secret_header)
    return found


def secrets(given: list[str], headers: list[str]) -> dict[str, Secret]:
    """No message repeats what stands after the name: somebody may have typed a value."""
    from belljar.network import SOURCES, Secret

    forms = dict(_pair("--secret-header", item, "NAME=HEADER") for item in headers)
    found: dict[str, Secret] = {}
    for item in given:
        name, rest = _pair("--secret", item, "NAME=SOURCE@HOST")
        source, at, host = rest.rpartition("@")
        if not at or not source.startswith(SOURCES):
            raise InvalidRequest(
                f"--secret {name}: say where the value is and which host it is for, never the value"
                " itself: others on this machine can read command lines",
                hint=f"--secret {name}=env:VARIABLE@HOST, or {name}=file:PATH@HOST",
            )
        header = forms.pop(name, None) or Secret.header
        found[name] = Secret(source, host=host, header=header)
    if forms:
        raise InvalidRequest(f"--secret-header: there is no --secret {next(iter(forms))}")
    return found


def _pair(option: str, item: str, form: str) -> tuple[str, str]:
    name, equals, rest = item.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidRequest(f"{option}: it must begin with NAME=", hint=f"write {option} {form}")
    return name, rest
