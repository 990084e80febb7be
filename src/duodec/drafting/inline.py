"""The drafter's in-process twin: the same drafts, made while `submit` is waited for."""

from __future__ import annotations

from time import perf_counter

from duodec.core.draft import Draft
from duodec.core.protocols import Drafted, DraftModel, DraftRequest


class InlineDrafter:
    """Drafts at once and in full. The seam's fake: deterministic, with nothing to wait for."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._drafted: dict[int, Drafted] = {}

    @property
    def restarts(self) -> int:
        return 0

    def submit(self, request: DraftRequest) -> None:
        start = perf_counter()
        tree = Draft()
        for step in request.plan.grow(self._model, request):
            tree = step
        self._drafted[request.slot] = Drafted(tree, draft_s=perf_counter() - start)

    def poll(self, slot: int, wait_s: float = 0.0) -> Drafted:
        return self._drafted.get(slot, Drafted())

    def cancel(self, slot: int) -> None:
        self._drafted.pop(slot, None)
