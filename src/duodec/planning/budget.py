"""What the shared target costs, and how the planners of several answers share it.

A forward's cost depends on all of its rows, so one answer's drafts slow every other one. Each
planner chooses the width n that maximises its own (1 + v) / F(n), where v is what it expects of its
draft. What should be maximised is the sum over all answers of (1 + v), over T(others + n). Where k
answers are alike, both have the same optimum for F(n) = T(others) * (T(others + n) / T(others))^k.

Of many rows, what a few more cost is a small difference between two noisy numbers, so T is a
straight line there, through the latest forwards of all widths. What drafts cost is not forgotten
while there are none, and the first forwards with drafts of about as many answers have few of them:
else a trial would begin with too many.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, deque
from collections.abc import Mapping

from duodec.planning.batch_governor import BatchGovernor, level
from duodec.planning.costs import Costs
from duodec.planning.governor import Sources

_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 0.002, 0.02
_PATIENCE = 0.25  # of a forward
_WINDOW = 64  # forwards that the line goes through
_PRIOR_WEIGHT = 8.0  # squared rows
_FIRST_ROOMS = (4, 12, 28)  # draft tokens of the first forwards that have any
_LEAST_SHARE = 2  # of them, for an answer
_PRIOR_SHARE = 0.25  # of what a row costs on average: expected of one more


class Line:
    """Seconds of a forward by its rows. Until rows have differed, one more is taken to be cheap
    enough to be tried: what is never tried is never known."""

    def __init__(self) -> None:
        # forwards without and with drafts of several answers
        self._seen: tuple[deque[tuple[int, float]], ...] = (deque(), deque())
        # over what was seen, of rows n and seconds s: n, s, n * n, n * s
        self._n = self._s = self._nn = self._ns = 0.0

    def observe(self, num_rows: int, seconds: float, *, is_drafted: bool = False) -> None:
        seen = self._seen[is_drafted]
        seen.append((num_rows, seconds))
        self._count(num_rows, seconds, 1)
        if len(seen) > _WINDOW:
            self._count(*seen.popleft(), -1)

    def seconds(self, num_rows: int) -> float:
        """Expected of a forward; 0 before there was one."""
        if not (num := sum(map(len, self._seen))):
            return 0.0
        mean_rows, mean_s = self._n / num, self._s / num
        spread = self._nn - self._n * mean_rows
        common = self._ns - self._n * mean_s
        prior_s = _PRIOR_SHARE * mean_s / mean_rows
        row_s = max(0.0, (common + _PRIOR_WEIGHT * prior_s) / (spread + _PRIOR_WEIGHT))
        return max(mean_s + row_s * (num_rows - mean_rows), row_s)

    def _count(self, n: int, s: float, times: int) -> None:
        self._n += times * n
        self._s += times * s
        self._nn += times * n * n
        self._ns += times * n * s


class BatchBudget:
    """The costs of the shared target by the rows of its forwards, and who asked for how many.

    On cores that a drafter shares it leaves ``cores_beside`` to the target (None: the target
    computes elsewhere). There each draft of several answers slows the forward of all: prompts are
    read without drafts beside.
    """

    def __init__(self, costs: Costs, cores_beside: int | None = None) -> None:
        self._costs = costs
        self._line = Line()
        self._governor = BatchGovernor(cores_beside)
        self._shares_cores = cores_beside is not None
        self._num_drafted = Counter[int]()  # forwards with drafts, by level
        self._given = 0  # draft tokens of the next forward that answers were given room for
        self._rows: dict[int, int] = {}  # by slot in work, of its last forward; 0 before the first

    def observe(self, rows: Mapping[int, int], seconds: float) -> None:
        """A forward that read no prompt, with so many rows by slot."""
        num_rows = sum(rows.values())
        # what is alone may be computed by another target, where drafts cost less
        is_drafted = num_rows > len(rows) > 1
        self._line.observe(num_rows, seconds, is_drafted=is_drafted)
        self._num_drafted[level(len(rows))] += is_drafted
        if len(rows) == 1:
            self._costs.observe_forward(seconds, num_rows - 1)
        self._rows.update((slot, num) for slot, num in rows.items() if slot in self._rows)

    def took(self, num_tokens: int) -> None:
        """Tokens that a forward brought an answer."""
        self._governor.took(num_tokens)

    def ended(
        self, num_answers: int, end_s: float, busy_s: float = 0.0, *, is_plain_work: bool
    ) -> None:
        """A forward ended, with so many answers at work, when this process had computed for
        ``busy_s`` seconds in all; plain work if it read no prompt."""
        self._given = 0
        self._governor.cycle(num_answers, end_s, busy_s, is_plain_work=is_plain_work)

    def begin(self, slot: int) -> None:
        self._rows[slot] = 0

    def end(self, slot: int) -> None:
        self._rows.pop(slot, None)

    def turn(self, slot: int) -> float:
        """How much longer the drafter's next step seems to a slot: for ever, where others are at
        work. Their forward does not wait, and who misses it loses more than a step brings."""
        return math.inf if self._rows.keys() - {slot} else 1.0

    def patience_s(self) -> float:
        """How long a forward waits for answers that are not ready yet."""
        usual_s = max(self._costs.forward_s(0), self._line.seconds(len(self._rows)))
        return min(max(_PATIENCE * usual_s, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)

    def forward_s(self, slot: int, num_tokens: int) -> float:
        """F(n) of the slot's planner: T(n) itself where nobody else is at work."""
        if len(self._rows) < 2:
            return self._costs.forward_s(num_tokens)
        others = [rows for other, rows in self._rows.items() if other != slot]
        if num_tokens and self._sources() == Sources.NONE:
            return math.inf
        width = sum(max(1, rows) for rows in others) + 1
        base_s, whole_s = (self._line.seconds(width + n) for n in (0, num_tokens))
        if base_s <= 0:  # nobody knows yet
            return self._costs.forward_s(num_tokens)
        return base_s * (whole_s / base_s) ** (1 + len(others))

    def room(self) -> int:
        """Draft tokens that an answer may have scored in the next forward."""
        num_answers = len(self._rows)
        num_drafted = self._num_drafted[level(num_answers)]
        if num_answers < 2 or num_drafted >= len(_FIRST_ROOMS):
            return sys.maxsize
        room = _FIRST_ROOMS[num_drafted]
        share = min(room - self._given, max(_LEAST_SHARE, room // num_answers))
        self._given += share
        return share

    def sources(self) -> Sources:
        """The most that an answer may draft from."""
        if len(self._rows) < 2:
            return Sources.ALL
        return self._sources()

    def _sources(self) -> Sources:
        has_reader = 0 in self._rows.values()
        return Sources.NONE if self._shares_cores and has_reader else self._governor.sources()

    def costs(self, slot: int) -> Costs:
        """The costs that the slot's planner sees: its own but for the target's."""
        return _SlotCosts(self._costs, self, slot)


class _SlotCosts(Costs):
    """One slot's view: the forward pass of all, which waits for no drafts of one. What the draft
    model costs is the same for all."""

    def __init__(self, known: Costs, budget: BatchBudget, slot: int) -> None:
        super().__init__(**vars(known))
        self._budget, self._slot = budget, slot

    def forward_s(self, num_tokens: int) -> float:
        return self._budget.forward_s(self._slot, num_tokens)

    def room(self) -> int:
        return self._budget.room()

    def sources(self) -> Sources:
        return self._budget.sources()

    def step_s(self) -> float:
        return super().step_s() * self._budget.turn(self._slot)
