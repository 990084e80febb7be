"""The sources that candidates come from: the draft model's tree, and text that was seen before."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.core.drafters import Datastore
from duodec.core.sampling.sampler import Sampler, Tokens
from duodec.core.targets import Candidates, Scores
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
"""The match lengths that are judged separately: one token, 2 or 3, 4 to 7, ..."""
Context = tuple[int, ...]


@dataclass(frozen=True)
class Lessons:
    """Hold functions that find the tokens that the target held likely in rows of a draft, each with
    its row, in the order in which they are learned."""

    end: Context  # end of the text that the draft was scored after
    draft: Draft
    rows: Sequence[tuple[int, Callable[[], Candidates]]]

    def context(self, row: int) -> Context:
        """Return the tokens before the token of that row."""
        node, tokens = row - 1, list[int]()
        while node != ROOT and len(tokens) < MAX_ORDER:
            tokens.append(self.draft.tokens[node])
            node = self.draft.parents[node]
        return (*self.end, *reversed(tokens))[-MAX_ORDER:]


class TreeSource:
    """Propose from the draft model's tree; the text ends at one of its nodes."""

    kind = Kind.DRAFT_MODEL

    def __init__(self, tree: CandidateTree, acceptance: Acceptance, node: int = ROOT) -> None:
        """``acceptance`` is learned from whole trees, elsewhere."""
        self.tree = tree
        self.num_nodes = len(tree)  # the number known now; the tree may grow
        self.acceptance = acceptance
        self.node = node

    @property
    def is_expanded(self) -> bool:
        """Return whether something is proposed after the text."""
        return any(child < self.num_nodes for child in self.tree.children(self.node)[:1])

    def num_along(self, tokens: Iterable[int]) -> int:
        """Return how many of these tokens, from the first one on, lie along a path of the tree."""
        num, node = 0, self.node
        for token in tokens:
            child = self.tree.child(node, token)
            if child is None or child >= self.num_nodes:
                break
            num, node = num + 1, child
        return num


@dataclass(eq=False)
class RowSource:
    """Propose from recycled rows, also after tokens that other sources propose."""

    kind = Kind.ROWS
    rows: RecycledRows
    acceptance: Sequence[Acceptance]  # by the length of the context, from 1
    end: Context  # end of the text
    coupling: Coupling | None = None  # noise, where the text is sampled


@dataclass(eq=False)
class ContinuationSource:
    """Hold a tree of what followed the same tokens before. A sampled text has a coupling."""

    tokens: Sequence[int]
    parents: Sequence[int]
    shares: Sequence[float]  # share of the places that continue with a node


@dataclass(frozen=True)
class MatchHistory:
    """Record how often matches in one store of texts continued as before, by their length."""

    kind: Kind
    expected: array[float]  # likelihoods before anything is learned
    by_length: tuple[Acceptance, ...] = field(
        default_factory=lambda: tuple(Acceptance() for _ in LENGTHS)
    )


@dataclass(eq=False)
class MatchSource(ContinuationSource):
    """Propose what followed the same tokens in this text or in earlier completions. Every token
    that it predicts makes the match longer, and longer matches are right more often."""

    length: int  # length of the match at the end of the text, in tokens
    history: MatchHistory
    coupling: Coupling | None = None

    @property
    def kind(self) -> Kind:
        return self.history.kind

    @classmethod
    def of(
        cls, found: Speculation, history: MatchHistory, coupling: Coupling | None = None
    ) -> MatchSource:
        """Make a source from what a store found for a text."""
        return cls(found.tokens, found.parents, found.shares, found.length, history, coupling)


@dataclass(eq=False)
class StoredSource(ContinuationSource):
    """Propose what followed the same tokens in a datastore."""

    kind = Kind.DATASTORE
    acceptance: Acceptance
    coupling: Coupling | None = None


class HeadSource(ContinuationSource):
    """Propose what the target's own heads propose. Their confidences already include the noise."""

    kind = Kind.HEADS

    def __init__(self, tree: CandidateTree, acceptance: Acceptance) -> None:
        shares: list[float] = []
        for parent, confidence in zip(tree.parents, tree.confidences, strict=True):
            shares.append(confidence * (1.0 if parent == ROOT else shares[parent]))
        super().__init__(tree.tokens, tree.parents, shares)
        self.tree = tree
        self.acceptance = acceptance

    def num_along(self, tokens: Iterable[int]) -> int:
        """Return how many of these tokens, from the first one on, lie along a path of the tree."""
        return TreeSource(self.tree, self.acceptance).num_along(tokens)


Source = TreeSource | RowSource | MatchSource | StoredSource | HeadSource
"""A source proposes tokens and how likely each is. C++ reads its fields."""


@dataclass(frozen=True)
class End:
    """Hold the last tokens of a text, as many as are compared, and the position of the next one.
    The last ``num_new`` of them are not in the text's own store yet."""

    tokens: array[int]
    position: int
    num_new: int = 0


@dataclass(frozen=True)
class TextMemory:
    """Hold what outlives a completion: earlier completions and the target's rows, which each owner
    has for itself, and how often each source was right."""

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
            Acceptance.doubting(constants.ONE_TOKEN_SHARE),
            *(Acceptance() for _ in range(1, MAX_ORDER)),
        )
    )
    stored: Acceptance = field(default_factory=Acceptance)
    heads: Acceptance = field(default_factory=Acceptance)
    heads_supplement: Supplement = field(default_factory=Supplement)  # the target's heads
    mixer: Mixer = field(default_factory=Mixer)
    drafted: dict[int, tuple[str, Tokens]] = field(default_factory=dict)
    """The last text that a draft model in turns has read, with its owner, by slot. The draft model
    has cached it unless it has died."""
    decoding: Rate = field(default_factory=Rate)
    """The seconds for which completions are decoded."""


class TextSources:
    """Predict what follows a text, from sources that compute nothing: the same words earlier in it
    and in earlier completions (2411.04975), rows that the target has scored (2408.08696), and a
    datastore, if one is loaded (2311.08252)."""

    def __init__(
        self,
        memory: TextMemory,
        text: Tokens,
        datastore: Datastore | None = None,
        sampler: Sampler | None = None,
        owner: str = "",
    ) -> None:
        """Predict draws with the noise of ``sampler``, if it is given."""
        self.memory = memory
        self.earlier, self._rows = memory.earlier.of(owner), memory.rows.of(owner)
        self._datastore = datastore
        self._sampler = None if sampler is None or sampler.params.is_greedy else sampler
        self.own = Suffixes(constants.MAX_MATCH)
        self._num_prompt = len(text)
        self._num_read = 0
        self.fixed: tuple[bytes, object] | None = None  # what C++ reads for all proposals
        self.stores = (self.own, memory.own_matches), (self.earlier, memory.earlier_matches)

    def read(self, text: Tokens) -> None:
        """Read what is new in the text."""
        if len(text) > self._num_read:
            self.own.extend(text[self._num_read :].tolist())
            self._num_read = len(text)

    def end_to_read(self, text: Tokens) -> End:
        """Return the end of a text. Its receiver reads what is new in the text."""
        num_new, self._num_read = len(text) - self._num_read, len(text)
        tokens = array("i", text[-max(constants.MAX_MATCH, num_new) :].tobytes())
        return End(tokens, len(text), num_new)

    def end_after(self, text: Tokens, tokens: Sequence[int]) -> End:
        """Return the end of a text that may continue with ``tokens``."""
        end = array("i", text[-constants.MAX_MATCH :].tobytes())
        end.extend(tokens)
        return End(end, len(text) + len(tokens))

    def sources(self, text: Tokens, depth: int = constants.MAX_MATCH) -> list[Source]:
        """Return the sources at the end of a text, at most ``depth`` tokens deep. The text may be
        longer than what was read."""
        rows = self.rows(text)
        coupling = rows.coupling
        found: list[Source] = [rows]
        for store, history in self.stores:
            speculation = store.speculate(text, constants.MAX_MATCH, constants.MIN_SHARE, depth)
            if speculation.tokens:
                found.append(MatchSource.of(speculation, history, coupling))
        return [*found, *self.stored(text)]

    def stored(self, text: Tokens) -> list[Source]:
        """Return what a datastore proposes at the end of a text."""
        if self._datastore is not None:
            windows = self._datastore.continuations(
                text,
                max_span=constants.DATASTORE_SPAN,
                min_span=constants.DATASTORE_MIN_SPAN,
                length=constants.DATASTORE_LENGTH,
            )
            if len(windows):
                common = most_frequent(windows, constants.DATASTORE_TOKENS)
                shares = tuple(count / len(windows) for count in common.counts)
                own = common.draft.tokens, common.draft.parents, shares
                coupling = self._coupling(len(text))
                return [StoredSource(*own, self.memory.stored, coupling)]
        return []

    def rows(self, text: Tokens) -> RowSource:
        """Return the target's rows alone, at the end of a text."""
        return self.rows_after(text[-MAX_ORDER:].tolist(), len(text))

    def rows_after(self, tokens: Sequence[int], position: int) -> RowSource:
        """Return the target's rows after these tokens."""
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
        """Return what the target held likely in the rows of a draft that was scored after ``text``:
        first on the path to the node ``end``, then elsewhere, likeliest first. It keeps as many
        rows as fit in ``budget_s`` seconds, at least one; of a long path it keeps the last ones."""
        begin_s = clock()
        num_rows, path = scores.num_rows, [0, *(node + 1 for node in draft.path(end))]
        others = (row for row in range(num_rows) if row not in path)
        kept: list[tuple[int, Callable[[], Candidates]]] = []
        num_of_path = 0
        for row in (*reversed(path), *others):
            spent_s = clock() - begin_s
            if kept and spent_s * (1 + 1 / len(kept)) > budget_s:
                break  # another row would take longer
            if row < num_rows:  # an accepted node may not be scored itself
                kept.append((row, scores.keep(row)))
                num_of_path += row in path
        # A later row replaces an earlier one.
        kept = [*reversed(kept[:num_of_path]), *kept[num_of_path:]]
        return Lessons(tuple(text[-MAX_ORDER:].tolist()), draft, kept)

    def learn(self, lessons: Lessons) -> None:
        """Store what the target held likely in these rows."""
        for row, find in lessons.rows:
            candidates = find()
            if candidates.tokens:
                self._rows.add(lessons.context(row), candidates)

    def end(self, text: Tokens) -> None:
        """End the completion."""
        self.earlier.extend(text[self._num_prompt :].tolist())
        self.earlier.end()
