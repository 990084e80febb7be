"""Record how long a step of a draft model takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepTime:
    """Record a draft step that expands ``num_leaves`` sequences after ``num_text`` tokens, with
    flash attention or without."""

    num_text: int
    num_leaves: int
    uses_flash_attention: bool
    seconds: float
