"""duodec: a GPU's language model decodes faster with drafts from the CPU beside it.

from duodec import Engine

with Engine.load(target="smollm2") as engine:
    for event in engine.generate([{"role": "user", "content": "Why is the sky blue?"}]):
        ...
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duodec.core.grammar import Grammar
    from duodec.core.sampling import SamplingParams
    from duodec.engine import Engine
    from duodec.errors import DuodecError
    from duodec.events import Delta, Event, Finished, Segment, Started

_HOMES = {
    "Delta": "events",
    "DuodecError": "errors",
    "Engine": "engine",
    "Event": "events",
    "Finished": "events",
    "Grammar": "core.grammar",
    "SamplingParams": "core.sampling",
    "Segment": "events",
    "Started": "events",
}


def __getattr__(name: str) -> Any:
    """Imported when first used: the program must hear Ctrl-C before it imports much."""
    if name not in _HOMES:
        raise AttributeError(f"module 'duodec' has no attribute {name!r}")
    return getattr(import_module(f"duodec.{_HOMES[name]}"), name)


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
