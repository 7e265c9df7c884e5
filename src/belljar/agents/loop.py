"""Write, run, read the error, mend: until the model answers without code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from belljar.agents.models import Message, Model
from belljar.agents.words import find_code, tell
from belljar.errors import InvalidRequest
from belljar.kept.events import Event
from belljar.kept.sync import Sandbox
from belljar.model import Output, Result

INSTRUCTIONS = """\
You solve tasks by writing code. To run code, answer with one fenced block (```python). It runs in a
sandbox without a network; variables, imports and files stay from run to run. You are then told what
it printed, the value of its last expression, and any error: mend what failed and go on. Files to
read are in /data/input; put files to keep into /data/output. When you know the answer, give it in
plain words, without a block of code.
"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One piece of code that the model wrote, and what came of it."""

    code: str
    result: Result


@dataclass(frozen=True, kw_only=True)
class Answer:
    text: str
    """The model's last words; empty when it had not answered after `most_replies`."""
    steps: tuple[Step, ...]

    @property
    def mended(self) -> int:
        """How many failed runs were followed by one that did not fail."""
        good = [index for index, step in enumerate(self.steps) if step.result.success]
        return sum(not step.result.success for step in self.steps[: max(good, default=0)])

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What all steps have shown, in order: pictures, tables."""
        return tuple(output for step in self.steps for output in step.result.outputs)


class Agent:
    """A model with a sandbox to work in; both remember what was said and done before.

    The sandbox stays the caller's, who closes it."""

    def __init__(
        self,
        box: Sandbox,
        model: Model,
        *,
        instructions: str = INSTRUCTIONS,
        language: str = "python",
        timeout_s: float | None = None,
        most_replies: int = 10,
        on_step: Callable[[Step], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.box = box
        self.model = model
        self.messages: list[Message] = [{"role": "system", "content": instructions}]
        self.language = language
        self.timeout_s = timeout_s
        self.most_replies = most_replies
        """To one task; then the answer is empty."""
        self.on_step = on_step
        self.on_event = on_event
        """As for `Sandbox.run`: called on another thread while the code runs."""

    def ask(self, task: str) -> Answer:
        """Has the model work on `task` until it answers without code."""
        self._say("user", task)
        steps: list[Step] = []
        for _ in range(self.most_replies):
            reply = self.model(list(self.messages))
            self._say("assistant", reply)
            code = find_code(reply, self.language)
            if code is None:
                return Answer(text=reply.strip(), steps=tuple(steps))
            try:
                result = self.box.run(code, timeout_s=self.timeout_s, on_event=self.on_event)
            except InvalidRequest as refusal:  # such as code that is too long: the model's to mend
                self._say("user", f"That was not run: {refusal}")
                continue
            step = Step(code=code, result=result)
            steps.append(step)
            self._say("user", tell(result) + self._recover(result))
            if self.on_step:
                self.on_step(step)
        return Answer(text="", steps=tuple(steps))

    def fork(self, count: int = 1) -> list[Agent]:
        """Agents in branches of the sandbox, who remember the same."""
        return [self._twin(box) for box in self.box.fork(count)]

    def _twin(self, box: Sandbox) -> Agent:
        twin = Agent(
            box,
            self.model,
            language=self.language,
            timeout_s=self.timeout_s,
            most_replies=self.most_replies,
            on_step=self.on_step,
            on_event=self.on_event,
        )
        twin.messages = list(self.messages)
        return twin

    def _recover(self, result: Result) -> str:
        """Code that lost the state of the sandbox is undone: nothing more would run after it."""
        if result.state_kept or result.run_id not in self.box.checkpoints():
            return ""
        self.box.rollback(result.run_id)
        return "\nThe sandbox was put back to before this run.\n"

    def _say(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})
