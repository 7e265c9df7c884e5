"""Kept sandboxes at a server: what `belljar.Sandbox(url=…)` is."""
