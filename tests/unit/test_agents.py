"""A5: between a model's text and code, and the two shapes of models behind HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from belljar.agents import anthropic_model, openai_model
from belljar.agents.words import MOST_CHARACTERS, find_code, tell
from belljar.model import ErrorInfo, Output, Result

# -- what a model says to run ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("There are 42 rows.", None),
        ("Let me see:\n```python\nx = 1\n```\n", "x = 1\n"),
        ("```py\nx = 1\n```\nand then\n```\ny = 2\n```", "x = 1\n\ny = 2\n"),
        ("```json\n{}\n```\nis not code for us", None),
        ("```Python title='a'\nx = 1\n```", "x = 1\n"),
        ("    ```python\nx = 1\n    ```", "x = 1\n"),
        ("```python\nprint('cut off", "print('cut off"),
        ("the word ```python``` alone", None),
        ("```", None),
        ("", None),
    ],
)
def test_a5_code_is_found_in_a_reply(reply: str, code: str | None) -> None:
    assert find_code(reply, "python") == code


def test_a5_code_in_another_language() -> None:
    assert find_code("```js\n1\n```\n```python\n2\n```", "javascript") == "1\n"


# -- what it is told -------------------------------------------------------------------------------


def test_a5_a_failure_is_told_with_its_error() -> None:
    error = ErrorInfo(name="KeyError", message="'price'", traceback="…")
    told = tell(
        Result(status="error", exit_code=1, run_id=3, stderr="KeyError: 'price'\n", error=error)
    )
    assert told.startswith("Run 3: error") and "KeyError: 'price'" in told and "mends" in told


def test_a5_a_success_is_told_with_what_was_printed_and_shown() -> None:
    told = tell(
        Result(
            status="ok",
            exit_code=0,
            run_id=1,
            stdout="hello\n",
            value="42",
            outputs=(Output(kind="display", data={"image/png": b"..."}),),
        )
    )
    assert "hello" in told and "42" in told and "Pictures shown: 1" in told
    assert "failed" not in told


def test_a5_a_flood_is_cut_in_the_middle() -> None:
    told = tell(Result(status="ok", exit_code=0, stdout="a" * 10**6 + "end"))
    assert len(told) < MOST_CHARACTERS + 500 and "characters left out" in told and "aend" in told


# -- models behind HTTP ----------------------------------------------------------------------------


class Server:
    """Answers each question with `answer`, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.answer: tuple[int, bytes] = (200, b"{}")
        self.headers: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.asked.append((self.path, headers, json.loads(body)))
                self.send_response(outer.answer[0])
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(outer.answer[1])

            def log_message(self, *_: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "1 + 1?"},
]


def test_a5_the_openai_shape(server: Server) -> None:
    server.answer = (200, json.dumps({"choices": [{"message": {"content": "2"}}]}).encode())
    model = openai_model("some-model", api_key="a key", url=server.url, temperature=0)
    assert model(MESSAGES) == "2"
    ((_, headers, body),) = server.asked
    assert headers["authorization"] == "Bearer a key"
    assert body == {"model": "some-model", "messages": MESSAGES, "temperature": 0}


def test_a5_the_anthropic_shape(server: Server) -> None:
    blocks = [{"type": "text", "text": "It is "}, {"type": "other"}, {"type": "text", "text": "2"}]
    server.answer = (200, json.dumps({"content": blocks}).encode())
    model = anthropic_model("some-model", api_key="a key", url=server.url)
    assert model(MESSAGES) == "It is 2"
    ((_, headers, body),) = server.asked
    assert headers["x-api-key"] == "a key" and headers["anthropic-version"]
    assert body["system"] == "be brief" and body["messages"] == MESSAGES[1:]
    assert body["max_tokens"] > 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((429, b"slow down"), "429: slow down"),
        ((200, b"<html>"), "JSON"),
        ((200, b'{"error": "no such model"}'), "no such model"),
        ((200, b"[]"), "has no"),
    ],
)
@pytest.mark.parametrize("make", [openai_model, anthropic_model])
def test_a5_a_server_that_fails_says_why(
    server: Server, make: Any, answer: tuple[int, bytes], said: str
) -> None:
    server.answer = answer
    with pytest.raises(ConnectionError, match=said) as failure:
        make("some-model", api_key="the-key", url=server.url)(MESSAGES)
    assert "the-key" not in str(failure.value)


@pytest.mark.parametrize("status", [302, 307])
def test_a5_the_key_goes_nowhere_else(server: Server, status: int) -> None:
    server.answer = (status, b"")
    server.headers = {"Location": f"{server.url}/elsewhere"}
    with pytest.raises(ConnectionError, match=str(status)):
        openai_model("some-model", api_key="the-key", url=server.url)(MESSAGES)
    assert [path for path, _, _ in server.asked] == ["/v1"]
