"""What a target forward and a draft token cost here, learned from every round."""

from __future__ import annotations

import math
import sys
from collections import deque
from dataclasses import dataclass, field

from duodec.core.round import median
from duodec.planning.governor import Sources

_WINDOW = 32  # rounds remembered
_UNKNOWN_DRAFT_S = 0.3  # expected before anything was measured
_UNKNOWN_BUDGET = 4
_UNKNOWN_FORWARD_S = 0.03
_FIRST_BUCKET = 3  # widths up to 7 are tried before anything is known
_FEWEST = 3  # forwards that make a median
_STEEPEST = 2.2
_FEW_TOKENS, _FLAT = 4, 1.5  # such a draft is flat if it costs less than this many tokens
_UNKNOWN_STEP_S = 0.003


def _recent() -> deque[float]:
    return deque(maxlen=_WINDOW)


@dataclass
class Costs:
    """Running medians of the seconds of a target forward and of a draft token."""

    _forward_s: deque[float] = field(default_factory=_recent)
    _token_s: deque[float] = field(default_factory=_recent)
    _step_s: deque[float] = field(default_factory=_recent)
    _step_leaves: deque[float] = field(default_factory=_recent)
    _root_s: deque[float] = field(default_factory=_recent)
    _by_width: dict[int, deque[float]] = field(default_factory=dict)
    _expected: dict[int, float] = field(default_factory=dict)  # by width, while nothing is new

    def observe_forward(self, seconds: float, num_tokens: int = 0) -> None:
        """One target forward over so many draft tokens, that did not read a prompt."""
        self._forward_s.append(seconds)
        self._by_width.setdefault(_bucket(num_tokens), _recent()).append(seconds)
        self._expected.clear()

    def forward_s(self, num_tokens: int) -> float:
        """Expected seconds of a forward over so many draft tokens: T(n). Widths between two that
        were measured lie between them; one twice as wide as any that was measured is taken to
        cost no more than that one, a wider one to cost too much to try."""
        bucket = _bucket(num_tokens)
        if bucket not in self._expected:
            self._expected[bucket] = self._interpolated_s(bucket)
        return self._expected[bucket]

    def sources(self) -> Sources:
        """The most that may take part in drafts: others at the same target have a say in it."""
        return Sources.ALL

    def room(self) -> int:
        """Draft tokens that the next forward may score, as far as costs are known."""
        return sys.maxsize

    def is_flat(self) -> bool | None:
        """Whether a few draft tokens are scored almost at the price of one; None where too little
        was measured to tell."""
        bucket = _bucket(_FEW_TOKENS)
        if any(len(self._by_width.get(b, ())) < _FEWEST for b in (0, bucket)):
            return None
        return self.forward_s(_FEW_TOKENS) < _FLAT * self.forward_s(0)

    def _interpolated_s(self, bucket: int) -> float:
        known = sorted(self._by_width)
        if bucket > (known[-1] + 1 if known else _FIRST_BUCKET):
            return math.inf
        if not known:
            return _UNKNOWN_FORWARD_S
        below = [k for k in known if k <= bucket]
        above = [k for k in known if k >= bucket]
        if not below or not above:
            return self._width_s((below or above)[-1 if below else 0], known)
        low, high = below[-1], above[0]
        low_s, high_s = self._width_s(low, known), self._width_s(high, known)
        part = (bucket - low) / (high - low) if high > low else 0.0
        return low_s + part * max(0.0, high_s - low_s)

    def _width_s(self, bucket: int, known: list[int]) -> float:
        """The median of a width. One slow forward says little: as long as there are few, twice
        the width is taken to cost little more than twice as much."""
        seconds = self._by_width[bucket]
        own_s = median(seconds)
        below = [k for k in known if k < bucket]
        if len(seconds) >= _FEWEST or not below:
            return own_s
        return min(own_s, self._width_s(below[-1], known) * _STEEPEST ** (bucket - below[-1]))

    def observe_step(self, seconds: float, num_leaves: float = 1.0) -> None:
        """One forward of the draft model that made a tree deeper, at so many leaves."""
        self._step_s.append(seconds)
        self._step_leaves.append(num_leaves)

    def step_leaves(self) -> int:
        """Leaves that one more forward of the draft model is expected to expand."""
        return max(1, round(median(self._step_leaves))) if self._step_leaves else 1

    def step_s(self) -> float:
        """Expected seconds of one more forward of the draft model."""
        return median(self._step_s) if self._step_s else _UNKNOWN_STEP_S

    def observe_root(self, seconds: float) -> None:
        """The work until the successors of a text were known that no draft had foreseen."""
        self._root_s.append(seconds)

    def root_s(self) -> float:
        """Expected seconds until they are, of a drafter in the middle of a step."""
        own_s = median(self._root_s) if self._root_s else self.step_s()
        return self.step_s() / 2 + own_s

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


def _bucket(num_tokens: int) -> int:
    """Widths that are taken together: 0, 1, 2 to 3, 4 to 7, 8 to 15, ..."""
    return num_tokens.bit_length()
