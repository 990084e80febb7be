"""The sources that candidates come from: the draft model's tree, and text that was seen before."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.core.protocols import Candidates, Datastore, Scores
from duodec.core.sampling.sampler import Sampler, Tokens
from duodec.drafting import constants
from duodec.drafting.continuations import most_frequent
from duodec.drafting.owners import ByOwner
from duodec.drafting.recycling import MAX_ORDER, RecycledRows
from duodec.drafting.suffix import Speculation, Suffixes
from duodec.planning.acceptance import Acceptance
from duodec.planning.coupling import Coupling
from duodec.planning.mixing import Kind, Mixer
from duodec.planning.trial import Rate, Supplement

LENGTHS = tuple(1 << i for i in range(len(constants.OWN_EXPECTED)))
"""Matches that are judged apart: of one token, 2 or 3, 4 to 7, ..."""
Context = tuple[int, ...]


@dataclass(frozen=True)
class Lessons:
    """What finds the tokens that the target held likely in rows of a draft, each with its row, in
    the order in which they are learned."""

    end: Context  # of the text that the draft was scored after
    draft: Draft
    rows: Sequence[tuple[int, Callable[[], Candidates]]]

    def context(self, row: int) -> Context:
        """The tokens before that row's."""
        node, tokens = row - 1, list[int]()
        while node != ROOT and len(tokens) < MAX_ORDER:
            tokens.append(self.draft.tokens[node])
            node = self.draft.parents[node]
        return (*self.end, *reversed(tokens))[-MAX_ORDER:]


class TreeSource:
    """The draft model's tree, the text being at a node of it."""

    kind = Kind.DRAFT_MODEL

    def __init__(self, tree: CandidateTree, acceptance: Acceptance, node: int = ROOT) -> None:
        """``acceptance`` is learned from whole trees, elsewhere."""
        self.tree = tree
        self.num_nodes = len(tree)  # known now; the tree may grow
        self.acceptance = acceptance
        self.node = node

    @property
    def is_expanded(self) -> bool:
        """Something is proposed after the text."""
        return any(child < self.num_nodes for child in self.tree.children(self.node)[:1])

    def num_along(self, tokens: Iterable[int]) -> int:
        """How many of these tokens, from the first one on, lie along a path of it."""
        num, node = 0, self.node
        for token in tokens:
            child = self.tree.child(node, token)
            if child is None or child >= self.num_nodes:
                break
            num, node = num + 1, child
        return num


@dataclass(eq=False)
class RowSource:
    """Recycled rows: they may go on from tokens that others propose."""

    kind = Kind.ROWS
    rows: RecycledRows
    acceptance: Sequence[Acceptance]  # by the length of the context, from 1
    end: Context  # of the text
    coupling: Coupling | None = None  # of what is sampled


@dataclass(eq=False)
class ContinuationSource:
    """A tree of what followed the same tokens before. What is sampled has a coupling."""

    tokens: Sequence[int]
    parents: Sequence[int]
    shares: Sequence[float]  # of the places that go on with a node


@dataclass(frozen=True)
class MatchHistory:
    """How often matches in one store of texts went on as before, by their length."""

    kind: Kind
    expected: array[float]  # before anything is learned
    by_length: tuple[Acceptance, ...] = field(
        default_factory=lambda: tuple(Acceptance() for _ in LENGTHS)
    )


@dataclass(eq=False)
class MatchSource(ContinuationSource):
    """What followed the same tokens in this text or in earlier completions. Every token that it is
    right about makes the match longer, and longer matches are right more often."""

    length: int  # of the match at the end of the text, in tokens
    history: MatchHistory
    coupling: Coupling | None = None

    @property
    def kind(self) -> Kind:
        return self.history.kind

    @classmethod
    def of(
        cls, found: Speculation, history: MatchHistory, coupling: Coupling | None = None
    ) -> MatchSource:
        """What was found of a text."""
        return cls(found.tokens, found.parents, found.shares, found.length, history, coupling)


@dataclass(eq=False)
class StoredSource(ContinuationSource):
    """What followed the same tokens in a datastore."""

    kind = Kind.DATASTORE
    acceptance: Acceptance
    coupling: Coupling | None = None


class HeadSource(ContinuationSource):
    """What the target's own heads propose: its confidences know the noise already."""

    kind = Kind.HEADS

    def __init__(self, tree: CandidateTree, acceptance: Acceptance) -> None:
        shares: list[float] = []
        for parent, confidence in zip(tree.parents, tree.confidences, strict=True):
            shares.append(confidence * (1.0 if parent == ROOT else shares[parent]))
        super().__init__(tree.tokens, tree.parents, shares)
        self.tree = tree
        self.acceptance = acceptance

    def num_along(self, tokens: Iterable[int]) -> int:
        """How many of these tokens, from the first one on, lie along a path of it."""
        return TreeSource(self.tree, self.acceptance).num_along(tokens)


Source = TreeSource | RowSource | MatchSource | StoredSource | HeadSource
"""Proposes tokens, and how likely each is: C++ reads its fields."""


@dataclass(frozen=True)
class End:
    """Where a text ends: its last tokens, as many as are compared, and the position of the next
    one. The last ``num_new`` of them are not in the text's own store yet."""

    tokens: array[int]
    position: int
    num_new: int = 0


@dataclass(frozen=True)
class TextMemory:
    """What outlives a completion: earlier ones and the target's rows, of which each owner has its
    own, and how often each source was right."""

    earlier: ByOwner[Suffixes] = field(
        default_factory=lambda: Suffixes.by_owner(constants.MAX_MATCH)
    )
    own_matches: MatchHistory = field(
        default_factory=lambda: MatchHistory(Kind.OWN_TEXT, array("d", constants.OWN_EXPECTED))
    )
    earlier_matches: MatchHistory = field(
        default_factory=lambda: MatchHistory(
            Kind.EARLIER_TEXTS, array("d", constants.EARLIER_EXPECTED)
        )
    )
    rows: ByOwner[RecycledRows] = field(default_factory=RecycledRows.by_owner)
    by_order: tuple[Acceptance, ...] = field(
        default_factory=lambda: (
            Acceptance.doubting(constants.AFTER_ONE),
            *(Acceptance() for _ in range(1, MAX_ORDER)),
        )
    )
    stored: Acceptance = field(default_factory=Acceptance)
    heads: Acceptance = field(default_factory=Acceptance)
    beside_others: Supplement = field(default_factory=Supplement)  # the target's heads
    mixer: Mixer = field(default_factory=Mixer)
    drafted: dict[int, tuple[str, Tokens]] = field(default_factory=dict)
    """By slot, the last text that a draft model in turns has read, and its owner: cached, unless it
    has died."""
    decoding: Rate = field(default_factory=lambda: Rate(constants.FADE))
    """The seconds for which a completion is decoded, of each."""


class TextSources:
    """What may follow a text, from sources that compute nothing: the same words earlier in it and
    in earlier completions (2411.04975), rows that the target has scored (2408.08696), and a
    datastore, where one is loaded (2311.08252)."""

    def __init__(
        self,
        memory: TextMemory,
        text: Tokens,
        datastore: Datastore | None = None,
        sampler: Sampler | None = None,
        owner: str = "",
    ) -> None:
        """With ``sampler``, of which the noise is then known, draws are foreseen by it."""
        self.memory = memory
        self.earlier, self._rows = memory.earlier.of(owner), memory.rows.of(owner)
        self._datastore = datastore
        self._sampler = None if sampler is None or sampler.params.is_greedy else sampler
        self.own = Suffixes(constants.MAX_MATCH)
        self._num_prompt = len(text)
        self._num_read = 0
        self.fixed: tuple[bytes, object] | None = None  # what C++ reads of all proposals
        self.stores = (self.own, memory.own_matches), (self.earlier, memory.earlier_matches)

    def read(self, text: Tokens) -> None:
        """Take in what is new of the text."""
        if len(text) > self._num_read:
            self.own.extend(text[self._num_read :].tolist())
            self._num_read = len(text)

    def end_to_read(self, text: Tokens) -> End:
        """The end of a text, what is new of which is taken in by whoever is given it next."""
        num_new, self._num_read = len(text) - self._num_read, len(text)
        tokens = array("i", text[-max(constants.MAX_MATCH, num_new) :].tobytes())
        return End(tokens, len(text), num_new)

    def end_after(self, text: Tokens, tokens: Sequence[int]) -> End:
        """The end of a text that may go on with these."""
        end = array("i", text[-constants.MAX_MATCH :].tobytes())
        end.extend(tokens)
        return End(end, len(text) + len(tokens))

    def sources(self, text: Tokens, depth: int = constants.MAX_MATCH) -> list[Source]:
        """The sources at the end of a text, at most so many tokens deep. It may be longer than
        what was read."""
        rows = self.rows(text)
        coupling = rows.coupling
        found: list[Source] = [rows]
        for store, history in self.stores:
            speculation = store.speculate(text, constants.MAX_MATCH, constants.MIN_SHARE, depth)
            if speculation.tokens:
                found.append(MatchSource.of(speculation, history, coupling))
        return [*found, *self.stored(text)]

    def stored(self, text: Tokens) -> list[Source]:
        """What a datastore proposes at the end of a text."""
        if self._datastore is not None:
            windows = self._datastore.continuations(
                text,
                max_span=constants.REST_SPAN,
                min_span=constants.REST_LEAST_SPAN,
                length=constants.REST_LENGTH,
            )
            if len(windows):
                common = most_frequent(windows, constants.REST_TOKENS)
                shares = tuple(count / len(windows) for count in common.counts)
                own = common.draft.tokens, common.draft.parents, shares
                coupling = self._coupling(len(text))
                return [StoredSource(*own, self.memory.stored, coupling)]
        return []

    def rows(self, text: Tokens) -> RowSource:
        """The target's rows alone, at the end of a text."""
        return self.rows_after(text[-MAX_ORDER:].tolist(), len(text))

    def rows_after(self, tokens: Sequence[int], position: int) -> RowSource:
        """The same, after these tokens."""
        end, coupling = tuple(tokens[-MAX_ORDER:]), self._coupling(position)
        return RowSource(self._rows, self.memory.by_order, end, coupling)

    def _coupling(self, position: int) -> Coupling | None:
        return None if self._sampler is None else Coupling(self._sampler, position)

    def lessons(
        self,
        text: Tokens,
        draft: Draft,
        scores: Scores,
        end: int = ROOT,
        *,
        clock: Callable[[], float] = perf_counter,
        budget_s: float = math.inf,
    ) -> Lessons:
        """What the target held likely in the rows of a draft that was scored after ``text``: on the
        path to the node ``end``, and then in others, the likeliest first. As many as can be kept in
        ``budget_s`` seconds, one at least; of a long path the last ones."""
        begin_s = clock()
        num_rows, path = scores.num_rows, [0, *(node + 1 for node in draft.path(end))]
        others = (row for row in range(num_rows) if row not in path)
        kept: list[tuple[int, Callable[[], Candidates]]] = []
        num_of_path = 0
        for row in (*reversed(path), *others):
            spent_s = clock() - begin_s
            if kept and spent_s * (1 + 1 / len(kept)) > budget_s:
                break  # another one would take longer
            if row < num_rows:  # or it was accepted, but not scored itself
                kept.append((row, scores.keep(row)))
                num_of_path += row in path
        # a later row replaces an earlier one
        kept = [*reversed(kept[:num_of_path]), *kept[num_of_path:]]
        return Lessons(tuple(text[-MAX_ORDER:].tolist()), draft, kept)

    def learn(self, lessons: Lessons) -> None:
        """Store what the target held likely there."""
        for row, find in lessons.rows:
            candidates = find()
            if candidates.tokens:
                self._rows.add(lessons.context(row), candidates)

    def end(self, text: Tokens) -> None:
        """The completion is over."""
        self.earlier.extend(text[self._num_prompt :].tolist())
        self.earlier.end()
