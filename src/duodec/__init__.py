"""duodec: a GPU's language model decodes faster with drafts from the CPU beside it.

from duodec import Engine

with Engine.load(target="smollm2") as engine:
    for event in engine.generate([{"role": "user", "content": "Why is the sky blue?"}]):
        ...
"""

from duodec.core.grammar import Grammar
from duodec.core.sampling import SamplingParams
from duodec.engine import Engine
from duodec.errors import DuodecError
from duodec.events import Delta, Event, Finished, Segment, Started

__all__ = [
    "Delta",
    "DuodecError",
    "Engine",
    "Event",
    "Finished",
    "Grammar",
    "SamplingParams",
    "Segment",
    "Started",
]
