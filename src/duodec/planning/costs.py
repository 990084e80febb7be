"""Measure what the target's forward pass and a draft token cost, from every round."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from duodec.core.round import median
from duodec.planning.governor import Sources

_WINDOW = 32  # rounds remembered
_UNKNOWN_DRAFT_S = 0.3  # expected before the first measurement
_UNKNOWN_BUDGET = 4
_UNKNOWN_FORWARD_S = 0.03
_FIRST_BUCKET = 3  # widths up to 7 are tried before anything is known
_FEWEST = 3  # forward passes that make a median
_STEEPEST = 2.2
_UNKNOWN_STEP_S = 0.003


class _Recent:
    """The latest observations; their median is computed once."""

    def __init__(self) -> None:
        self._values = deque[float](maxlen=_WINDOW)
        self._median: float | None = None

    def __len__(self) -> int:
        return len(self._values)

    def observe(self, value: float) -> None:
        self._values.append(value)
        self._median = None

    @property
    def median(self) -> float:
        if self._median is None:
            self._median = median(self._values)
        return self._median

    @property
    def least(self) -> float:
        return min(self._values)


@dataclass
class Costs:
    """Running medians of the seconds of a target's forward pass and of a draft token."""

    _forward_s: _Recent = field(default_factory=_Recent)
    _token_s: _Recent = field(default_factory=_Recent)
    _step_s: _Recent = field(default_factory=_Recent)
    _step_leaves: _Recent = field(default_factory=_Recent)
    _root_s: _Recent = field(default_factory=_Recent)
    _by_width: dict[int, _Recent] = field(default_factory=dict)
    _expected: dict[int, float] = field(default_factory=dict)  # by width, until observed anew
    _curve: list[float] = field(default_factory=list)  # the same by number of draft tokens

    def of_another_target(self) -> Costs:
        """Costs with the same draft model, of a target whose forward passes are not measured."""
        return replace(self, _forward_s=_Recent(), _by_width={}, _expected={}, _curve=[])

    def observe_forward(self, seconds: float, num_tokens: int = 0) -> None:
        """Add a target's forward pass over so many draft tokens, without prefill."""
        self._forward_s.observe(seconds)
        self._by_width.setdefault(_bucket(num_tokens), _Recent()).observe(seconds)
        self._expected.clear()
        self._curve.clear()

    def curve(self, num_tokens: int) -> Sequence[float]:
        """`forward_s` of 0, 1, ... draft tokens, up to ``num_tokens`` at least."""
        curve = self._curve
        if len(curve) <= num_tokens:
            curve += [self.forward_s(num) for num in range(len(curve), num_tokens + 1)]
        return curve

    def forward_s(self, num_tokens: int) -> float:
        """Expected seconds of a forward pass over so many draft tokens: T(n). Interpolated between
        measured widths. Twice the largest measured width is expected to cost no more than that one,
        a larger one to cost too much to try."""
        bucket = _bucket(num_tokens)
        if bucket not in self._expected:
            self._expected[bucket] = self._interpolated_s(bucket)
        return self._expected[bucket]

    @property
    def is_measured(self) -> bool:
        """Some forward pass was."""
        return bool(self._forward_s)

    def soonest_s(self, num_tokens: int) -> float:
        """The shortest of the latest forward passes over about so many draft tokens; 0 before
        there was one."""
        known = self._by_width.get(_bucket(num_tokens))
        return 0.0 if known is None else known.least

    def sources(self) -> Sources:
        """The most sources allowed; other requests at the same target can limit them."""
        return Sources.ALL

    def draft_budget(self) -> int:
        """Draft tokens that the next forward pass may score, as far as costs are known."""
        return sys.maxsize

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
        """The median of a width. One slow pass says little: as long as there are few, twice the
        width is expected to cost little more than twice as much."""
        seconds = self._by_width[bucket]
        own_s = seconds.median
        below = [k for k in known if k < bucket]
        if len(seconds) >= _FEWEST or not below:
            return own_s
        return min(own_s, self._width_s(below[-1], known) * _STEEPEST ** (bucket - below[-1]))

    def observe_step(self, seconds: float, num_leaves: float = 1.0) -> None:
        """Add a forward pass of the draft model that deepened a tree, at so many leaves."""
        self._step_s.observe(seconds)
        self._step_leaves.observe(num_leaves)

    def step_leaves(self) -> int:
        """Leaves that the draft model's next forward pass is expected to expand."""
        return max(1, round(self._step_leaves.median)) if self._step_leaves else 1

    def step_s(self) -> float:
        """Expected seconds of the draft model's next forward pass."""
        return self._step_s.median if self._step_s else _UNKNOWN_STEP_S

    def observe_root(self, seconds: float) -> None:
        """Add the work until the successors of a text that no draft had predicted were known."""
        self._root_s.observe(seconds)

    def root_s(self) -> float:
        """Expected seconds until they are known, for a drafter in the middle of a step."""
        own_s = self._root_s.median if self._root_s else self.step_s()
        return self.step_s() / 2 + own_s

    def observe_draft(self, num_tokens: int, seconds: float) -> None:
        """Add drafted tokens and the seconds they took, without prefill."""
        if num_tokens and seconds > 0:
            self._token_s.observe(seconds / num_tokens)

    def budget(self) -> int:
        """The draft tokens that fit in one forward pass of the target; at least one
        (2503.00784)."""
        if not self._forward_s or not self._token_s:
            return _UNKNOWN_BUDGET
        return max(1, round(self._forward_s.median / self._token_s.median))

    def draft_s(self, num_tokens: int) -> float:
        """Expected seconds of a draft of so many tokens."""
        if not self._token_s:
            return _UNKNOWN_DRAFT_S
        return num_tokens * self._token_s.median


def _bucket(num_tokens: int) -> int:
    """The bucket of a width: 0, 1, 2 to 3, 4 to 7, 8 to 15, ..."""
    return num_tokens.bit_length()
