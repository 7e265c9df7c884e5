"""Environments: a runtime with its packages, built once and mounted read-only in sandboxes."""
