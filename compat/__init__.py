"""Public test suites, inside a sandbox beside the bare host: `python -m compat`.

Nobody here wrote these tests. They say whether ordinary programs notice that they are in a sandbox.
"""
