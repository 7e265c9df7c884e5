#!/usr/bin/env bash
# What the engines need, installed and started, for tests. For root on Debian; others are told so.
#
#   eval "$(tests/engines_up.sh up FOLDER)"    then run the tests
#   tests/engines_up.sh down FOLDER            stops what it started, and nothing else
#
# The daemon is one of our own, with everything it keeps in FOLDER: no other is touched. It has no
# bridge and changes no firewall, since no sandbox has a network.
set -euo pipefail

here="$(cd "$(dirname "$0")/.." && pwd)"
# One line per engine. What is there already is not installed again.
packages=(
    dockerd:docker.io mmdebstrap:mmdebstrap # docker
    runsc:runsc                             # docker+runsc, gvisor
    qemu-system-x86_64:qemu-system-x86      # microvm
    mkfs.erofs:erofs-utils                  # microvm
    ip:iproute2                             # tests/world
    pg_ctlcluster:postgresql                # the trail; tests start a cluster of their own
)

say() { echo "engines_up: $*" >&2; }

install() {
    local missing=() pair
    for pair in "${packages[@]}"; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    if [ ${#missing[@]} = 0 ]; then return; fi
    say "installing ${missing[*]}"
    # No daemon of the system's own: a package starts its service when it is installed.
    local policy=/usr/sbin/policy-rc.d made=no
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        made=yes
    fi
    local installed=0
    {
        apt-get install --yes --no-install-recommends "${missing[@]}" ||
            { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; }
    } >&2 || installed=$?
    if [ $made = yes ]; then rm -f $policy; fi
    return $installed
}

start_docker() {
    local place=$1 socket=$1/docker.sock
    mkdir -p "$place/data" "$place/exec"
    cat >"$place/daemon.json" <<JSON
{"runtimes": {"runsc": {"path": "$(command -v runsc)",
 "runtimeArgs": ["--platform=ptrace", "--network=none"]}}}
JSON
    # Not in the group of whoever called: an interrupt there is not for the daemon. Its mounts are its
    # own: a test that looks for what another engine left must not see them come and go.
    setsid unshare --mount --propagation slave dockerd --config-file "$place/daemon.json" \
        --data-root "$place/data" --exec-root "$place/exec" --pidfile "$place/docker.pid" \
        --host "unix://$socket" --iptables=false --bridge=none >"$place/docker.log" 2>&1 </dev/null &
    local tries
    for tries in $(seq 100); do
        if [ -S "$socket" ] && [ -s "$place/docker.pid" ]; then break; fi
        if [ "$tries" = 100 ]; then
            say "dockerd did not start:"
            tail -20 "$place/docker.log" >&2
            return 1
        fi
        sleep 0.1
    done
    export DOCKER_HOST="unix://$socket"
    "$here/.venv/bin/belljar" image build base data >&2
    echo "export DOCKER_HOST='$DOCKER_HOST'"
}

up() {
    if [ "$(id -u)" != 0 ]; then
        say "not root: engines that are not there already are skipped by the tests"
        return
    fi
    if ! command -v apt-get >/dev/null; then
        say "no apt-get here: engines that are not there already are skipped by the tests"
        return
    fi
    install
    start_docker "$1"
    "$here/.venv/bin/belljar" image build --microvm >&2
    echo "export BELLJAR_REQUIRE_ENGINES=all"
}

down() {
    if [ -s "$1/docker.pid" ]; then
        local pid
        pid="$(cat "$1/docker.pid")"
        kill "$pid" 2>/dev/null || true
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
    fi
    # A file system that is still mounted in there is not deleted through.
    rm -rf --one-file-system "$1"
}

case "${1:-}" in
    up) mkdir -p "$2" && up "$(cd "$2" && pwd)" ;;
    down) if [ -d "$2" ]; then down "$(cd "$2" && pwd)"; fi ;;
    *) sed -n '2,8p' "$0" >&2 && exit 2 ;;
esac
