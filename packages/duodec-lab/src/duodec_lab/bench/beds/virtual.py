"""Simulate a pair on a virtual clock: real rows, real drafts, and durations from cost tables.

Nothing waits and no real time counts: the same tables give the same figures on any machine. The
target's text is recorded first, from its own forward passes; a row off that text is computed when a
method needs it. The draft model computes every step. Only tables advance the time: for a forward
pass of the target, whose rows and branches are those of a backend's shape, for one of the draft
model, for messages between the two processes, and for the host's work on rows and drafts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from duodec.backends.curves import interpolated
from duodec.backends.paced import num_rows
from duodec.backends.translation.wrapped import Wrapped
from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.core.drafters import Drafted, DraftModel, DraftRequest, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Distribution, Draw, Tokens
from duodec.core.targets import NUM_CANDIDATES, Candidates, Proposed, Query, Scores, Target
from duodec.core.traits import DraftTraits, TargetTraits
from duodec.errors import BadOption
from duodec_lab.bench.beds.host import HANDOVER_S, HostPrices
from duodec_lab.bench.beds.latency import LatencyCurve, PrefillCounter

_T = TypeVar("_T")


@dataclass(frozen=True)
class StepTable:
    """Seconds of a forward pass of the draft model, by the number of tokens that it computes.

    ``points`` are ascending; between two of them costs are interpolated, beyond the last they are
    extrapolated from the last two (in proportion, if there is only one).
    """

    points: tuple[tuple[int, float], ...]

    @classmethod
    def parse(cls, text: str) -> StepTable:
        """A table such as ``1:1.3,4:2.5,8:4.9``: tokens and milliseconds. Raises BadOption."""
        points: dict[int, float] = {}
        for part in text.split(","):
            tokens, _, milliseconds = part.partition(":")
            try:
                num_tokens, seconds = int(tokens), float(milliseconds) / 1e3
            except ValueError:
                raise BadOption(
                    f"'{part.strip()}' in '{text}' is not TOKENS:MS; write, for instance, "
                    "1:1.3,4:2.5,8:4.9"
                ) from None
            if num_tokens < 1 or not 0 <= seconds < math.inf:
                raise BadOption(
                    f"'{part.strip()}' in '{text}' is not a cost; use 1 token or more and "
                    "milliseconds of 0 or more"
                )
            if num_tokens in points:
                raise BadOption(f"'{text}' has two costs of {num_tokens} tokens; give one")
            points[num_tokens] = seconds
        return cls(tuple(sorted(points.items())))

    def seconds(self, num_tokens: int) -> float:
        """One forward pass over so many tokens."""
        first = self.points[0]
        if num_tokens > first[0] and len(self.points) == 1:
            return first[1] * num_tokens / first[0]
        return interpolated(self.points, num_tokens)

    def faster(self, speed: float) -> StepTable:
        """The table of a machine ``speed`` times as fast; `math.inf`: all is free."""
        return StepTable(tuple((tokens, seconds / speed) for tokens, seconds in self.points))

    def __str__(self) -> str:
        return ",".join(f"{tokens}:{seconds * 1e3:.4g}" for tokens, seconds in self.points)


@dataclass
class VirtualClock:
    """Seconds that pass when they are spent."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class PricedModel(DraftModel):
    """A draft model whose forward passes take the time of a table, on a clock of their own. Where
    it translates another model's vocabulary, each forward pass of that one has its price."""

    def __init__(self, model: DraftModel, table: StepTable) -> None:
        self.model = model
        self.table = table
        self._meter = _Meter(innermost(model), table)
        self._metered = _over(model, self._meter)

        self.clock = self._meter.now_s  # seconds of work so far, with the current forward pass

    @property
    def traits(self) -> DraftTraits:
        return replace(self.model.traits, has_clock=True, reads_in_chunks=False, has_masks=False)

    @property
    def busy_s(self) -> float:
        """Seconds of all forward passes so far."""
        return self._meter.busy_s

    def fresh(self) -> PricedModel:
        """The same model and table, for drafts of which nothing has been measured yet."""
        return PricedModel(_over(self.model, innermost(self.model).fresh()), self.table)

    def rows(self, query: RowQuery) -> list[Row]:
        return self._metered.rows(query)

    def widen(self, slot: int, *, is_idle: bool) -> bool:
        """Prefill more of a slot's text, if the model has a window and that is due."""
        return self._metered.widen(slot, is_idle=is_idle)

    def forget(self, slot: int) -> None:
        self._metered.forget(slot)


class _Meter(Wrapped):
    """Adds up what the forward passes of a model cost."""

    def __init__(self, model: DraftModel, table: StepTable) -> None:
        super().__init__(model)
        self._table = table
        self.busy_s = 0.0
        self._since: int | None = None  # tokens that had been computed when the current pass began

    def now_s(self) -> float:
        if self._since is None:
            return self.busy_s
        return self.busy_s + self._price(self.model.num_computed - self._since)

    def rows(self, query: RowQuery) -> list[Row]:
        return self._priced(lambda: self.model.rows(query), max(1, len(query.rows)))

    def widen(self, slot: int, *, is_idle: bool) -> bool:
        return self._priced(lambda: super(_Meter, self).widen(slot, is_idle=is_idle), 0)

    def _priced(self, work: Callable[[], _T], num_otherwise: int) -> _T:
        self._since = self.model.num_computed
        if self.model.traits.has_clock:
            self.model.clock = self.now_s
        try:
            result = work()
            num_tokens = self.model.num_computed - self._since
        finally:
            self._since = None
        counts = self.model.traits.counts_tokens
        self.busy_s += self._price(num_tokens if counts else num_otherwise)
        return result

    def _price(self, num_tokens: int) -> float:
        return self._table.seconds(num_tokens) if num_tokens else 0.0


def innermost(model: DraftModel) -> DraftModel:
    """The model whose forward passes these are, below what translates its vocabulary."""
    return innermost(model.model) if isinstance(model, Wrapped) else model


def _over(model: DraftModel, innermost: DraftModel) -> DraftModel:
    """``model`` with another innermost one."""
    if not isinstance(model, Wrapped):
        return innermost
    outer = copy(model)
    outer.model = _over(model.model, innermost)
    return outer


RowKey = tuple[int, tuple[int, ...]]
"""A row off the recorded text: where it leaves that text, and the tokens from there on."""


@dataclass
class SimulatedTarget(Target):
    """A real target's rows, with durations from a curve.

    On the recorded text draws and candidates are those that were recorded; off it rows are
    computed, once for each place (``known`` keeps their candidates, and may be shared by several
    runs over the same recording).
    """

    target: Target
    recording: Tokens
    curve: LatencyCurve
    clock: VirtualClock
    candidates: Mapping[int, Candidates] = field(default_factory=dict)  # by position
    known: dict[RowKey, Candidates] = field(default_factory=dict)
    host: HostPrices = field(default_factory=HostPrices)
    _prefill: PrefillCounter = field(default_factory=PrefillCounter)

    @property
    def traits(self) -> TargetTraits:
        shape = self.curve.shape
        return TargetTraits(
            has_branches=shape.has_branches,
            max_draft=shape.max_draft,
            keeps_candidates=True,
            widths=shape.widths,
            heads=self.target.traits.heads,
            num_heads=self.target.traits.num_heads,
        )

    @property
    def heads_s(self) -> float:
        """What the target's own heads add to a forward pass: like that, they read weights."""
        if self.host.heads is not None:
            return self.host.heads
        return self.target.traits.heads_share * self.curve.forward_s

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        shape, host = self.curve.shape, self.host
        num_selected = sum(len(query.draft) > 0 for query in queries)
        queries = [replace(query, draft=shape.cut(query.draft)) for query in queries]
        rows = num_rows(queries)
        num_copied = 0 if shape.draws_on_device else shape.num_computed(rows)
        self.clock.advance(self.curve.seconds(rows, self._prefill.num_new(queries)))
        self.clock.advance(num_copied * host.copy + num_selected * host.selection + host.between)
        self.clock.advance(self.heads_s * sum(query.heads is not None for query in queries))
        return [_SimulatedScores(self, query) for query in queries]


class _SimulatedScores(Scores):
    """The scores of one query, computed as they are read."""

    def __init__(self, owner: SimulatedTarget, query: Query) -> None:
        self._owner, self._query = owner, query
        recording, text = owner.recording, query.text
        length = len(text)
        is_on = length <= len(recording) and np.array_equal(recording[:length], text)
        self._places: list[RowKey] = [(length, ()) if is_on else (0, tuple(text.tolist()))]
        for token, parent in zip(query.draft.tokens, query.draft.parents, strict=True):
            position, tail = self._places[parent + 1]
            if not tail and position < len(recording) and recording[position] == token:
                self._places.append((position + 1, ()))
            else:
                self._places.append((position, (*tail, token)))
        self._computed: Scores | None = None  # of the whole draft

    @property
    def num_rows(self) -> int:
        return len(self._query.draft) + 1

    def draw(self, row: int) -> Draw:
        self._take(self._owner.host.draw)
        position, tail = self._places[row]
        if not tail and position < len(self._owner.recording):
            return Draw(int(self._owner.recording[position]), math.inf)
        return self._all_rows().draw(row)

    def distribution(self, row: int) -> Distribution:
        return self._all_rows().distribution(row)

    def row_logits(self, row: int) -> Row:
        return self._all_rows().row_logits(row)

    def proposed(self) -> Proposed:
        """By the real heads, at their price."""
        if self._query.heads is None:
            return Proposed()
        return replace(self._all_rows().proposed(), seconds=self._owner.heads_s)

    def _take(self, seconds: float) -> None:
        """Work of the host, unless the device does it."""
        if not self._owner.curve.shape.draws_on_device:
            self._owner.clock.advance(seconds)

    def candidates(self, row: int) -> Candidates:
        self._take(self._owner.host.candidates)
        return self._candidates(row)

    def keep(self, row: int) -> Callable[[], Candidates]:
        """For the price of a copy: they are found while the device computes the next pass."""
        self._take(self._owner.host.copy)
        return partial(self._candidates, row)

    def _candidates(self, row: int) -> Candidates:
        owner, place = self._owner, self._places[row]
        found = None if place[1] else owner.candidates.get(place[0])
        found = owner.known.get(place) if found is None else found
        if found is None:
            self._compute_missing()
            found = owner.known[place]
        return found.first(self._query.num_candidates)

    def _all_rows(self) -> Scores:
        if self._computed is None:
            (self._computed,) = self._owner.target.score([self._query])
        return self._computed

    def _compute_missing(self) -> None:
        """Compute the candidates of every unknown row, in one forward pass."""
        owner, draft = self._owner, self._query.draft
        missing = [
            node
            for node in range(ROOT, len(draft))
            if self._places[node + 1] not in owner.known
            and (self._places[node + 1][1] or self._places[node + 1][0] not in owner.candidates)
        ]
        kept = sorted({above for node in missing for above in draft.path(node)})
        place = {ROOT: ROOT, **{node: i for i, node in enumerate(kept)}}
        smaller = Draft(
            tuple(draft.tokens[node] for node in kept),
            tuple(place[draft.parents[node]] for node in kept),
        )
        query = replace(self._query, draft=smaller, num_candidates=NUM_CANDIDATES)
        (scores,) = owner.target.score([query])
        for node in missing:
            owner.known[self._places[node + 1]] = scores.candidates(place[node] + 1)


class SimulatedDrafter:
    """A drafter that works concurrently with the caller, on a virtual clock: at any moment it has
    made the steps that fit in before. A step is computed when it is needed. ``handover_s`` is for
    a message to it, and for one back."""

    def __init__(
        self, model: PricedModel, clock: VirtualClock, handover_s: float = HANDOVER_S
    ) -> None:
        self._model = model
        self._clock = clock
        self._handover_s = handover_s
        self._free_s = 0.0  # when the current step ends
        self._steps: Iterator[Draft | CandidateTree] = iter(())
        self._made: Draft | CandidateTree = Draft()  # the last step, and how long it takes
        self._step_s = 0.0
        self._drafted = Drafted()
        self._is_over = True
        self._slot: int | None = None  # whose text may be prefilled further

    @property
    def restarts(self) -> int:
        return 0

    def submit(self, request: DraftRequest) -> None:
        now_s = self._clock()
        self._catch_up(now_s)
        # the current step is finished first, then the new request is seen
        self._free_s = max(self._free_s, now_s + self._handover_s / 2)
        self._drafted = Drafted(is_complete=False, busy_s=self._drafted.busy_s)
        self._slot, self._is_over = request.slot, False
        self._steps = request.plan.grow(self._model, request)
        self._prepare()

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        now_s = self._clock()
        self._catch_up(now_s)
        end_s = now_s + wait_s
        while wait_s and not self._is_over and not _is_enough(self._drafted, beyond):
            moment_s = self._free_s + self._handover_s / 2
            if moment_s > end_s:
                self._clock.advance(max(0.0, end_s - self._clock()))
                break
            self._clock.advance(max(0.0, moment_s - self._clock()))
            self._catch_up(moment_s)
        return self._drafted

    def heard(self, slot: int) -> Drafted:
        return self._drafted

    def cancel(self, slot: int) -> None:
        self._catch_up(self._clock())
        self._steps, self._is_over, self._slot = iter(()), True, None

    def _prepare(self) -> None:
        """Compute the next step; it is delivered when its time has come."""
        start_s = self._model.busy_s
        made = next(self._steps, None)
        self._step_s = self._model.busy_s - start_s
        self._free_s += self._step_s  # also for a request that only prefills
        if made is None:
            self._is_over = True
            self._drafted = replace(self._drafted, is_complete=True)
        else:
            self._made = made

    def _catch_up(self, now_s: float) -> None:
        """Deliver all steps that have arrived by now; then prefill text as time allows."""
        while not self._is_over and self._free_s + self._handover_s / 2 <= now_s:
            self._drafted = self._after_step()
            self._widen(is_idle=False)
            self._prepare()
        while self._is_over and self._free_s < now_s and self._widen(is_idle=True):
            pass

    def _widen(self, *, is_idle: bool) -> bool:
        if self._slot is None:
            return False
        start_s = self._model.busy_s
        has_read = self._model.widen(self._slot, is_idle=is_idle)
        self._free_s += self._model.busy_s - start_s
        return has_read

    def _after_step(self) -> Drafted:
        before = self._drafted
        draft_s = before.draft_s + self._step_s
        done = replace(
            before,
            num_steps=before.num_steps + 1,
            draft_s=draft_s,
            busy_s=before.busy_s + self._step_s,
        )
        if isinstance(self._made, Draft):
            return replace(done, draft=self._made)
        tree = before.tree or CandidateTree()
        num_before = tree.num_expanded
        new = slice(len(tree), None)
        tree.extend(self._made.tokens[new], self._made.parents[new], self._made.confidences[new])
        if done.num_steps == 1:  # what is left of the last tree
            return replace(done, tree=tree)
        # the pass that made the root's successors known may have read a seed, too
        num_leaves = before.num_leaves + (tree.num_expanded - num_before if num_before else 1)
        return replace(
            done, tree=tree, num_leaves=num_leaves, root_s=before.root_s if num_before else draft_s
        )


def _is_enough(drafted: Drafted, beyond: int | None) -> bool:
    """Whether the wait is over: more than ``beyond`` candidates, or the end if it is None."""
    return beyond is not None and drafted.tree is not None and len(drafted.tree) > beyond
