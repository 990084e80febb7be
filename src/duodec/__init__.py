"""duodec: a GPU's language model decodes faster with drafts from the CPU beside it.

>>> from duodec import LLM, SamplingParams
>>> with LLM.load("smollm2") as llm:
...     answer = llm.chat([{"role": "user", "content": "Why is the sky blue?"}])
...     print(answer.text)
"""

from duodec.core.events import Delta, Event, Finished, Segment, Started
from duodec.core.grammar import Grammar
from duodec.core.logprobs import Logprob
from duodec.core.sampling import SamplingParams
from duodec.errors import DuodecError
from duodec.llm import LLM, Completion

__all__ = [  # noqa: RUF022  as `sorted` has it
    "Completion",
    "Delta",
    "DuodecError",
    "Event",
    "Finished",
    "Grammar",
    "LLM",
    "Logprob",
    "SamplingParams",
    "Segment",
    "Started",
]


def __getattr__(name: str) -> object:
    if name == "Engine":  # for one version
        from duodec.engine import Engine

        return Engine
    raise AttributeError(f"module 'duodec' has no attribute '{name}'")
