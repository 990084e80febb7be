"""Measure quickly whether a pair's drafts can pay on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from duodec.core.draft import Draft
from duodec.core.protocols import Query, RowQuery
from duodec.core.round import median
from duodec.core.rows import check_finite
from duodec.machine.cores import CorePlan

if TYPE_CHECKING:
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.models.targets import LoadedTarget, TargetModel

NUM_SCORED = 8  # draft tokens of the measured verification
NUM_LEAVES = 4  # leaves of the measured wide draft step
_TEXT = (
    "The sky is blue because air scatters the short waves of sunlight more than the long ones. "
    "At dusk the light crosses more air, the blue is lost on the way, and what is left is red. "
)
_NUM_READ = 64  # tokens of context before anything is timed
_MOST, _FEWEST, _BUDGET_S = 9, 3, 1.5  # runs of a measurement; seconds after which it ends


@dataclass(frozen=True)
class Speed:
    """Seconds of one forward pass each; the draft's are None without a draft."""

    plain_s: float  # one token of the target
    verify_s: float  # the target over NUM_SCORED draft tokens
    draft_s: float | None  # one draft token
    wide_s: float | None  # a draft step over NUM_LEAVES leaves

    @property
    def verify_cost(self) -> float:
        """In plain forward passes."""
        return self.verify_s / self.plain_s

    @property
    def draft_cost(self) -> float:
        """Plain forward passes that NUM_SCORED draft tokens cost."""
        return NUM_SCORED * (self.draft_s or 0.0) / self.plain_s

    def num_needed(self, *, shares_cores: bool) -> float:
        """Accepted tokens of NUM_SCORED with which a round is as fast as plain decoding."""
        costs = (self.verify_cost, self.draft_cost)
        return max(0.0, (sum(costs) if shares_cores else max(costs)) - 1)


def measure(target: LoadedTarget, draft: LlamaModel | None, plan: CorePlan) -> Speed:
    """Time both models after a short text, each alone and with the threads of ``plan``. Raises
    ComputeFailed if one computes logits that are not finite."""
    plain_s, verify_s = _measure_target(target, plan)
    draft_s, wide_s = _measure_draft(draft, plan) if draft else (None, None)
    return Speed(plain_s, verify_s, draft_s, wide_s)


def _measure_target(loaded: LoadedTarget, plan: CorePlan) -> tuple[float, float]:
    text = _tokens(loaded.model)
    target = loaded.start(len(text), plan)
    try:
        (scores,) = target.score([Query(0, text[:_NUM_READ])])
        scores.draw(0)
        plain_s = _median_s(lambda i: target.score([Query(0, text[: _NUM_READ + i])]))
        chains = _strange_tokens(loaded.model.num_vocab)
        verify_s = _median_s(
            lambda i: target.score(
                [Query(0, text[: _NUM_READ + _MOST + i], Draft.chain(chains[i]))]
            )
        )
    finally:
        target.close()
    return plain_s, verify_s


def _measure_draft(model: LlamaModel, plan: CorePlan) -> tuple[float, float]:
    from duodec.backends.llamacpp.recipe import LlamaRecipe

    text = _tokens(model)
    draft = LlamaRecipe(model.path, len(text), len(plan.draft_cores)).over(model)
    try:
        (row,) = draft.rows(RowQuery(0, text[:_NUM_READ], Draft(), (0,)))
        check_finite(row)
        draft_s = _median_s(lambda i: draft.rows(RowQuery(0, text[: _NUM_READ + i], Draft(), (0,))))
        leaves = [[[token] for token in chain] for chain in _strange_tokens(model.num_vocab)]
        rows = tuple(range(1, NUM_LEAVES + 1))
        known = text[: _NUM_READ + _MOST - 1]
        wide_s = _median_s(
            lambda i: draft.rows(RowQuery(0, known, Draft.sequences(leaves[i][:NUM_LEAVES]), rows))
        )
    finally:
        draft.close()
    return draft_s, wide_s


def _tokens(model: TargetModel) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    tokens = model.tokenize(_TEXT, is_templated=False)
    wanted = _NUM_READ + 2 * _MOST
    repeated = tokens * -(-wanted // len(tokens))
    return np.array(repeated[:wanted], dtype=np.int32)


def _strange_tokens(num_vocab: int) -> list[list[int]]:
    """For each run draft tokens that no earlier run had, so that no memo holds them."""
    return [
        [(num_vocab // 2 + NUM_SCORED * i + j) % num_vocab for j in range(NUM_SCORED)]
        for i in range(_MOST)
    ]


def _median_s(run: Callable[[int], object]) -> float:
    """The median of some runs, each called with its number; the first is a warm-up."""
    times = []
    end_s = perf_counter() + _BUDGET_S
    for i in range(_MOST):
        start_s = perf_counter()
        run(i)
        times.append(perf_counter() - start_s)
        if len(times) > _FEWEST and perf_counter() > end_s:
            break
    return median(times[1:])
