"""Fakes: real subclasses and implementations, never mocks.

The tables of `duodec.testing` are the models. What is here makes their targets strict,
their drafters slow or mortal, and keeps a log of who was asked what and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from fakes.oracles import JointMixer, grow
from hypothesis import HealthCheck, settings

from duodec.backends.tree_cache import Entry
from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.drafters import Drafted, DraftModel, DraftRequest, RowQuery
from duodec.core.round import Round
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.special_tokens import NO_TOKENS
from duodec.core.targets import Query, Scores, Target
from duodec.methods.method import Method
from duodec.methods.registry import METHODS, method
from duodec.methods.request import Request, Wait
from duodec.planning.mixing import Kind, Mixer
from duodec.planning.selection import Selection
from duodec.scheduler.outputs import Failed, Output
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.scheduler import Scheduler
from duodec.scheduler.warm_up import WarmUp
from duodec.testing import FixedBudget as FixedBudget
from duodec.testing import InlineDrafter, TableDraftModel, TableModel, TableTarget
from duodec.testing import ListedTexts as ListedTexts
from duodec.testing import plain_text as plain_text
from duodec.testing.methods import PROMPT as PROMPT

# properties: the same examples in every run, however slow the machine
proven = settings(
    derandomize=True, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow]
)

WITHOUT_HEADS = [name for name, kind in METHODS.items() if not kind.needs_heads]
"""Methods that any target decodes with."""


def chi_square_limit(num_degrees: int) -> float:
    """What chi-square exceeds once in a million times (Wilson and Hilferty's formula)."""
    z, spread = 4.7534, 2 / (9 * num_degrees)
    return num_degrees * (1 - spread + z * math.sqrt(spread)) ** 3


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class TickingClock:
    """Each look at it takes a moment: time that is the same in every run."""

    def __init__(self) -> None:
        self._num_looks = 0

    def __call__(self) -> float:
        self._num_looks += 1
        return self._num_looks / 64


# --- targets


@dataclass(frozen=True)
class StrictTarget(TableTarget):
    """Refuses drafts that do not fit the text's capacity, and stale ones: each token scored is
    what the drafter would guess first at the very place where it is scored."""

    draft: TableModel | None = None
    capacity: int = 10**9
    queries: list[Query] = field(default_factory=list)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        for query in queries:
            deepest = max(query.draft.depths(), default=0)
            assert len(query.text) + deepest < self.capacity, "no room for such a draft"
            for row in range(len(query.draft)) if self.draft else ():
                context = query.context(query.draft.parents[row] + 1)
                logits = self.draft.logits(context)
                guess, _ = query.sampler.candidates(logits, context, 1)
                assert query.draft.tokens[row] == guess[0], "a stale draft"
        self.queries.extend(queries)
        return super().score(queries)


@dataclass(frozen=True)
class LoggedTarget(TableTarget):
    """Notes each forward pass in a log shared with a `LoggedDrafter`; each takes a second of the
    clock, if there is one."""

    log: list[str] = field(default_factory=list)
    clock: FakeClock | None = None

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        (query,) = queries
        self.log.append(f"score {len(query.draft)}")
        if self.clock:
            self.clock.advance(1.0)
        return super().score(queries)


# --- drafters


class LoggedDrafter(InlineDrafter):
    """Notes what it is asked in a log."""

    def __init__(self, model: DraftModel, log: list[str] | None = None) -> None:
        super().__init__(model)
        self.log = [] if log is None else log
        self.requests: list[DraftRequest] = []
        self.made: list[Drafted] = []

    def submit(self, request: DraftRequest) -> None:
        self.log.append(f"submit {request.plan.num_tokens}")
        self.requests.append(request)
        super().submit(request)
        self.made.append(super().poll(request.slot))

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        self.log.append("wait" if wait_s else "look")
        return super().poll(slot, wait_s, beyond)


class SlowDrafter(LoggedDrafter):
    """Has made ``num_seen`` steps of a draft when looked at, and ``num_waited`` when waited for."""

    def __init__(self, model: DraftModel, num_seen: int = 0, num_waited: int = 0) -> None:
        super().__init__(model)
        self._model = model
        self._num_seen, self._num_waited = num_seen, num_waited
        self._steps: list[Drafted] = []

    def submit(self, request: DraftRequest) -> None:
        # its steps, then the draft as a whole from the class above
        self._steps = [Drafted(), *map(drafted_so_far, request.plan.grow(self._model, request))]
        super().submit(request)

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        drafted = super().poll(slot, wait_s, beyond)
        num_steps = self._num_waited if wait_s else self._num_seen
        if num_steps >= len(self._steps):
            return drafted
        return replace(self._steps[num_steps], is_complete=False)


def drafted_so_far(made: Draft | CandidateTree) -> Drafted:
    """A step as it is now: a tree of candidates goes on growing."""
    if isinstance(made, Draft):
        return Drafted(made)
    tree = CandidateTree()
    tree.extend(made.tokens, made.parents, made.confidences)
    return Drafted(tree=tree)


class DyingDrafter(LoggedDrafter):
    """Answers ``num_answers`` requests, then nothing any more."""

    def __init__(self, model: DraftModel, num_answers: int) -> None:
        super().__init__(model)
        self._num_answers = num_answers

    @property
    def restarts(self) -> int:
        return int(len(self.requests) > self._num_answers)

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        drafted = super().poll(slot, wait_s, beyond)
        return Drafted() if self.restarts else drafted


@dataclass(frozen=True, eq=False)
class CountingModel(TableDraftModel):
    """Remembers its forward passes."""

    queries: list[RowQuery] = field(default_factory=list)

    def rows(self, query: RowQuery) -> list[Row]:
        self.queries.append(query)
        return super().rows(query)


# --- sources of candidates

Path = tuple[int, ...]


@dataclass
class GivenSource:
    """Proposes what a table says: by path from the end of the text, tokens and likelihoods. A
    state is a path."""

    table: Mapping[Path, Sequence[tuple[int, float]]] = field(default_factory=dict)
    observed: list[tuple[Path, int]] = field(default_factory=list)
    is_open: bool = True
    kind: Kind = Kind.DRAFT_MODEL

    def root(self) -> Path:
        return ()

    def successors(self, state: Path, least: float) -> list[tuple[int, float, Path]]:
        return [(token, p, (*state, token)) for token, p in self.table.get(state, ())]

    def follow(self, state: Path, token: int) -> Path:
        return (*state, token)

    def observe(self, state: Path, token: int) -> None:
        self.observed.append((state, token))


def selected(
    *sources: GivenSource,
    num_tokens: int = 80,
    depth: int = 9,
    has_branches: bool = True,
    mixer: Mixer | None = None,
) -> Selection:
    """The merged candidates of sources, the first of which stands for the draft model's tree."""
    for kind, source in zip(Kind, sources, strict=False):
        if isinstance(source, GivenSource):
            source.kind = kind
    selection = Selection(sources, mixer or JointMixer())
    grow(selection, num_tokens, depth, has_branches=has_branches)
    return selection


# --- a datastore


@cache
def noisy_text(num_vocab: int, num_tokens: int = 400) -> ListedTexts:
    """A text of no sense: some of its continuations are right by chance."""
    tokens = np.random.default_rng(4).integers(num_vocab, size=num_tokens)
    return ListedTexts([tokens.tolist()])


# --- decoding with all of these


@cache
def known_texts(model: TableModel) -> ListedTexts:
    """Its greedy texts after two tokens of the usual prompt."""
    return ListedTexts(
        [plain_text(model, SamplingParams(), 60, (a, b)) for a in PROMPT for b in PROMPT]
    )


def decode(
    name: str,
    *,
    target: TableTarget,
    drafter: InlineDrafter | None = None,
    params: SamplingParams | None = None,
    num_tokens: int = 40,
    budget: int = 6,
    prompt: Sequence[int] = PROMPT,
    **options: object,
) -> tuple[list[int], list[Round]]:
    """The tokens that a method makes of a prompt, and its rounds."""
    if "datastore" not in options:
        options["datastore"] = known_texts(target.model)
    session = Session(
        target=target,
        prompt=prompt,
        capacity=len(prompt) + num_tokens,
        sampler=Sampler(params or SamplingParams(), 0, len(prompt)),
        costs=FixedBudget(budget),
        **({"drafter": drafter} if drafter else {}),
        **options,
    )
    tokens: list[int] = []
    done_rounds: list[Round] = []
    for done in decode_rounds(method(name), session):
        assert done.tokens, "a round without a token"
        done_rounds.append(done)
        tokens += done.tokens
        assert session.text.tolist() == [*prompt, *tokens]
    return tokens, done_rounds


def Session(  # noqa: N802  one completion and what computes it
    target: Target,
    prompt: Sequence[int],
    capacity: int,
    *args: Any,
    prepare: Callable[[bool], None] = lambda is_drafting: None,
    warm_up: Callable[[], None] | None = None,
    **options: Any,
) -> Request:
    """A request, with a scheduler of its own for `decode_rounds`."""
    request = Request(prompt, capacity, *args, **options)
    vars(request)["scheduler"] = Scheduler(
        target,
        request.costs,
        prepare=prepare,
        warm_up=warm_up or WarmUp(Scheduler),
        clock=request.clock,
    )
    return request


def decode_rounds(method: Method, request: Request) -> Iterator[Round]:
    """The rounds of a request, each as soon as its text is given out."""
    scheduler: Scheduler = vars(request)["scheduler"]
    outputs: list[Output] = []
    scheduler.submit([ScheduledRequest(request, method, outputs.append)])
    num_given = 0
    try:
        while scheduler.launch():
            yield from request.rounds[num_given:]
            num_given = request.num_rounds
            scheduler.finish_forward()
            if any(isinstance(task.need, Wait) for task in scheduler.running):
                yield from request.rounds[num_given:]
                num_given = request.num_rounds
        yield from request.rounds[num_given:]
        if isinstance(outputs[-1], Failed):
            raise outputs[-1].error
    finally:
        scheduler.close()


def assert_perfect_drafts_are_kept(name: str) -> None:
    """A draft model that is the target: after the first rounds, every forward pass yields all that
    it scored, and a token more."""
    model = TableModel(seed=7)
    params = SamplingParams(temperature=0.8, seed=5)
    drafter = InlineDrafter(model.load())
    _, rounds = decode(name, target=TableTarget(model), drafter=drafter, params=params)
    later = rounds[2:-1]
    assert all(len(done.tokens) == done.num_scored + 1 for done in later)
    assert sum(done.num_scored for done in later) > len(later)


def assert_decodes_like_ar(
    name: str,
    params: SamplingParams,
    *,
    draft_noise: float = 0.4,
    num_tokens: int = 40,
    **options: object,
) -> list[Round]:
    """The method's text is plain decoding's, and its drafts are fresh and fit the text."""
    model = TableModel(seed=7)
    draft_model = replace(model, noise=draft_noise)
    has_guesses = name in ("sps", "pearl", "duo")  # chains of first guesses
    target = StrictTarget(
        model, draft_model if has_guesses else None, capacity=len(PROMPT) + num_tokens
    )
    drafter = InlineDrafter(draft_model.load())
    found, rounds = decode(
        name, target=target, drafter=drafter, params=params, num_tokens=num_tokens, **options
    )
    assert found == plain_text(model, params, num_tokens)
    return rounds


# --- a cache


@dataclass
class _Cell:
    position: int
    seqs: set[int]
    path: tuple[int, ...]  # all tokens up to its own, as they were seen when it was computed


class FakeCells:
    """llama.cpp's unified cache with its rules, and no numbers: a cell holds the path of tokens
    that it was computed from. ``first`` tokens may come before a part of a text; without them,
    every sequence begins at position 0, and every cell was computed from all that is before it."""

    def __init__(self, first: tuple[int, ...] = ()) -> None:
        self.cells: list[_Cell] = []
        self.first = first

    def remove(self, seq: int, begin: int, end: int = -1) -> None:
        for cell in self.cells:
            if begin <= cell.position and (end < 0 or cell.position < end):
                cell.seqs.discard(seq)
        self.cells = [cell for cell in self.cells if cell.seqs]

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        for cell in self.cells:
            if source in cell.seqs and begin <= cell.position < end:
                assert target not in cell.seqs, "a cell is added twice"
                cell.seqs.add(target)
        span = self.span(target)
        assert span.start <= begin
        assert end <= span.stop, "the source did not have all of them"

    def end(self, seq: int) -> int:
        """The position after a sequence's last."""
        return self.span(seq).stop

    def span(self, seq: int) -> range:
        """The positions of a sequence."""
        positions = [cell.position for cell in self._sequence(seq)]
        if not positions:
            return range(0)
        span = range(positions[0], positions[0] + len(positions))
        assert positions == list(span), "one cell a position, without gaps"
        assert self.first or not span.start
        return span

    def decode(self, entries: Iterable[Entry]) -> dict[int, tuple[int, ...]]:
        """One batch. The path of tokens seen by each row that is wanted."""
        entries = list(entries)
        for entry in entries:
            assert entry.seqs, "a token belongs to some sequence"
            spans = {self.span(seq) for seq in entry.seqs}
            assert len(spans) == 1, "coupled sequences have diverged"
        rows: dict[int, tuple[int, ...]] = {}
        for entry in entries:
            paths = {self._path(seq, entry.position) for seq in entry.seqs}
            assert len(paths) == 1, "all ids of a token see the same past"
            (past,) = paths
            path = (*past, entry.token)
            self.cells.append(_Cell(entry.position, set(entry.seqs), path))
            if entry.row is not None:
                assert entry.row not in rows
                rows[entry.row] = path
        return rows

    def _sequence(self, seq: int) -> list[_Cell]:
        cells = (cell for cell in self.cells if seq in cell.seqs)
        return sorted(cells, key=lambda cell: cell.position)

    def _path(self, seq: int, end: int) -> tuple[int, ...]:
        """The tokens that a sequence sees before ``end``, which is where it must end."""
        span = self.span(seq)
        assert span.stop == end or not span
        assert self.first or span.stop == end
        cells = self._sequence(seq)
        path = tuple(cell.path[-1] for cell in cells)
        assert all(self._is_fresh(cell, path[: i + 1]) for i, cell in enumerate(cells)), "stale"
        return path

    def _is_fresh(self, cell: _Cell, path: tuple[int, ...]) -> bool:
        """It was computed from ``path``; where parts come and go, from more of the text before or
        from less."""
        if cell.path == path or not self.first:
            return cell.path == path
        num_first = len(self.first)
        if cell.path[:num_first] != self.first or path[:num_first] != self.first:
            return False
        then, now = cell.path[num_first:], path[num_first:]
        length = min(len(then), len(now))
        return bool(length) and then[-length:] == now[-length:]


# --- a vocabulary


@dataclass(frozen=True)
class FakeTokenizer:
    """Tokens are pieces of bytes; -1 where there is no such token."""

    controls = NO_TOKENS

    pieces: tuple[bytes, ...] = tuple(bytes([i]) for i in range(32))
    chat_template: str | None = None
    bos: int = -1
    eos: int = -1

    @property
    def num_vocab(self) -> int:
        return len(self.pieces)

    def token_text(self, token: int) -> bytes:
        return self.pieces[token]

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        return [self.pieces.index(bytes([byte])) for byte in text.encode()]

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def is_end(self, token: int) -> bool:
        return token == self.eos


LETTERS = "abcdefghijklmnopqrstuvwxyz .,\n"
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}a"


@dataclass(frozen=True)
class Letters:
    """A vocabulary of letters, and an end token that is never drawn on its own account."""

    controls = NO_TOKENS

    num_vocab: int = len(LETTERS) + 1
    chat_template: str | None = TEMPLATE
    bos: int = -1
    eos: int = len(LETTERS)
    ends: bool = False

    def token_text(self, token: int) -> bytes:
        return self.piece(token)

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        return [LETTERS.find(c) if c in LETTERS else ord(c) % len(LETTERS) for c in text]

    def piece(self, token: int) -> bytes:
        return LETTERS[token].encode() if token < len(LETTERS) else b""

    def is_end(self, token: int) -> bool:
        return self.ends and token == self.eos


@dataclass(frozen=True)
class Printable:
    """A vocabulary of ASCII's letters and signs, and a token that ends the answer."""

    controls = NO_TOKENS

    chat_template: str | None = TEMPLATE
    bos: int = -1
    num_vocab: int = 97

    @property
    def eos(self) -> int:
        return self.num_vocab - 1

    def token_text(self, token: int) -> bytes:
        return self.piece(token) or b"<end>"

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        return [(ord(c) - 32) % 95 if c != "\n" else 95 for c in text]

    def piece(self, token: int) -> bytes:
        return b"" if token == self.eos else b"\n" if token == 95 else bytes([32 + token])

    def is_end(self, token: int) -> bool:
        return token == self.eos
