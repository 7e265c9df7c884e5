# Put before every Python probe: how a probe says what it found.
import os  # noqa: F401
import sys  # noqa: F401

ID = "{{PROBE_ID}}"


def info(text):
    print(f"INFO {ID} {str(text)[:300]}", flush=True)


def held(note=""):
    if note:
        info(note)
    print(f"PROBE {ID} HELD", flush=True)


def broken(why):
    print(f"PROBE {ID} BROKEN: {str(why)[:300]}", flush=True)


def conclude(findings, note=""):
    """BROKEN with the findings, HELD when there are none."""
    broken(findings) if findings else held(note)


def mark(name):
    """Name this process (and its later forks), so that the judge finds them in the host's /proc."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME
    except (ImportError, AttributeError, OSError) as error:
        info(f"not marked: {error}")
