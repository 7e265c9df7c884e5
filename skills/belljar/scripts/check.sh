#!/usr/bin/env bash
# Whether sandboxes work on this machine: one line, and what to do if they do not.
set -u
belljar="${BELLJAR:-belljar}"

if ! command -v "$belljar" >/dev/null; then
    echo "belljar is not installed. The user can install it from a checkout of Belljar: pip install PATH"
    exit 1
fi
if answer="$("$belljar" run -c 'print(6 * 7)' --stdin /dev/null 2>&1)" && [ "$answer" = 42 ]; then
    echo "sandboxes work here ($("$belljar" --version))"
    exit 0
fi
echo "sandboxes do not work here: $answer"
echo "Tell the user to run: belljar doctor"
exit 1
