"""Draft in turns with a target that computes on the same cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.protocols import DraftModel, DraftRequest, Plan


@runtime_checkable
class HasThreads(Protocol):
    """A draft model that can take turns with a target: with fewer threads in parallel with it."""

    def use_all_threads(self, is_alone: bool) -> None:
        """Compute on all cores of this process, or on the draft model's share of them."""


@dataclass(frozen=True)
class InTurns:
    """Another plan, while the target waits: on all cores, and ``num_steps`` forward passes of the
    draft model at most (None: all that the plan takes)."""

    plan: Plan
    num_steps: int | None = None

    @property
    def num_tokens(self) -> int:
        return self.plan.num_tokens

    def grow(self, model: DraftModel, request: DraftRequest) -> Iterator[Draft | CandidateTree]:
        steps = self.plan.grow(model, request)
        if self.num_steps is not None:  # what is left of the last tree comes first
            steps = islice(steps, 1 + self.num_steps)
        while True:
            _use_all_threads(model, True)
            try:
                draft = next(steps, None)
            finally:  # other slots' turns come between two steps
                _use_all_threads(model, False)
            if draft is None:
                return
            yield draft


def _use_all_threads(model: DraftModel, is_alone: bool) -> None:
    if isinstance(model, HasThreads):
        model.use_all_threads(is_alone)
