"""Draft in turns with a target that computes on the same cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.drafters import DraftModel, DraftRequest, Plan


@dataclass(frozen=True)
class InTurns:
    """Run another plan while the target waits: on all cores, and with at most ``num_steps`` forward
    passes of the draft model (None: as many as the plan takes)."""

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
            model.compute_alone(True)
            try:
                draft = next(steps, None)
            finally:  # other slots' turns come between two steps
                model.compute_alone(False)
            if draft is None:
                return
            yield draft
