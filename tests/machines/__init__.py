"""Belljar on the machines people have: QEMU guests made from the distributions' own archives.

`make test-machines` builds a root per guest, boots it, and runs doctor, the probes and a selection
of tests in it: as root, as an ordinary user in several kinds of session, and in containers. The
guests are listed in `guests.py`, the sessions in `cells.py`; CONTRIBUTING.md says how to use it.
"""
