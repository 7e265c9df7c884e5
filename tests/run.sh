#!/usr/bin/env bash
# All tests: those that bear company side by side, then those that do not. Arguments go to pytest;
# TESTS is an expression of markers.
set -euo pipefail
python="$(dirname "$0")/../.venv/bin/python"
tests="${TESTS:+($TESTS) and }"
# More than there are cores: much of a test's time is waiting.
"$python" -m pytest -m "${tests}not alone" -n "${WORKERS:-4}" "$@"
"$python" -m pytest -m "${tests}alone" "$@" || [ $? = 5 ] # 5: there were none among those asked for
