"""What is not let through, in words that the author of the code can act on."""

from __future__ import annotations

REFUSED, BLOCKED, FAILED, ALLOWED = "refused", "blocked", "failed", "allowed"

HINTS = {
    REFUSED: "This sandbox reaches only the hosts that it was given. Whoever runs the code decides "
    "about network rules; trying other addresses or ports does not help.",
    BLOCKED: "The gateway lets no such request through, whatever the rules are.",
    FAILED: "The rules allow it, but the host could not be reached or did not answer properly.",
}


class Refusal(Exception):
    """Ends a request or a connection. `verdict` is the record's, `why` one sentence for people."""

    def __init__(self, verdict: str, why: str, *, status: int = 0) -> None:
        super().__init__(why)
        self.verdict = verdict
        self.why = why
        self.status = status or (502 if verdict == FAILED else 403)


def refused(why: str, *, status: int = 0) -> Refusal:
    """No rule allows it, or a limit is reached."""
    return Refusal(REFUSED, why, status=status)


def blocked(why: str, *, status: int = 0) -> Refusal:
    """Malformed in a way that attacks are, or headed where nobody goes."""
    return Refusal(BLOCKED, why, status=status)


def failed(why: str, *, status: int = 0) -> Refusal:
    """Beyond the gateway."""
    return Refusal(FAILED, why, status=status)


def phrase(why: str) -> bytes:
    """As the reason phrase of a status line: clients show that one even for CONNECT."""
    return "".join(c if " " <= c <= "~" else "?" for c in why)[:300].encode()
