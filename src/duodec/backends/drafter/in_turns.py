"""Draft on the target's own device, in its thread: step by step, while drafts are waited for.

No process and no message lies between the two. Its drafts are as untrusted as any draft, and an
error in it ends no text: from then on another drafter drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from types import TracebackType
from typing import Protocol

from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.drafters import Drafted, Drafter, DraftModel, DraftRequest
from duodec.core.sampling.grammar import Grammar, Mask

_MOST_FAULTS = 2  # in a row; a single failure may be a lack of memory


class ClosingDrafter(Drafter, Protocol):
    """Define a drafter that can be closed."""

    def close(self) -> None: ...


@dataclass
class _Work:
    """Hold the steps of a slot's draft, and what is drafted so far."""

    steps: Iterator[Draft | CandidateTree]
    drafted: Drafted

    def add(self, made: Draft | CandidateTree, seconds: float) -> None:
        """Record one more step, which took ``seconds``."""
        before = self.drafted
        done = replace(
            before,
            num_steps=before.num_steps + 1,
            draft_s=before.draft_s + seconds,
            busy_s=before.busy_s + seconds,
        )
        if isinstance(made, Draft):
            self.drafted = replace(done, draft=made)
            return
        tree = before.tree or CandidateTree()
        num_before, new = tree.num_expanded, slice(len(tree), None)
        # This is a separate copy, because the model's tree grows while the method reads it.
        tree.extend(made.tokens[new], made.parents[new], made.confidences[new])
        if before.tree is None:  # what is left of the last tree
            self.drafted = replace(done, tree=tree)
            return
        num_leaves = before.num_leaves + (tree.num_expanded - num_before if num_before else 1)
        root_s = before.root_s if num_before else done.draft_s
        self.drafted = replace(done, tree=tree, num_leaves=num_leaves, root_s=root_s)


class DrafterInTurns:
    """Compute within `poll`, one step after another, until there is enough.

    A ``model`` that raises twice in a row is freed. Then ``on_warning`` is called with one line,
    and the drafter that ``fall_back`` makes drafts in place of the model. ``free`` frees the model.
    """

    def __init__(
        self,
        model: DraftModel,
        *,
        free: Callable[[], None] = lambda: None,
        fall_back: Callable[[], ClosingDrafter],
        on_warning: Callable[[str], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._model: DraftModel | None = model
        self._free = free
        self._fall_back, self._on_warning, self._clock = fall_back, on_warning, clock
        self._other: ClosingDrafter | None = None  # drafts in place of the model
        self._work: dict[int, _Work] = {}
        self._masks: dict[int, tuple[Grammar, Mask]] = {}  # last mask by slot
        self._owners: dict[int, str] = {}  # owner of the text that the model knows, by slot
        self._num_faults = 0
        model.compute_alone(True)

    @property
    def takes_turns(self) -> bool:
        """Return True: it computes only while it is waited for."""
        return self._other is None

    @property
    def restarts(self) -> int:
        return self._other.restarts if self._other else 0

    def submit(self, request: DraftRequest) -> None:
        if self._other is not None:
            self._other.submit(request)
        elif self._model is not None:
            busy_s = self.heard(request.slot).busy_s
            self._own(self._model, request.slot, request.owner)
            steps = self._steps(self._model, request)
            self._work[request.slot] = _Work(steps, Drafted(is_complete=False, busy_s=busy_s))

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        """Compute until the plan is complete or there are more than ``beyond`` candidates. Nothing
        is computed without a wait, and a started step is finished."""
        if self._other is not None:
            return self._other.poll(slot, wait_s, beyond)
        end_s = self._clock() + wait_s
        while (
            (work := self._work.get(slot)) is not None
            and not work.drafted.is_complete
            and not _is_enough(work.drafted, beyond)
            and self._clock() < end_s
        ):
            self._step(slot, work)
        return self.heard(slot)

    def heard(self, slot: int) -> Drafted:
        if self._other is not None:
            return self._other.heard(slot)
        return self._work[slot].drafted if slot in self._work else Drafted()

    def cancel(self, slot: int) -> None:
        if self._other is not None:
            self._other.cancel(slot)
        elif slot in self._work:
            work = self._work[slot]
            work.drafted, work.steps = Drafted(busy_s=work.drafted.busy_s), iter(())

    def _own(self, model: DraftModel, slot: int, owner: str) -> None:
        """Assign the slot's text to this owner; nothing stays known of another owner's."""
        if self._owners.get(slot, "") != owner:
            self._masks.pop(slot, None)
            model.forget(slot)
        self._owners[slot] = owner

    def _steps(self, model: DraftModel, request: DraftRequest) -> Iterator[Draft | CandidateTree]:
        """Yield the steps of a plan. A grammar is followed with a separate mask: the target's must
        not see what is only drafted."""
        grammar, mask = request.sampler.params.grammar, None
        if grammar is not None and model.traits.has_masks:
            known = self._masks.get(request.slot)
            if known is None or known[0] != grammar:
                known = self._masks[request.slot] = (grammar, model.mask(grammar))
            mask = known[1]
        own = replace(request, sampler=replace(request.sampler, mask=mask))
        yield from request.plan.grow(model, own)

    def _step(self, slot: int, work: _Work) -> None:
        begin_s = self._clock()
        try:
            made = next(work.steps, None)
        except Exception as error:  # noqa: BLE001  whatever a draft does, the text goes on
            self._fail(slot, error)
            return
        if made is None:
            work.drafted = replace(work.drafted, is_complete=True)
            return
        self._num_faults = 0
        work.add(made, self._clock() - begin_s)

    def _fail(self, slot: int, error: Exception) -> None:
        self._work.pop(slot)
        self._masks.pop(slot, None)
        self._num_faults += 1
        if self._num_faults < _MOST_FAULTS or self._model is None:
            return
        what = str(error).partition("\n")[0] or type(error).__name__
        self._on_warning(f"the draft model failed on the target's device ({what}); the CPU drafts")
        self._work.clear()
        self._model = None
        self._free()
        self._other = self._fall_back()

    def close(self) -> None:
        """Free the models. Later requests get no drafts."""
        self._work.clear()
        if self._model is not None:
            self._model = None
            self._free()
        if self._other is not None:
            self._other.close()

    def __enter__(self) -> DrafterInTurns:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _is_enough(drafted: Drafted, beyond: int | None) -> bool:
    return beyond is not None and drafted.tree is not None and len(drafted.tree) > beyond
