"""The hardened container: one per sandbox, made ahead where there is time, destroyed after.

Works with Docker's daemon and whatever speaks its API (Podman), on this machine or another, and
with any OCI runtime that the daemon knows. No library is needed for it: see `daemon.py`.
"""
