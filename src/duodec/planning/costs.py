"""What a target forward and a draft token cost here, learned from every round."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from duodec.core.round import median

_WINDOW = 32  # rounds remembered
_UNKNOWN_DRAFT_S = 0.3  # expected before anything was measured
_UNKNOWN_BUDGET = 4


def _recent() -> deque[float]:
    return deque(maxlen=_WINDOW)


@dataclass
class Costs:
    """Running medians of the seconds of a target forward and of a draft token."""

    _forward_s: deque[float] = field(default_factory=_recent)
    _token_s: deque[float] = field(default_factory=_recent)

    def observe_forward(self, seconds: float) -> None:
        """One target forward that did not read a prompt."""
        self._forward_s.append(seconds)

    def observe_draft(self, num_tokens: int, seconds: float) -> None:
        """So many drafted tokens and the seconds they took, reading left out."""
        if num_tokens and seconds > 0:
            self._token_s.append(seconds / num_tokens)

    def budget(self) -> int:
        """The draft tokens that fit in one target forward; at least one (2503.00784)."""
        if not self._forward_s or not self._token_s:
            return _UNKNOWN_BUDGET
        return max(1, round(median(self._forward_s) / median(self._token_s)))

    def draft_s(self, num_tokens: int) -> float:
        """Expected seconds of a draft of so many tokens."""
        if not self._token_s:
            return _UNKNOWN_DRAFT_S
        return num_tokens * median(self._token_s)
