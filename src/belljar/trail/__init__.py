"""The trail: who had what run, where, with which limits, and how it ended (P2).

`records` says what a line is, `chain` how lines hang together; both are pure. `entry` is what the
service holds while something runs. The rest needs SQLAlchemy and is loaded when a trail is opened.
"""
