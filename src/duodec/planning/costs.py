"""Measure what the target's forward pass and a draft token cost, from every round."""

from __future__ import annotations

import math
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from duodec.core.round import TICK_S, median
from duodec.drafting import constants
from duodec.planning.governor import Sources

_Width = tuple[int, float]
"""A number of draft tokens, and the seconds of a forward pass over them."""


class _Recent:
    """Keep the latest observations; their median is computed once."""

    def __init__(self, window: int = constants.WINDOW) -> None:
        self._values = deque[float](maxlen=window)
        self._median: float | None = None
        self.last = 0  # number of the latest observation, among all of its kind

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

    def scale(self, factor: float) -> None:
        """Multiply all observations."""
        self._values = deque((factor * value for value in self._values), self._values.maxlen)
        self._median = None


@dataclass
class Costs:
    """Keep running medians of the seconds of a target's forward pass and of a draft token."""

    cliff: float = constants.CLIFF_PER_ROW
    _forward_s: _Recent = field(default_factory=_Recent)
    _token_s: _Recent = field(default_factory=_Recent)
    _step_s: _Recent = field(default_factory=_Recent)
    _step_leaves: _Recent = field(default_factory=_Recent)
    _root_s: _Recent = field(default_factory=_Recent)
    _read_token_s: _Recent = field(default_factory=_Recent)
    _heads_s: _Recent = field(default_factory=_Recent)
    _head_level_s: _Recent = field(default_factory=_Recent)
    # These are forward passes without a draft.
    _lately: _Recent = field(default_factory=lambda: _Recent(constants.RECENT_PLAIN_PASSES))
    # Times are kept by number of draft tokens, relative to forward passes without a draft: a
    # machine that warms up, or a text that grows, makes all widths faster or slower.
    _by_width: dict[int, _Recent] = field(default_factory=dict)
    # The fields below are computed when needed; each observation empties them.
    _measured: list[_Width] = field(default_factory=list)  # cost by width
    # This is the expected time and the longest time by width.
    _curve: array[float] = field(default_factory=lambda: array("d"))
    _worst: array[float] = field(default_factory=lambda: array("d"))
    _num_curve: int = 0  # most draft tokens requested so far
    _by_size: dict[int, _Recent] = field(default_factory=dict)  # by size: 0, 1, 2 to 3, 4 to 7, ...
    _num_passes: int = 0

    def of_another_target(self) -> Costs:
        """Return costs with the same draft model, for a target whose forward passes are not
        measured."""
        return replace(
            self, _forward_s=_Recent(), _by_width={}, _by_size={}, _measured=[],
            _curve=array("d"), _worst=array("d"), _num_passes=0, _heads_s=_Recent(),
            _head_level_s=_Recent(), _lately=_Recent(constants.RECENT_PLAIN_PASSES),
        )  # fmt: skip

    def observe_forward(self, seconds: float, num_tokens: int = 0) -> None:
        """Record a target's forward pass over ``num_tokens`` draft tokens, without prefill."""
        self._forward_s.observe(seconds)
        self._num_passes += 1
        if not num_tokens:
            if not self._lately:
                for own in self._by_width.values():
                    own.scale(1 / max(seconds, TICK_S))
            self._lately.observe(max(seconds, TICK_S))
        self._by_size.setdefault(num_tokens.bit_length(), _Recent()).observe(seconds)
        known = self._by_width.setdefault(num_tokens, _Recent())
        known.observe(seconds / self._plain_s)
        known.last = self._num_passes
        self._measured.clear()
        self._curve, self._worst = array("d"), array("d")

    def teach(self, known: Iterable[tuple[int, float]]) -> None:
        """Add forward passes that were measured before the first completion: the draft tokens and
        the seconds of each."""
        for num_tokens, seconds in known:
            for _ in range(constants.MIN_PASSES_OF_WIDTH):
                self.observe_forward(seconds, num_tokens)

    def teach_rows(self, pass_s: Mapping[int, float]) -> None:
        """Do the same by rows. The narrowest pass is plain decoding. More rows than the widest take
        two passes, so there is no cliff."""
        self.cliff = 0.0 if pass_s else self.cliff
        known = {num_rows - 1: seconds for num_rows, seconds in pass_s.items()}
        if pass_s:
            known[0] = pass_s[min(pass_s)]
        self.teach(sorted(known.items()))

    @property
    def _plain_s(self) -> float:
        """Return the recent seconds of a forward pass without a draft; 1 before the first one."""
        return self._lately.median if self._lately else 1.0

    def curve(self, num_tokens: int) -> Sequence[float]:
        """Return `forward_s` of 0, 1, ... draft tokens, up to ``num_tokens`` at least."""
        if len(self._curve) <= num_tokens:
            self._num_curve = max(self._num_curve, num_tokens)
            self._curve = array("d", self._expected(self._num_curve))
            self._worst = array("d")
        return self._curve

    def forward_s(self, num_tokens: int) -> float:
        """Return T(n), the expected seconds of a forward pass over ``num_tokens`` draft tokens.

        T is linear between measured widths. Beyond the widest it goes on with the slope of their
        wider half. More than twice as many rows are expected to cost too much: as long as a pass
        costs no more than its halves, a trial then costs no more than two passes of the widest.
        """
        seconds: float = self.curve(num_tokens)[num_tokens]
        return seconds

    def worst(self, num_tokens: int) -> Sequence[float]:
        """Return the longest expected seconds of forward passes, by width as in `curve`. Beyond the
        measured widths there may be a cliff: a pass may take as long as two of the widest, and each
        row may cost what few rows do."""
        expected = self.curve(num_tokens)
        if expected is self._curve and self._worst:
            return self._worst
        widest, worst = max(self._by_width, default=num_tokens), array("d", expected)
        row_s = max(self.cliff * expected[0], self._slope_s)
        for num in range(widest + 1, len(worst)):
            dear_s = expected[widest] + row_s * (num - widest)
            worst[num] = max(worst[num], 2 * expected[widest], dear_s)
        if expected is self._curve:
            self._worst = worst
        return worst

    def row_s(self, num_tokens: int) -> float:
        """Return the expected seconds that one draft token adds to a pass over ``num_tokens``."""
        more_s = self.forward_s(num_tokens + 1)
        return more_s - self.forward_s(num_tokens) if math.isfinite(more_s) else self._slope_s

    @property
    def is_measured(self) -> bool:
        """Return whether some forward pass was measured."""
        return bool(self._forward_s)

    @property
    def knows_plain(self) -> bool:
        """Return whether T(0) was measured. Until then nothing says whether a draft pays."""
        return len(self._by_width.get(0, ())) >= constants.MIN_ROUNDS

    def soonest_s(self, num_tokens: int) -> float:
        """Return the shortest of the latest forward passes over about ``num_tokens`` draft tokens;
        0 before the first one."""
        known = self._by_size.get(num_tokens.bit_length())
        return known.least if known else 0.0

    def sources(self) -> Sources:
        """Return the most sources allowed; other requests at the same target can limit them."""
        return Sources.ALL

    def draft_budget(self) -> int:
        """Return the number of draft tokens that the next forward pass may score, as far as costs
        are known."""
        return sys.maxsize

    def _known(self) -> Sequence[_Width]:
        """Return the costs of measured widths, by width. They never fall."""
        if not self._measured:
            self._measured[:] = self._pooled()
        return self._measured

    def _pooled(self) -> list[_Width]:
        newest = self._num_passes - constants.MAX_PAUSE
        pooled: list[tuple[int, float, float]] = []  # last width, cost and weight of each pool
        found: list[_Width] = []
        for width in sorted(self._by_width):
            own = self._by_width[width]
            if width and own.last < newest:
                continue
            seconds, weight = self._width_s(width, own, pooled), float(len(own))
            while pooled and pooled[-1][1] > seconds:  # noise: more rows seem to cost less
                _, other_s, other = pooled.pop()
                seconds = (seconds * weight + other_s * other) / (weight + other)
                weight += other
            pooled.append((width, seconds, weight))
            found.append((width, 0.0))
        costs = iter(pooled)
        end, seconds, _ = next(costs, (-1, 0.0, 0.0))
        for i, (width, _) in enumerate(found):
            if width > end:
                end, seconds, _ = next(costs)
            found[i] = width, seconds
        return found

    def _width_s(
        self, width: int, own: _Recent, below: Sequence[tuple[int, float, float]]
    ) -> float:
        """Return the median of a width. One slow pass says little: while there are few, T is
        expected to grow by a step, or little faster than the rows."""
        own_s = self._plain_s * (own.median if width else 1.0)
        if len(own) >= constants.MIN_PASSES_OF_WIDTH or not below:
            return own_s
        narrower, narrower_s, _ = below[-1]
        growth = max(constants.MAX_COST_STEP, (1 + width) / (1 + narrower))
        capped: float = min(own_s, narrower_s * growth)
        return capped

    @property
    def _slope_s(self) -> float:
        """Return the seconds of one more draft token beyond the measured widths: the average in
        their wider half."""
        known = self._known()
        if len(known) < 2:
            return 0.0
        first, (last, last_s) = known[0][0], known[-1]
        half, half_s = next((w, s) for w, s in reversed(known) if 2 * w <= last or w == first)
        return (last_s - half_s) / (last - half)

    def _expected(self, num_tokens: int) -> list[float]:
        """Compute the curve, up to ``num_tokens`` at least."""
        known = self._known()
        if not known:
            unknown = [constants.UNKNOWN_FORWARD_S] * (constants.FIRST_TOKENS + 1)
            return unknown + [math.inf] * (num_tokens - constants.FIRST_TOKENS)
        (low, low_s), (last, last_s) = known[0], known[-1]
        curve = [low_s] * (low + 1)
        for width, seconds in known[1:]:
            slope = (seconds - low_s) / (width - low)
            curve += [low_s + slope * (n - low) for n in range(low + 1, width + 1)]
            low, low_s = width, seconds
        slope = self._slope_s
        widest = max(1, 2 * last + 1)  # twice as many rows
        curve += [last_s + slope * (n - last) for n in range(last + 1, widest + 1)]
        return curve + [math.inf] * (num_tokens + 1 - len(curve))

    def observe_step(self, seconds: float, num_leaves: float = 1.0) -> None:
        """Record a forward pass of the draft model that deepened a tree by ``num_leaves``
        leaves."""
        self._step_s.observe(seconds)
        self._step_leaves.observe(num_leaves)

    def step_leaves(self) -> int:
        """Return how many leaves the draft model's next forward pass is expected to expand."""
        return max(1, round(self._step_leaves.median)) if self._step_leaves else 1

    @property
    def knows_step(self) -> bool:
        """Return whether forward passes of the draft model were measured."""
        return bool(self._step_s)

    def step_s(self) -> float:
        """Return the expected seconds of the draft model's next forward pass."""
        return self._step_s.median if self._step_s else constants.UNKNOWN_STEP_S

    def step_share(self) -> float:
        """Return a draft step's time as a share of a target's forward pass; 1 where either was not
        measured."""
        if not self._step_s or not self.is_measured:
            return 1.0
        return self.step_s() / max(TICK_S, self.forward_s(0))

    def observe_root(self, seconds: float) -> None:
        """Record how long it took until the successors of a text were known that no draft had
        predicted."""
        self._root_s.observe(seconds)

    def root_s(self) -> float:
        """Return the expected seconds until these successors are known, once the drafter sees the
        text."""
        return self._root_s.median if self._root_s else self.step_s()

    def observe_read(self, num_tokens: int, seconds: float) -> None:
        """Record the time for which the draft model read ``num_tokens`` that were new to it."""
        self._read_token_s.observe(seconds / num_tokens)

    def read_s(self, num_tokens: int) -> float:
        """Return the expected seconds for which the draft model reads ``num_tokens``."""
        if not self._read_token_s:
            return num_tokens * self.step_s() / constants.TOKENS_READ_IN_STEP
        return num_tokens * self._read_token_s.median

    def observe_heads(self, seconds: float, num_levels: int) -> None:
        """Record the time in which the target's own heads proposed a draft of ``num_levels``
        levels; the forward pass's time does not include it."""
        self._heads_s.observe(seconds)
        if num_levels:
            self._head_level_s.observe(seconds / num_levels)

    def heads_s(self) -> float:
        """Return the expected seconds that heads add to a forward pass; 0 before the first one."""
        return self._heads_s.median if self._heads_s else 0.0

    def head_level_s(self) -> float:
        """Return the expected seconds of one level of a draft by heads; 0 before the first one."""
        return self._head_level_s.median if self._head_level_s else 0.0

    def observe_draft(self, num_tokens: int, seconds: float) -> None:
        """Record drafted tokens and the seconds they took, without prefill."""
        if num_tokens and seconds > 0:
            self._token_s.observe(seconds / num_tokens)

    def budget(self) -> int:
        """Return how many draft tokens fit in one forward pass of the target; at least one
        (2503.00784)."""
        if not self._forward_s or not self._token_s:
            return constants.FIRST_BUDGETS[0]
        return max(1, round(self._forward_s.median / self._token_s.median))

    def draft_s(self, num_tokens: int) -> float:
        """Return the expected seconds of a draft of ``num_tokens``."""
        if not self._token_s:
            return constants.MIN_WAIT_S
        return num_tokens * self._token_s.median
