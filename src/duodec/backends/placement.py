"""Define where a target computes: on the cores that a drafter would use, elsewhere, or both."""

from __future__ import annotations

from enum import Enum


class Placement(Enum):
    """Name where a target's forward passes are computed."""

    CPU = "cpu"
    SPLIT = "split"  # some weights on the CPU, such as a mixture's experts, the rest on a GPU
    ELSEWHERE = "elsewhere"

    @property
    def uses_cores(self) -> bool:
        """Return whether a forward pass needs cores of its own."""
        return self is not Placement.ELSEWHERE
