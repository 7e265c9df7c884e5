"""A server under mixed load and injected faults, and what must still hold afterwards."""
