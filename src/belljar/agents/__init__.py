"""The loop of an agent: a model writes code, a sandbox runs it, the model reads what came of it.

    agent = Agent(box, model)
    print(agent.ask("How many rows has /data/input/sales.csv?").text)

A model is anything that can be called with the messages so far and gives back text.
"""

from __future__ import annotations

from belljar.agents.loop import INSTRUCTIONS, Agent, Answer, Step
from belljar.agents.models import Message, Model, anthropic_model, openai_model

__all__ = [
    "INSTRUCTIONS",
    "Agent",
    "Answer",
    "Message",
    "Model",
    "Step",
    "anthropic_model",
    "openai_model",
]
