"""Options as data, read in two ways that must agree: by typer, and by a few lines of our own.

Typer gives help and explains mistakes, but loading it takes longer than starting a sandbox. So a
command line without mistakes is read by `parse`, and everything else is left to typer. Both see
the same table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

Shape = Literal["text", "many", "flag", "argument"]


class Option:
    """`keyword`: the verb's parameter. `names`: as typed, separated by blanks."""

    def __init__(
        self,
        keyword: str,
        names: str,
        metavar: str,
        help: str,
        shape: Shape = "text",
        *,
        default: str | None = None,
    ) -> None:
        self.keyword, self.names, self.metavar, self.help = keyword, names, metavar, help
        self.shape: Shape = shape
        self.default = default


def parse(options: Sequence[Option], arguments: Sequence[str]) -> dict[str, Any] | None:
    """The values by keyword, or None for anything that needs explaining (or for --help)."""
    values: dict[str, Any] = {option.keyword: _empty(option) for option in options}
    by_name = {name: option for option in options for name in option.names.split()}
    places = [option for option in options if option.shape == "argument"]
    rest = iter(arguments)
    for word in rest:
        if word == "-" or not word.startswith("-"):
            if not places:
                return None
            values[places.pop(0).keyword] = word
            continue
        name, equals, value = word.partition("=")
        option = by_name.get(name)
        # `-c=x` and `-cx` are left to typer, with all else that is rarely typed.
        if option is None or (equals and not name.startswith("--")):
            return None
        if option.shape == "flag":
            if equals:
                return None
            values[option.keyword] = True
            continue
        given = value if equals else next(rest, None)
        if given is None:
            return None
        if option.shape == "many":
            values[option.keyword].append(given)
        else:
            values[option.keyword] = given
    return values


def _empty(option: Option) -> Any:
    return {"flag": False, "many": []}.get(option.shape, option.default)


def command(options: Sequence[Option], verb: Callable[..., int]) -> Callable[..., int]:
    """The verb as a function with the signature that typer reads."""
    import inspect
    from typing import Annotated

    import typer

    types: dict[str, Any] = {"flag": bool, "many": list[str] | None}
    parameters = []
    for option in options:
        names = [] if option.shape == "argument" else option.names.split()
        metavar = None if option.shape == "flag" else option.metavar
        make: Any = typer.Argument if option.shape == "argument" else typer.Option
        mark = make(*names, metavar=metavar, help=option.help)
        kind = types.get(option.shape, str | None)
        parameters.append(
            inspect.Parameter(
                option.keyword,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if option.shape == "flag" else option.default,
                annotation=Annotated[kind, mark],
            )
        )

    def typed(**values: Any) -> int:
        filled = {
            option.keyword: list(values[option.keyword] or [])
            if option.shape == "many"
            else values[option.keyword]
            for option in options
        }
        return verb(**filled)

    typed.__name__, typed.__doc__ = verb.__name__, verb.__doc__
    typed.__annotations__ = {item.name: item.annotation for item in parameters} | {"return": int}
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return typed
