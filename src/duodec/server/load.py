"""What the shared target costs, and how the planners of several answers share it.

A forward's cost depends on all of its rows, so one answer's drafts slow every other one. Each
planner chooses the width n that maximises its own (1 + v) / F(n), where v is what it expects of its
draft. What should be maximised is the sum over all answers of (1 + v), over T(others + n). Where k
answers are alike, both have the same optimum for F(n) = T(others) * (T(others + n) / T(others))^k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from threading import Lock

from duodec.planning.costs import Costs

_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 0.002, 0.02
_PATIENCE = 0.25  # of a forward


class Load:
    """The costs of the shared target by the rows of its forwards, and who asked for how many."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._rows: dict[int, int] = {}  # by slot in work, of its last forward
        self._drafting: set[int] = set()  # slots whose drafts the drafter makes
        self._lock = Lock()

    def observe(self, rows: Mapping[int, int], seconds: float) -> None:
        """A forward that read no prompt, with so many rows by slot."""
        with self._lock:
            self._costs.observe_forward(seconds, sum(rows.values()) - 1)
            self._rows.update(rows)

    def begin(self, slot: int) -> None:
        with self._lock:
            self._rows[slot] = 1

    def drafts(self, slot: int, is_drafting: bool) -> None:
        """Whether the drafter works for a slot."""
        with self._lock:
            (self._drafting.add if is_drafting else self._drafting.discard)(slot)

    def end(self, slot: int) -> None:
        with self._lock:
            self._rows.pop(slot, None)
            self._drafting.discard(slot)

    @property
    def num_drafting(self) -> int:
        return len(self._drafting)

    def patience_s(self) -> float:
        """How long a forward waits for answers that are not ready yet."""
        with self._lock:
            usual_s = self._costs.forward_s(0)
        return min(max(_PATIENCE * usual_s, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)

    def forward_s(self, slot: int, num_tokens: int) -> float:
        """F(n) of the slot's planner: T(n) itself where nobody else is at work."""
        with self._lock:
            others = [rows for other, rows in self._rows.items() if other != slot]
            if not others:
                return self._costs.forward_s(num_tokens)
            width = sum(others)
            base_s = self._costs.forward_s(width)
            if math.isinf(base_s):  # so many were never at work: what is known must do
                base_s = self._costs.forward_s(0)
            if not num_tokens:
                return base_s
            whole_s = self._costs.forward_s(width + num_tokens)
        if base_s <= 0:
            return whole_s
        return base_s * (whole_s / base_s) ** (1 + len(others))

    def costs(self, slot: int) -> Costs:
        """The costs that the slot's planner sees: its own but for the target's."""
        with self._lock:
            return _SlotCosts(deepcopy(self._costs), self, slot)


class _SlotCosts(Costs):
    """One slot's view: the forward of all, and draft steps of a drafter that serves others too."""

    def __init__(self, known: Costs, load: Load, slot: int) -> None:
        super().__init__(**vars(known))
        self._load, self._slot = load, slot

    def forward_s(self, num_tokens: int) -> float:
        return self._load.forward_s(self._slot, num_tokens)

    def step_s(self) -> float:
        return super().step_s() * max(1, self._load.num_drafting)
