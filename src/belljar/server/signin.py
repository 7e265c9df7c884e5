"""On loopback without keys: a token in the printed URL, exchanged once for a cookie.

The token in the URL works once; as `Authorization: Bearer` it works as long as the server lives.
"""

from __future__ import annotations

import hmac
import secrets
from collections import deque

MOST_SESSIONS = 64


class SignIn:
    def __init__(self, port: int) -> None:
        self.token = secrets.token_urlsafe(32)
        self.cookie = f"belljar-{port}"
        """Browsers send a host's cookies to all its ports; the name keeps servers apart."""
        self._unused = True
        self._sessions: deque[str] = deque(maxlen=MOST_SESSIONS)

    def exchange(self, token: str) -> str | None:
        """The cookie's value for the token of the URL; None if it is wrong, or was used."""
        if not self.is_token(token) or not self._unused:
            return None
        self._unused = False
        session = secrets.token_urlsafe(32)
        self._sessions.append(session)
        return session

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def is_session(self, given: str) -> bool:
        text = given.encode("utf-8", "replace")
        return any(hmac.compare_digest(text, session.encode()) for session in self._sessions)
