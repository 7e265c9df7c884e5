"""Models behind HTTP, by nothing but the standard library. Any other callable does as well.

Both shapes are spoken by many servers, local ones too: give their `url`.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

Message = dict[str, str]
"""`role`: system, user or assistant; `content`: text."""
Model = Callable[[list[Message]], str]

MOST_BYTES = 1 << 24
"""Read of an answer."""


def openai_model(
    name: str,
    *,
    api_key: str = "",
    url: str = "https://api.openai.com/v1/chat/completions",
    timeout_s: float = 120.0,
    **more: Any,
) -> Model:
    """Chat completions. `more` goes along with each question, such as `temperature=0`."""

    def model(messages: list[Message]) -> str:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        answer = _post(url, headers, {"model": name, "messages": messages, **more}, timeout_s)
        return str(_dig(answer, "choices", 0, "message", "content") or "")

    return model


def anthropic_model(
    name: str,
    *,
    api_key: str = "",
    url: str = "https://api.anthropic.com/v1/messages",
    max_tokens: int = 4096,
    timeout_s: float = 120.0,
    **more: Any,
) -> Model:
    """Messages. `more` goes along with each question, such as `temperature=0`."""

    def model(messages: list[Message]) -> str:
        spoken = [message for message in messages if message["role"] != "system"]
        body = {
            "model": name,
            "max_tokens": max_tokens,
            "system": "\n".join(m["content"] for m in messages if m["role"] == "system"),
            "messages": spoken,
            **more,
        }
        headers = {"anthropic-version": "2023-06-01"}
        if api_key:
            headers["x-api-key"] = api_key
        blocks = _dig(_post(url, headers, body, timeout_s), "content")
        texts = (block.get("text", "") for block in blocks if block.get("type") == "text")
        return "".join(texts)

    return model


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Nowhere else: the key would go along."""


def _post(url: str, headers: Mapping[str, str], body: object, timeout_s: float) -> Any:
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **headers},
    )
    opener = urllib.request.build_opener(_Stay)
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return json.loads(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        said = error.read(2000).decode("utf-8", "replace")
        raise ConnectionError(f"the model's server said {error.code}: {said}") from None
    except ValueError as error:
        raise ConnectionError(f"the model's server did not answer with JSON: {error}") from None


def _dig(answer: Any, *path: str | int) -> Any:
    found = answer
    for key in path:
        try:
            found = found[key]
        except (KeyError, IndexError, TypeError):
            raise ConnectionError(
                f"the model's answer has no {key!r}: {json.dumps(answer)[:300]}"
            ) from None
    return found
