#!/usr/bin/env python3
"""Runs code in a sandbox and prints what is worth reading: how it ended, output, errors, files.

    run.py FILE|- [any option of `belljar run`]

Exit status: 0 the code ended well, 1 it did not, 125 it was refused.
"""

import json
import os
import shutil
import subprocess
import sys

MOST = 8000
"""Characters of each stream: a table of a million rows is not worth reading."""


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if len(sys.argv) > 1 else 125
    belljar = shutil.which(os.environ.get("BELLJAR", "belljar"))
    if belljar is None:
        print("belljar is not installed.", end=" ")
        print("The user can install it from a checkout of Belljar: pip install PATH")
        return 125
    given = sys.argv[1:]
    done = subprocess.run([belljar, "run", "--json", *given], capture_output=True)
    try:
        result = json.loads(done.stdout)
    except ValueError:
        print("refused: " + done.stderr.decode("utf-8", "replace").strip())
        return 125
    if "error" in result and "status" not in result:
        error = result["error"]
        print("refused: " + error["message"])
        if error["hint"]:
            print("hint: " + error["hint"])
        return 125
    output = any(word in ("-o", "--output") or word.startswith("--output=") for word in given)
    tell(result, output)
    # Files that could not be written are named there.
    notes = done.stderr.decode("utf-8", "replace").strip()
    if notes and output:
        print("notes:\n" + clip(notes))
    return 0 if result["success"] else 1


def tell(result, output):
    words = "{} after {:.2f} s".format(result["status"], result["duration_ms"] / 1000)
    if result["exit_code"]:
        words += ", exit code {}".format(result["exit_code"])
    print(words)
    for name in ("stdout", "stderr"):
        if result[name].strip():
            print(name + ":\n" + clip(result[name].rstrip()))
    for warning in result["warnings"]:
        print("note: " + warning)
    if result["files"]:
        where = "in the folder of --output" if output else "gone; --output FOLDER brings them back"
        print(f"files it left, {where}:")
        for file in result["files"][:50]:
            skipped = ", not brought back: " + file["skipped"] if file["skipped"] else ""
            print("  {} ({} bytes{})".format(printable(file["path"]), file["size"], skipped))


def clip(text):
    text = printable(text)
    if len(text) <= MOST:
        return text
    half = MOST // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def printable(text):
    """Code may print what a terminal would obey."""
    return "".join(c if c in "\n\t" or c.isprintable() else ascii(c)[1:-1] for c in text)


if __name__ == "__main__":
    sys.exit(main())
