"""`belljar image`: what the engines with images of their own start from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from belljar.cli.say import say

if TYPE_CHECKING:
    from pathlib import Path

    from belljar.environments.catalogue import Environment
    from belljar.settings import Settings

EPILOG = """\
\b
Examples:
  belljar image build
  belljar image build base data
  belljar image build base --suite trixie --method mmdebstrap
  belljar image build --microvm
  belljar image build --wasm
"""

app = typer.Typer(
    help="Build the images that engines with images of their own start from.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
)


@app.command()
def build(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="base (the default), data, node, go."),
    ] = None,
    suite: Annotated[
        str, typer.Option(help="Debian's release; by default the one with our version of Python.")
    ] = "",
    method: Annotated[
        str, typer.Option(help="dockerfile, mmdebstrap, or auto: the first that works.")
    ] = "auto",
    microvm: Annotated[
        bool, typer.Option("--microvm", help="Instead, what microVMs boot: a kernel and a root.")
    ] = False,
    wasm: Annotated[
        bool, typer.Option("--wasm", help="Instead, the interpreters of the wasm engine.")
    ] = False,
    kernel: Annotated[
        str, typer.Option(metavar="FILE", help="With --microvm: this kernel, not Debian's.")
    ] = "",
    modules: Annotated[
        str, typer.Option(metavar="FOLDER", help="With --kernel: its /lib/modules/<release>.")
    ] = "",
) -> int:
    """Build Docker images: a small Debian with Python, and the data packages on top of it."""
    from belljar.errors import InvalidRequest
    from belljar.settings import Settings

    if bool(kernel) != bool(modules) or (kernel and not microvm):
        raise InvalidRequest("--kernel, --modules: they belong together, and to --microvm")
    if microvm:
        if names:
            raise InvalidRequest("--microvm: there is only one such image", hint="leave the names")
        print(_microvm(Settings(), kernel, modules))
        return 0
    if wasm:
        from belljar.engines.wasm import fetch

        if names:
            raise InvalidRequest("--wasm: there is only one such set", hint="leave the names")
        print(fetch.build(Settings(), progress=say))
        return 0
    wanted = names or ["base"]
    for name in wanted:
        if name not in ("base", "data", "node", "go"):
            raise InvalidRequest(f"image: {name!r} is unknown", hint="known: base, data, node, go")
    if method not in ("auto", "dockerfile", "mmdebstrap"):
        raise InvalidRequest(
            f"method: {method!r} is unknown", hint="known: auto, dockerfile, mmdebstrap"
        )
    for name in sorted(set(wanted), key=lambda name: (name != "base", name)):
        print(_docker(name, Settings(), suite=suite, method=method))
    return 0


def _microvm(settings: Settings, kernel: str, modules: str) -> Path:
    from pathlib import Path

    from belljar.cli.progress import Bar
    from belljar.engines.microvm import image

    progress = Bar(title="microvm")
    try:
        return image.build(
            settings,
            kernel=Path(kernel) if kernel else None,
            modules_folder=Path(modules) if modules else None,
            progress=progress.update,
        ).folder
    finally:
        progress.close()


def _docker(name: str, settings: Settings, *, suite: str, method: str) -> str:
    from belljar.engines.docker import images
    from belljar.engines.docker.daemon import Daemon, find_address

    daemon = Daemon(find_address(settings.docker_host))
    if name == "base":
        chosen = suite or images.suite_for()
        return images.build_base(daemon, settings, suite=chosen, method=method, say=say)
    from belljar.environments import catalogue

    environment = catalogue.get(name)
    folder = _packages(environment, settings, images.suite_of(daemon, settings))
    return images.build_on_base(daemon, settings, name, folder, environment.mount_path, say=say)


def _packages(environment: Environment, settings: Settings, suite: str | None) -> Path:
    """The packages for the base image's Python: the environment's own folder, if it fits."""
    import os
    import sys

    from belljar.cli.progress import Bar
    from belljar.engines.docker import images
    from belljar.environments import build as builder
    from belljar.environments import install

    ours = sys.version_info[:2]
    theirs = images.python_of(suite) if suite and environment.runtime == "python" else ours
    progress = Bar(title=environment.name)
    try:
        if theirs == ours:
            return builder.build(environment, settings, progress=progress.update)
        version = "{}.{}".format(*theirs)
        folder = settings.home.absolute() / "images" / f"{environment.name}-{version}"
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            install.install_packages(
                environment.packages,
                folder,
                bytecode=False,
                lock_fd=lock,
                progress=progress.update,
                python_version=version,
            )
        finally:
            os.close(lock)
        return folder
    finally:
        progress.close()
