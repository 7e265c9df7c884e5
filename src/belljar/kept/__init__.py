"""Sandboxes that live from run to run (S1-S6)."""
