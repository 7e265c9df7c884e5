#!/usr/bin/env bash
# The tests once more as somebody without any privilege, in a copy of this checkout with an empty home.
# For root. Arguments go to pytest; the default is what privileges make a difference to: the jail, and
# neither builds, nor engines that run the same with and without them or need a daemon of root's.
set -euo pipefail

here="$(cd "$(dirname "$0")/.." && pwd)"
name="${BELLJAR_TEST_USER:-belljar-test}"

if [ "$(id -u)" != 0 ]; then
    echo "as_ordinary_user.sh: only root can become somebody else" >&2
    exit 1
fi

made_user=no
if ! command -v useradd >/dev/null; then name=nobody; fi
if ! id "$name" >/dev/null 2>&1; then
    useradd --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$name"
    made_user=yes
fi
place="$(mktemp -d "${TMPDIR:-/tmp}/belljar-as-user.XXXXXX")"

clean_up() {
    # Waits for whatever of the user's is still on its way out; never kills.
    rm -rf "$place" || { sleep 2; rm -rf "$place"; }
    if [ "$made_user" = yes ]; then userdel "$name" || true; fi
}
trap clean_up EXIT

mkdir "$place/checkout" "$place/home" "$place/tmp"

# What a clone would have, and what is not committed yet.
cd "$here"
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard
else
    find . -type f -not -path './.venv/*' -not -path './.git/*' -print0
fi | while IFS= read -r -d '' file; do
    if [ -e "$file" ] || [ -L "$file" ]; then printf '%s\0' "$file"; fi
done | tar --null --no-recursion -T - -cf - | tar -xf - -C "$place/checkout"

# Environments cost minutes to build and are the same for everybody who has the same kind of
# interpreter (their folders' names say so). `make environments` builds whatever does not fit.
built="${BELLJAR_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/belljar}/environments"
if [ -d "$built" ]; then
    mkdir -p "$place/home/.local/share/belljar"
    cp -a --reflink=auto "$built" "$place/home/.local/share/belljar/"
fi
chown -R "$name": "$place"

# A clean environment, but for how packages are found and how long the crash test may take.
kept=()
for variable in $(compgen -e | grep -E '^(PIP_|UV_|SSL_CERT|REQUESTS_CA|https?_proxy|HTTPS?_PROXY|BELLJAR_CRASH_)'); do
    kept+=("$variable=${!variable}")
done
as_user() {
    setpriv --reuid "$name" --regid "$(id -g "$name")" --init-groups --inh-caps=-all \
        env -i HOME="$place/home" USER="$name" LOGNAME="$name" TMPDIR="$place/tmp" \
        BELLJAR_TEST_HOME="$place/home/.local/share/belljar" \
        PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 "${kept[@]}" "$@"
}

cd "$place/checkout"
as_user make --no-print-directory setup environments
if [ $# = 0 ]; then
    set -- tests/conformance/test_jail.py tests/functional tests/security \
        --ignore=tests/functional/test_environments_build.py --ignore=tests/security/test_probes_engines.py \
        --ignore-glob='*test_layers*' --ignore-glob='*test_wasm*' --ignore-glob='*docker*' \
        --ignore-glob='*gvisor*' --ignore-glob='*microvm*' --ignore-glob='*test_programs*' \
        --ignore-glob='*test_wrong_use*' --ignore-glob='*test_restricted*' --ignore-glob='*test_cli*' --ignore-glob='*test_trail*' --ignore-glob='*test_filter*' \
        --ignore-glob='*test_mcp*' --ignore-glob='*test_skill*'
fi
as_user TESTS="not slow" tests/run.sh "$@"
