"""Share a target's cost among the planners of a batch.

A forward pass's cost depends on all of its rows, so one request's drafts slow all others. Each
planner chooses the width n that maximises its own (1 + v) / F(n), where v is the expected number of
accepted tokens. The batch should maximise the sum over all requests of (1 + v), over T(others + n).
Where k requests are alike, both have the same optimum for F(n) = T(others) * (T(others + n) /
T(others))^k.

With many rows, the cost of a few more is a small difference between two noisy numbers, so T is a
straight line there, through the latest forward passes of all widths. The cost of drafts is not
forgotten while there are none. The first passes with drafts at about one batch size have few draft
tokens, or a trial would begin with too many.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence

from duodec.core.targets import Proposed
from duodec.drafting import constants
from duodec.planning.batch_governor import BatchGovernor, level
from duodec.planning.costs import Costs
from duodec.planning.governor import Sources


class Line:
    """Seconds of a forward pass by its rows. Until rows have differed, one more is estimated to be
    cheap enough to be tried: what is never tried is never measured."""

    def __init__(self) -> None:
        # These are forward passes of several requests, without drafts and with drafts.
        self._seen: tuple[deque[tuple[int, float]], ...] = (deque(), deque())
        # These are sums over rows n and seconds s: n, s, n * n, n * s.
        self._n = self._s = self._nn = self._ns = 0.0

    def observe(self, num_rows: int, seconds: float, *, is_drafted: bool = False) -> None:
        seen = self._seen[is_drafted]
        seen.append((num_rows, seconds))
        self._count(num_rows, seconds, 1)
        if len(seen) > constants.WINDOW:
            self._count(*seen.popleft(), -1)

    def seconds(self, num_rows: int) -> float:
        """Return the expected seconds of a forward pass; 0 before the first one."""
        if not (num := sum(map(len, self._seen))):
            return 0.0
        mean_rows, mean_s = self._n / num, self._s / num
        spread = self._nn - self._n * mean_rows
        common = self._ns - self._n * mean_s
        prior_s = constants.ROW_PRIOR * mean_s / mean_rows
        weight = constants.PRIOR_WEIGHT
        row_s = max(0.0, (common + weight * prior_s) / (spread + weight))
        return max(mean_s + row_s * (num_rows - mean_rows), row_s)

    def _count(self, n: int, s: float, times: int) -> None:
        self._n += times * n
        self._s += times * s
        self._nn += times * n * n
        self._ns += times * n * s


class BatchBudget:
    """Keep the shared target's costs by the rows of its forward passes, and the rows of each
    request.

    A scheduler may have several targets: one for all requests, one for a single request, one for
    methods that read rows off the text's path. They are numbered, and each has its own costs.
    ``costs`` are those of target 0, and target ``shared`` computes several requests at once.

    Where a drafter shares cores with the target, it leaves ``cores_for_target`` to the target
    (None: the target computes elsewhere). On such cores each draft slows the whole batch's forward
    pass, so nothing is drafted during a prefill.
    """

    def __init__(
        self, costs: Costs, cores_for_target: int | None = None, *, shared: int = 0
    ) -> None:
        self._costs = costs
        self._by_target: dict[int, Costs] = {0: costs}
        self._shared = shared
        self._line = Line()
        self._governor = BatchGovernor(cores_for_target)
        self._shares_cores = cores_for_target is not None
        self._num_drafted = Counter[int]()  # number of forward passes with drafts, by level
        self._given = 0  # draft tokens of the next pass that were granted to requests
        self._rows: dict[int, int] = {}  # rows in the last pass by active slot; 0: none yet
        self._targets: dict[int, int] = {}  # target by active slot, where it is not target 0

    def observe(
        self, rows: Mapping[int, int], seconds: float, targets: Collection[int] = (0,)
    ) -> None:
        """Record a forward pass of these targets without prefill, with its rows by slot. It tells
        nothing about any other target."""
        num_rows = sum(rows.values())
        is_drafted = num_rows > len(rows) > 1
        if self._shared in targets:
            self._line.observe(num_rows, seconds, is_drafted=is_drafted)
        self._num_drafted[level(len(rows))] += is_drafted
        if len(rows) == 1:
            (target,) = targets
            self._of_target(target).observe_forward(seconds, num_rows - 1)
        self._rows.update((slot, num) for slot, num in rows.items() if slot in self._rows)

    def observe_heads(self, slot: int, proposed: Proposed) -> None:
        """Record the time that the heads of the slot's target took; the pass does not include
        it."""
        self.alone(slot).observe_heads(proposed.seconds, proposed.num_levels)

    def count_tokens(self, num_tokens: int) -> None:
        """Count the tokens that a forward pass gave a request."""
        self._governor.count_tokens(num_tokens)

    def ended(
        self, num_requests: int, end_s: float, busy_s: float = 0.0, *, is_plain_work: bool
    ) -> None:
        """End a forward pass of ``num_requests`` requests. This process has computed for ``busy_s``
        seconds in all. ``is_plain_work``: the pass had no prefill."""
        self._given = 0
        self._governor.cycle(num_requests, end_s, busy_s, is_plain_work=is_plain_work)

    def begin(self, slot: int) -> None:
        self._rows[slot] = 0

    def use(self, slot: int, target: int) -> None:
        """Let ``target`` compute the slot's request from now on."""
        self._targets[slot] = target

    def end(self, slot: int) -> None:
        self._rows.pop(slot, None)
        self._targets.pop(slot, None)

    def has_company(self, slot: int) -> bool:
        """Return whether other slots are active."""
        return bool(self._rows.keys() - {slot})

    def turn(self, slot: int) -> float:
        """Return how much longer the drafter's next step takes for a slot: infinitely long while
        other slots are active. Their forward pass does not wait, and missing it costs more than a
        step gains."""
        return math.inf if self.has_company(slot) else 1.0

    def patience_s(self) -> float:
        """Return how long a forward pass waits for requests that are not ready yet."""
        usual_s = max(self._costs.forward_s(0), self._line.seconds(len(self._rows)))
        least_s, most_s = constants.MIN_PATIENCE_S, constants.MAX_PATIENCE_S
        return min(max(constants.PATIENCE_OF_BATCH * usual_s, least_s), most_s)

    def forward_s(self, slot: int, num_tokens: int) -> float:
        """F(n) of the slot's planner: T(n) itself if no other slot is active."""
        if len(self._rows) < 2:
            return self.alone(slot).forward_s(num_tokens)
        others = [rows for other, rows in self._rows.items() if other != slot]
        if num_tokens and self._sources() == Sources.NONE:
            return math.inf
        width = sum(max(1, rows) for rows in others) + 1
        base_s, whole_s = (self._line.seconds(width + n) for n in (0, num_tokens))
        if base_s <= 0:  # not measured yet
            return self._costs.forward_s(num_tokens)
        return base_s * (whole_s / base_s) ** (1 + len(others))

    def draft_budget(self) -> int:
        """Return the number of draft tokens that a request may have scored in the next forward
        pass."""
        num_requests = len(self._rows)
        num_drafted = self._num_drafted[level(num_requests)]
        if num_requests < 2 or num_drafted >= len(constants.FIRST_BUDGETS):
            return sys.maxsize
        budget = constants.FIRST_BUDGETS[num_drafted]
        # More may have been granted while there were more requests, whose budget was larger.
        left = max(0, budget - self._given)
        share = min(left, max(constants.MIN_FIRST_BUDGET, budget // num_requests))
        self._given += share
        return share

    def sources(self) -> Sources:
        """Return the most sources that a request may draft from."""
        if len(self._rows) < 2:
            return Sources.ALL
        return self._sources()

    def _sources(self) -> Sources:
        has_prefill = 0 in self._rows.values()
        return Sources.NONE if self._shares_cores and has_prefill else self._governor.sources()

    def alone(self, slot: int) -> Costs:
        """Return the costs of the slot's target while it computes nothing else."""
        return self._of_target(self._targets.get(slot, 0))

    def _of_target(self, target: int) -> Costs:
        if target not in self._by_target:
            self._by_target[target] = self._costs.of_another_target()
        return self._by_target[target]

    def costs(self, slot: int) -> Costs:
        """Return the costs that the slot's planner sees: its own, with the shared target's."""
        return _SlotCosts(self._costs, self, slot)


class _SlotCosts(Costs):
    """Show a slot the costs of the batch's forward pass, which waits for no single slot's drafts.
    The draft model's costs are the same for all slots."""

    def __init__(self, known: Costs, budget: BatchBudget, slot: int) -> None:
        super().__init__(**vars(known))
        self._budget, self._slot = budget, slot

    def forward_s(self, num_tokens: int) -> float:
        return self._budget.forward_s(self._slot, num_tokens)

    def curve(self, num_tokens: int) -> Sequence[float]:
        if not self._budget.has_company(self._slot):
            return self._budget.alone(self._slot).curve(num_tokens)
        return [self.forward_s(num) for num in range(num_tokens + 1)]  # other slots change it

    def worst(self, num_tokens: int) -> Sequence[float]:
        if not self._budget.has_company(self._slot):
            return self._budget.alone(self._slot).worst(num_tokens)
        return super().worst(num_tokens)

    @property
    def is_measured(self) -> bool:
        return self._budget.alone(self._slot).is_measured

    @property
    def knows_plain(self) -> bool:  # a batch tries few drafts at first, whatever is known
        alone = self._budget.alone(self._slot)
        return self._budget.has_company(self._slot) or alone.knows_plain

    def soonest_s(self, num_tokens: int) -> float:
        return self._budget.alone(self._slot).soonest_s(num_tokens)

    def heads_s(self) -> float:
        return self._budget.alone(self._slot).heads_s()

    def head_level_s(self) -> float:
        return self._budget.alone(self._slot).head_level_s()

    def budget(self) -> int:
        return self._budget.alone(self._slot).budget()

    def draft_budget(self) -> int:
        return self._budget.draft_budget()

    def sources(self) -> Sources:
        return self._budget.sources()

    def step_s(self) -> float:
        return super().step_s() * self._budget.turn(self._slot)
