"""Belljar beside the alternatives, measured in one run: `python -m bench`."""
