"""What to type to get a part of Belljar that is not installed."""

from __future__ import annotations

import sys

_TYPE = " -m pip install "


def install(*names: str) -> str:
    """For this interpreter, and from where this Belljar came: a checkout, or else by its name."""
    from shlex import quote

    source, editable = _source()
    wanted = f"{source or 'belljar'}[{','.join(names)}]"
    # Always in quotes: some shells take the brackets for a pattern.
    target = quote(wanted) if "'" in wanted else f"'{wanted}'"
    return f"{quote(sys.executable)}{_TYPE}{'-e ' if editable else ''}{target}"


def for_others(hint: str) -> str:
    """The hint for somebody at the other end of a network: paths here are not for them."""
    return "its operator can install what is missing" if _TYPE in hint else hint


def without_paths(text: str) -> str:
    """What this machine says about itself, for somebody at the other end of a network."""
    import re

    # What is the same everywhere may stay, and so may addresses of pages.
    end = r"[^\s'\",;()<>]*"
    own = rf"\b(?:unix|tcp|ssh)://{end}|(?<![\w.:/*])/(?!(?:workspace|data|dev|proc|sys)\b){end}"
    return re.sub(own, "…", for_others(text))


def _source() -> tuple[str, bool]:
    """The folder that pip installed it from, if it is still there (PEP 610), and whether it is used
    in place. Also that of a source tree that was never installed."""
    import json
    from importlib import metadata
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        told = json.loads(metadata.distribution("belljar").read_text("direct_url.json") or "{}")
        address = urlsplit(told.get("url", ""))
        folder = unquote(address.path) if address.scheme == "file" else ""
        editable = bool(told.get("dir_info", {}).get("editable"))
    except metadata.PackageNotFoundError:
        folder, editable = str(Path(__file__).parents[2]), True
    there = bool(folder) and Path(folder, "pyproject.toml").is_file()
    return (folder, editable) if there else ("", False)
