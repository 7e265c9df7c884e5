"""The Go environment after its packages are there: a warm build cache and two commands.

A sandbox mounts the cache read-only. Two facts about `go build` shape what is done here:
- It loads the program's whole import graph before it compiles anything, which takes longer than
  compiling and linking. The compiler and the linker, called directly with the table of the standard
  library's archives, are three times as fast, so `belljar-go-build` tries that first. Whatever
  that cannot do (a module, build constraints, embedded files, a mistake in the code) is left to
  `go build`, whose messages are those people know.
- It keeps an index of the sources, by path and time, in the cache, and finds no package at all when
  the index is missing and cannot be written (goindex=0 turns it off).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from belljar.environments.folders import Progress
from belljar.environments.install import run

_SETTINGS = """\
root={mount}
export XDG_CONFIG_HOME=$root/config GODEBUG="${{GODEBUG:+$GODEBUG,}}goindex=0"
export GOROOT=$root/go GOCACHE=$root/gocache CGO_ENABLED=0
export GOPATH="${{GOPATH:-/tmp/go}}" GOPROXY="${{GOPROXY:-off}}" GOTOOLCHAIN=local
export GOFLAGS="${{GOFLAGS--buildvcs=false}}"
"""

_GO = """\
#!/bin/sh
{settings}exec "$root/go/bin/go" "$@"
"""

_BUILD = """\
#!/bin/sh
# belljar-go-build OUTPUT: compile the program in the current folder.
{settings}
tools=$root/{tools}
output=$1
mkdir -p "${{output%/*}}" || exit 1

directly() {{
    [ -e go.mod ] && return 1
    set --
    for file in *.go; do
        case $file in
            main.go) ;;
            *_test.go) continue ;;
            *_*) return 1 ;; # perhaps for another system
        esac
        set -- "$@" "./$file"
    done
    if [ $# -gt 1 ]; then
        grep -qE '^//(go:build| \\+build)' "$@"
        [ $? -eq 1 ] || return 1
    fi
    "$tools/compile" -o "$output.a" -p main -complete -pack -importcfg "$root/importcfg" "$@" &&
        "$tools/link" -o "$output" -s -w -importcfg "$root/importcfg.link" "$output.a"
}}

if directly >/dev/null 2>&1; then
    rm -f "$output.a"
    exit 0
fi
rm -f "$output.a"
set -- *.go
if [ -e go.mod ]; then
    set -- .
elif [ $# -gt 1 ]; then
    export GO111MODULE=off # a folder that is no module is a package only in this mode
    set -- .
fi
exec "$root/go/bin/go" build -buildmode=exe -ldflags='-s -w' -o "$output" "$@"
"""


def prepare(folder: Path, *, mount: str, lock_fd: int, progress: Progress) -> None:
    """Compile the standard library into the cache and write the commands."""
    telemetry = folder / "config" / "go" / "telemetry"
    telemetry.mkdir(parents=True)
    (telemetry / "mode").write_text("off 2024-01-01\n")

    env = _environment(folder)
    archives = _compile_standard_library(folder, env=env, lock_fd=lock_fd, progress=progress)
    prefix = str(folder)
    importable, linkable = [], []
    for package, archive in archives:
        line = f"packagefile {package}={mount}{archive.removeprefix(prefix)}\n"
        linkable.append(line)
        if not {"internal", "vendor"}.intersection(package.split("/")):
            importable.append(line)
    (folder / "importcfg").write_text("".join(importable))
    (folder / "importcfg.link").write_text("".join(linkable))

    tools = next((folder / "go" / "pkg" / "tool").iterdir()).relative_to(folder)
    settings = _SETTINGS.format(mount=mount)
    _write_command(folder / "bin" / "go", _GO.format(settings=settings))
    _write_command(
        folder / "bin" / "belljar-go-build", _BUILD.format(settings=settings, tools=tools)
    )


def _environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "GOROOT": str(folder / "go"),
        "GOCACHE": str(folder / "gocache"),
        "GOPATH": str(folder / "gopath"),
        "GOENV": "off",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }


def _compile_standard_library(
    folder: Path, *, env: Mapping[str, str], lock_fd: int, progress: Progress
) -> list[tuple[str, str]]:
    """Each package of it and the archive it was compiled to."""
    go = str(folder / "go" / "bin" / "go")
    packages: list[str] = []
    progress("compiling the standard library", None)
    run([go, "list", "std"], cwd=folder, env=env, lock_fd=lock_fd, on_line=packages.append)

    compiled = 0

    def count(_line: str) -> None:
        nonlocal compiled
        compiled += 1
        done = min(1.0, compiled / len(packages))
        progress("compiling the standard library", done)

    run([go, "build", "-v", "std"], cwd=folder, env=env, lock_fd=lock_fd, on_line=count)

    archives: list[tuple[str, str]] = []

    def note(line: str) -> None:
        package, _, archive = line.rstrip("\n").partition("=")
        if archive:
            archives.append((package, archive))

    listing = [go, "list", "-export", "-f", "{{.ImportPath}}={{.Export}}", "std"]
    run(listing, cwd=folder, env=env, lock_fd=lock_fd, on_line=note)
    return archives


def _write_command(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
