"""Runs in a sandbox without a network: makes text of a page, and prints it as JSON.

Standard library only. The page is hostile; whatever it makes of this process stays here.
"""

from __future__ import annotations

import codecs
import html.parser
import json
import re
import sys
import urllib.parse
from typing import Any, Optional

SKIPPED = {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas"}
BLOCKS = {
    *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset"),
    *("figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header"),
    *("hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul"),
}
MOST_LINKS = 200


class _Text(html.parser.HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title = ""
        self.links: dict[str, None] = {}
        self._url = url
        self._skipping = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        if tag in SKIPPED:
            self._skipping += 1
        elif tag == "title":
            self._in_title = True
        elif tag == "base":
            self._url = self._absolute(dict(attrs).get("href")) or self._url
        elif tag == "a" and len(self.links) < MOST_LINKS:
            found = self._absolute(dict(attrs).get("href"))
            if found:
                self.links[found] = None
        if tag in BLOCKS:
            heading = re.match(r"h([1-6])\Z", tag)
            self.parts.append("\n\n" + "#" * int(heading[1]) + " " if heading else "\n")
            if tag == "li":
                self.parts.append("- ")

    def handle_endtag(self, tag: str) -> None:
        if tag in SKIPPED:
            self._skipping = max(0, self._skipping - 1)
        elif tag == "title":
            self._in_title = False
        elif tag in BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._skipping:
            self.parts.append(data)

    def _absolute(self, place: Optional[str]) -> str:
        try:
            found = urllib.parse.urljoin(self._url, (place or "").strip()).partition("#")[0]
        except ValueError:
            return ""
        return found if found.startswith(("http://", "https://")) and len(found) < 2000 else ""


def decoded(body: bytes, charset: str) -> str:
    if body.startswith(codecs.BOM_UTF8):
        return body.decode("utf-8-sig", "replace")
    if not charset:
        named = re.search(rb"<meta[^>]{0,200}charset=[\"']?([A-Za-z0-9_-]{1,40})", body[:4096])
        charset = named[1].decode() if named else "utf-8"
    try:
        return body.decode(charset, "replace")
    except LookupError:
        return body.decode("utf-8", "replace")


def read(body: bytes, url: str, kind: str, charset: str, most: int) -> dict[str, Any]:
    text = decoded(body, charset)
    title, links = "", list[str]()
    if kind in ("text/html", "application/xhtml+xml"):
        parser = _Text(url)
        parser.feed(text)
        parser.close()
        text = re.sub(r"[ \t\r\f\v\xa0]+", " ", "".join(parser.parts))
        text = re.sub(r" ?\n ?", "\n", text)
        text = re.sub(r"\n{3,}", "\n\n", text).strip()
        title = " ".join(parser.title.split())[:500]
        links = list(parser.links)
    return {"text": text[:most], "more": len(text) > most, "title": title, "links": links}


def main(url: str, kind: str, charset: str, most: int) -> None:
    with open("/data/input/page", "rb") as page:
        told = read(page.read(), url, kind, charset, most)
    sys.stdout.write(json.dumps(told))
