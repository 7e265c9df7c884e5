"""What runs inside a sandbox: the agent (pid 1) and the runner that becomes the user's code.

Standard library only, Python ≥ 3.9, no import from the rest of Belljar: the same files are used
behind every wall.
"""
