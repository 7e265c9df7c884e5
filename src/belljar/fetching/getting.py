"""Runs in a sandbox whose rules allow the page's host: gets it, and prints it as JSON.

Standard library only. Redirects are followed one by one; whether one may be followed the gateway
says, as it does for every request.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

REDIRECTS = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 10


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def credentials(url: str, secrets: dict[str, Any]) -> dict[str, str]:
    """What goes to the host of this address. Here they are placeholders, which only the gateway
    can fill in; to another host they would be blocked."""
    parts = urllib.parse.urlsplit(url)
    found = {}
    for variable, (host, header) in secrets.items():
        if parts.scheme == "https" and parts.hostname == host:
            name, _, form = header.partition(": ")
            found[name] = form.replace("{}", os.environ[variable])
    return found


def get(url: str, most_bytes: int, timeout_s: float, secrets: dict[str, Any]) -> dict[str, Any]:
    opener = urllib.request.build_opener(_Stay)
    followed: list[str] = []
    while True:
        asked = urllib.request.Request(
            url,
            headers={
                "User-Agent": "belljar-fetch",
                "Accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.1",
                "Accept-Encoding": "identity",
                **credentials(url, secrets),
            },
        )
        try:
            answer = opener.open(asked, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            place = answer.headers.get("Location")
            if answer.status in REDIRECTS and place:
                url = urllib.parse.urljoin(url, place)
                if not url.startswith(("http://", "https://")):
                    raise ValueError("it leads to what is no page: " + url[:200])
                if len(followed) >= MOST_REDIRECTS:
                    raise ValueError("it leads on and on")
                followed.append(url)
                continue
            body = answer.read(most_bytes + 1)
            return {
                "url": url,
                "status": answer.status,
                "content_type": answer.headers.get_content_type(),
                "charset": answer.headers.get_content_charset() or "",
                "encoding": answer.headers.get("Content-Encoding", ""),
                "redirects": followed,
                "truncated": len(body) > most_bytes,
                "body": base64.b64encode(body[:most_bytes]).decode(),
            }


def main(url: str, most_bytes: int, timeout_s: float, secrets: dict[str, Any]) -> None:
    try:
        told = get(url, most_bytes, timeout_s, secrets)
    except (OSError, ValueError, http.client.HTTPException) as error:
        told = {"error": str(getattr(error, "reason", None) or error)[:1000]}
    sys.stdout.write(json.dumps(told))
