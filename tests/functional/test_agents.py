"""A5: the loop (write, run, read the error, mend) with a real sandbox and any callable as model."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import belljar
from belljar.agents import Agent, Message, Step
from belljar.errors import SandboxEnded


@pytest.fixture(scope="module")
def shared(jar: belljar.Belljar) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(jar, environment="base", max_runs=1000) as box:
        yield box


@pytest.fixture
def box(shared: belljar.Sandbox) -> Iterator[belljar.Sandbox]:
    (box,) = shared.fork()
    yield box
    box.close()


class Says:
    """A model that says one thing after the other, and remembers what it was told."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.told: list[list[Message]] = []

    def __call__(self, messages: list[Message]) -> str:
        self.told.append(messages)
        return self.replies.pop(0)


def python(code: str) -> str:
    return f"```python\n{code}\n```"


def test_a5_an_error_is_read_and_mended(box: belljar.Sandbox) -> None:
    """The model knows what to leave out from nothing but the real error message."""

    def model(messages: list[Message]) -> str:
        last = messages[-1]["content"]
        if found := re.search(r"could not convert string to float: ('.*?')", last):
            return python(f"sum(float(text) for text in prices if text != {found[1]})")
        if value := re.search(r"Value of the last expression:\n(.+)", last):
            return f"It is {value[1]}."
        return python("prices = ['4', 'n/a', '5']\nsum(float(text) for text in prices)")

    seen: list[Step] = []
    answer = Agent(box, model, on_step=seen.append).ask("What do they cost?")
    assert answer.text == "It is 9.0." and answer.mended == 1
    assert [step.result.status for step in answer.steps] == ["error", "ok"]
    assert seen == list(answer.steps)


def test_a5_sandbox_and_conversation_remember(box: belljar.Sandbox) -> None:
    model = Says(python("x = 20"), "Noted.", python("x + 1"), "21")
    agent = Agent(box, model)
    assert agent.ask("x is 20.").text == "Noted."
    answer = agent.ask("And one more?")
    assert answer.steps[0].result.value == "21"
    assert [m["role"] for m in model.told[-1]] == [
        "system", "user", "assistant", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip


def test_a5_a_model_that_never_answers_comes_to_an_end(box: belljar.Sandbox) -> None:
    agent = Agent(box, lambda messages: python("1 / 0"), most_replies=3)
    answer = agent.ask("Go on for ever.")
    assert (answer.text, len(answer.steps), answer.mended) == ("", 3, 0)


def test_a5_code_that_is_refused_is_the_models_to_mend(box: belljar.Sandbox) -> None:
    model = Says(python("#" * 200_000), python("'short'"), "done")
    answer = Agent(box, model).ask("Write a lot.")
    assert "not run" in model.told[1][-1]["content"]
    assert answer.text == "done" and answer.steps[0].result.value == "'short'"


def test_a5_code_that_ends_the_interpreter_is_undone(box: belljar.Sandbox) -> None:
    model = Says(python("x = 5"), python("import os; os._exit(1)"), python("x"), "still 5")
    answer = Agent(box, model).ask("Break it.")
    assert answer.steps[1].result.state_kept is False
    assert "put back" in model.told[2][-1]["content"]
    assert answer.steps[2].result.value == "5"


def test_a5_branches_of_an_agent_go_their_own_ways(box: belljar.Sandbox) -> None:
    def model(messages: list[Message]) -> str:
        last = messages[-1]["content"]
        if last.startswith("Add"):
            return python(f"x += {last.split()[1]}\nx")
        return "done"

    agent = Agent(box, model)
    agent.ask("Wait.")
    box.run("x = 1")
    one, ten = agent.fork(2)
    values = [
        branch.ask(task).steps[0].result.value for branch, task in ((one, "Add 1"), (ten, "Add 10"))
    ]
    assert values == ["2", "11"] and box.run("x").value == "1"
    assert one.messages[:3] == ten.messages[:3] == agent.messages
    assert len(agent.messages) == 3
    for branch in (one, ten):
        branch.box.close()


def test_a5_a_sandbox_that_has_ended_is_the_callers_to_know(jar: belljar.Belljar) -> None:
    with belljar.Sandbox(jar, environment="base", max_runs=1) as box:
        agent = Agent(box, lambda messages: python("1"))
        with pytest.raises(SandboxEnded):
            agent.ask("Run and run.")
