#!/usr/bin/env bash
# All tests: those that bear company side by side, then those that do not. Arguments go to pytest;
# TESTS is an expression of markers.
set -euo pipefail
here="$(dirname "$0")"
python="$here/../.venv/bin/python"
tests="${TESTS:+($TESTS) and }"
failed="$(mktemp -d)"
trap 'rm -rf "$failed"' EXIT

# More than there are cores: much of a test's time is waiting. What fails in that crowd is tried once
# more by itself, and named; but an attack that got through once got through.
beside() {
    "$python" -m pytest -m "${tests}not alone" -o cache_dir="$failed" "$@"
}
status=0
beside -n "${WORKERS:-4}" "$@" || status=$?
if [ "$status" = 1 ] && "$python" "$here/second_chance.py" "$failed"; then
    status=0
    beside --last-failed "$@" || status=$?
fi
[ "$status" = 0 ] || exit "$status"
"$python" -m pytest -m "${tests}alone" "$@" || [ $? = 5 ] # 5: there were none among those asked for
