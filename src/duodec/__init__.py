"""Decode a GPU's language model faster with drafts that the CPU makes in parallel.

>>> from duodec import LLM, SamplingParams
>>> with LLM("smollm2") as llm:
...     completion = llm.chat([{"role": "user", "content": "Why is the sky blue?"}])
...     print(completion.text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duodec.core.events import Delta, Event, Finished, Segment, Started
    from duodec.core.sampling.grammar import Grammar
    from duodec.core.sampling.logprobs import Logprob
    from duodec.core.sampling.sampler import SamplingParams
    from duodec.errors import DuodecError
    from duodec.llm import LLM
    from duodec.scheduler.completions import Completion

_HOMES = {
    "Completion": "scheduler.completions",
    "Delta": "core.events",
    "DuodecError": "errors",
    "Event": "core.events",
    "Finished": "core.events",
    "Grammar": "core.sampling.grammar",
    "LLM": "llm",
    "Logprob": "core.sampling.logprobs",
    "SamplingParams": "core.sampling.sampler",
    "Segment": "core.events",
    "Started": "core.events",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the program must handle Ctrl-C before it imports
    much."""
    if name == "__version__":
        from importlib.metadata import version  # takes longer than all else here

        return version("duodec")
    if name not in _HOMES:
        raise AttributeError(f"module 'duodec' has no attribute {name!r}")
    return getattr(import_module(f"duodec.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


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
