"""Draft in the caller's process: the same drafts as a drafter process, made within `submit`."""

from __future__ import annotations

from time import perf_counter

from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.drafters import Drafted, DraftModel, DraftRequest


class InlineDrafter:
    """Draft at once and in full: a deterministic drafter without waits, for tests."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._drafted: dict[int, Drafted] = {}

    @property
    def restarts(self) -> int:
        return 0

    def submit(self, request: DraftRequest) -> None:
        start = perf_counter()
        made: Draft | CandidateTree = Draft()
        num_steps = 0
        for step in request.plan.grow(self._model, request):
            made, num_steps = step, num_steps + 1
        draft_s = perf_counter() - start
        if isinstance(made, CandidateTree):
            drafted = Drafted(tree=made, num_steps=num_steps, draft_s=draft_s)
        else:
            drafted = Drafted(made, num_steps=num_steps, draft_s=draft_s)
        self._drafted[request.slot] = drafted

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        return self.heard(slot)

    def heard(self, slot: int) -> Drafted:
        return self._drafted.get(slot, Drafted())

    def cancel(self, slot: int) -> None:
        self._drafted.pop(slot, None)
