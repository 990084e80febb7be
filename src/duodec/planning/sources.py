"""The sources that candidates come from: the draft model's tree, and text that was seen before."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.core.protocols import Candidates, Datastore, Scores
from duodec.core.sampling.sampler import Sampler, Tokens
from duodec.drafting.continuations import most_frequent
from duodec.drafting.recycling import MAX_ORDER, RecycledRows
from duodec.drafting.suffix import Speculation, Suffixes
from duodec.planning.acceptance import Acceptance
from duodec.planning.coupling import Coupling
from duodec.planning.governor import Rate
from duodec.planning.selection import ALONE, Source
from duodec.planning.supplement import Supplement

_MAX_DEPTH = 24
_FADE = 0.9  # of earlier completions
_FACTOR = float(_MAX_DEPTH)  # draft tokens a matched token: their values say how many are scored
_MIN_SHARE = 0.05
LENGTHS = (1, 2, 4, 8, 16)  # matches that are judged apart: of one token, 2 or 3, 4 to 7, ...
BY_LENGTH = (0.4, 0.6, 0.8, 0.9, 0.95)  # how often they are expected to go on as before
_MAX_SPAN, _MIN_SPAN = 16, 2  # tokens of a suffix that a datastore is searched for
_STORED_TOKENS, _STORED_DEPTH = 64, 10  # of what it proposes
# measured on other texts, before any was seen: how often what a row says after a context of one
# token comes true, and what a single source proposes where none is sure, of what they promise
_AFTER_ONE, _ALONE, _SURE = 0.5, 0.6, 0.85
BY_RANK = (0.4, 0.15, 0.08, 0.05, 0.04, 0.03, 0.02, 0.02)  # expected where a row tells no more


Context = tuple[int, ...]
ByLength = Sequence[Acceptance]
Lesson = tuple[Context, Candidates]
"""The end of a text, and what the target held likely after it."""


class TreeSource:
    """The draft model's tree, the text being at a place in it; a state is a node. What a node is
    worth is looked up when it is asked for: most never are."""

    is_open = False

    def __init__(self, tree: CandidateTree, acceptance: Acceptance, node: int = ROOT) -> None:
        """``acceptance`` is learned from whole trees, elsewhere."""
        self.tree = tree
        self.num_nodes = len(tree)  # known now; the tree may grow
        self.acceptance = acceptance
        self.node = node

    def root(self) -> int:
        return self.node

    def successors(self, state: int, least: float) -> list[tuple[int, float, int]]:
        tree, found = self.tree, []
        tokens, confidences, ranks = tree.tokens, tree.confidences, tree.ranks
        estimate = self.acceptance.estimate
        for child in tree.children(state):
            if child >= self.num_nodes:
                break
            likelihood = estimate(confidences[child], ranks[child])
            if likelihood >= least:
                found.append((tokens[child], likelihood, child))
        return found

    def follow(self, state: int, token: int) -> None:
        return None  # it is not in the tree, or it would have been proposed

    def num_along(self, tokens: Iterable[int]) -> int:
        """How many of these tokens, from the first one on, lie along a path of it."""
        num, node = 0, self.node
        for token in tokens:
            child = self.tree.child(node, token)
            if child is None or child >= self.num_nodes:
                break
            num, node = num + 1, child
        return num

    def observe(self, state: int, token: int) -> None: ...


class _Continuations(ABC):
    """What followed the same tokens before; a state is a node. What a node is worth is computed
    when it is asked for: most never are."""

    is_open = False

    def __init__(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        shares: Sequence[float],
        coupling: Coupling | None = None,
    ) -> None:
        """``shares`` by node: of the places that go on with it. What is sampled has a coupling."""
        self.tokens = tokens
        self.parents = parents
        self.shares = shares
        self.coupling = coupling
        self._depths = {ROOT: 0}  # of nodes that were asked for

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(node)
        return found

    @abstractmethod
    def _judge(self, node: int) -> tuple[Acceptance, float]:
        """What was learned of tokens after a node, and how likely one is whose share is 1."""

    def root(self) -> int:
        return ROOT

    def successors(self, state: int, least: float) -> list[tuple[int, float, int]]:
        children = self._children.get(state)
        if children is None:
            return []
        acceptance, confidences = self._judged(state, children)
        likelihoods = acceptance.by_rank(confidences)
        if self.coupling is not None:
            tokens = [self.tokens[child] for child in children]
            likelihoods = self.coupling.of_texts(tokens, likelihoods, self._depth(state))
        return [
            (self.tokens[child], likelihood, child)
            for child, likelihood in zip(children, likelihoods, strict=True)
            if likelihood >= least
        ]

    def follow(self, state: int, token: int) -> None:
        return None  # it is not in the tree, or it would have been proposed

    def observe(self, state: int, token: int) -> None:
        children = self._children.get(state)
        if children is not None:
            acceptance, confidences = self._judged(state, children)
            acceptance.label(confidences, [self.tokens[child] == token for child in children])

    def _judged(self, node: int, children: Sequence[int]) -> tuple[Acceptance, tuple[float, ...]]:
        """What was learned of a node's children, and the confidence in each."""
        acceptance, sure = self._judge(node)
        above = 1.0 if node == ROOT else self.shares[node]
        return acceptance, tuple(sure * self.shares[child] / above for child in children)

    def _depth(self, node: int) -> int:
        if node not in self._depths:
            self._depths[node] = self._depth(self.parents[node]) + 1
        return self._depths[node]


class MatchSource(_Continuations):
    """What followed the same tokens in this text or in earlier completions. Every token that it is
    right about makes the match longer, and longer matches are right more often."""

    def __init__(
        self, found: Speculation, by_length: ByLength, coupling: Coupling | None = None
    ) -> None:
        super().__init__(found.tokens, found.parents, found.shares, coupling)
        self.by_length = by_length
        self.length = found.length  # of the match at the end of the text, in tokens

    def _judge(self, node: int) -> tuple[Acceptance, float]:
        number = bisect_right(LENGTHS, self.length + self._depth(node)) - 1
        return self.by_length[number], BY_LENGTH[number]


class StoredSource(_Continuations):
    """What followed the same tokens in a datastore."""

    def __init__(
        self,
        draft: Draft,
        shares: Sequence[float],
        acceptance: Acceptance,
        coupling: Coupling | None = None,
    ) -> None:
        super().__init__(draft.tokens, draft.parents, shares, coupling)
        self.acceptance = acceptance

    def _judge(self, node: int) -> tuple[Acceptance, float]:
        return self.acceptance, 1.0


class HeadSource(_Continuations):
    """What the target's own heads propose: its confidences know the noise already."""

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

    def _judge(self, node: int) -> tuple[Acceptance, float]:
        return self.acceptance, 1.0


class RowSource:
    """Recycled rows; a state is the end of the text and the tokens from there to a node."""

    is_open = True

    def __init__(
        self,
        rows: RecycledRows,
        acceptance: Sequence[Acceptance],
        end: Context,
        coupling: Coupling | None = None,
    ) -> None:
        """``acceptance`` by the length of the context, from 1; ``end`` is the text's. What is
        sampled has a coupling."""
        self.rows = rows
        self.acceptance = acceptance
        self.end = end
        self.coupling = coupling

    def root(self) -> Context:
        return self.end

    def successors(self, state: Context, least: float) -> list[tuple[int, float, None]]:
        known = self.rows.longest(state)
        if known is None:
            return []
        order, candidates = known
        tokens, confidences = self._judged(state, candidates)
        likelihoods = self.acceptance[order - 1].by_rank(confidences)
        return [  # `follow` says where they lead
            (token, likelihood, None)
            for token, likelihood in zip(tokens, likelihoods, strict=True)
            if likelihood >= least
        ]

    def follow(self, state: Context, token: int) -> Context:
        return (*state, token)

    def observe(self, state: Context, token: int) -> None:
        known = self.rows.longest(state)
        if known is not None:
            order, candidates = known
            tokens, confidences = self._judged(state, candidates)
            self.acceptance[order - 1].observe(
                confidences, range(len(tokens)), [t == token for t in tokens]
            )

    def _judged(
        self, state: Context, candidates: Candidates
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """A row's tokens, the likeliest first, and the confidence in each."""
        tokens, confidences = candidates
        confidences = confidences or BY_RANK[: len(tokens)]
        if self.coupling is None or not tokens:
            return tokens, confidences
        found = self.coupling.of_row(tokens, confidences, len(state) - len(self.end))
        return tuple(tokens[i] for i, _ in found), tuple(sure for _, sure in found)


@dataclass(frozen=True)
class TextMemory:
    """What outlives a completion: earlier ones, the target's rows, and how often each source was
    right."""

    earlier: Suffixes = field(default_factory=lambda: Suffixes(_MAX_DEPTH))
    by_length: tuple[Acceptance, ...] = field(
        default_factory=lambda: tuple(Acceptance() for _ in LENGTHS)
    )
    rows: RecycledRows = field(default_factory=RecycledRows)
    by_order: tuple[Acceptance, ...] = field(
        default_factory=lambda: (
            Acceptance.doubting(_AFTER_ONE),
            *(Acceptance() for _ in range(1, MAX_ORDER)),
        )
    )
    stored: Acceptance = field(default_factory=Acceptance)
    heads: Acceptance = field(default_factory=Acceptance)
    beside_others: Supplement = field(default_factory=Supplement)  # the target's heads
    agreement: Acceptance = field(
        default_factory=lambda: Acceptance.doubting(_ALONE, below=_SURE, ranks=(ALONE,))
    )
    drafted: dict[int, Tokens] = field(default_factory=dict)
    """By slot, the last text that a draft model in turns has read: cached, unless it has died."""
    decoding: Rate = field(default_factory=lambda: Rate(_FADE))
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
    ) -> None:
        """With ``sampler``, of which the noise is then known, draws are foreseen by it."""
        self.memory = memory
        self._datastore = datastore
        self._sampler = None if sampler is None or sampler.params.is_greedy else sampler
        self._own = Suffixes(_MAX_DEPTH)
        self._num_prompt = len(text)

    def read(self, text: Tokens) -> None:
        """Take in what is new of the text."""
        self._own.extend(text[len(self._own) :].tolist())

    def sources(self, text: Tokens, depth: int = _MAX_DEPTH) -> list[Source]:
        """The sources at the end of a text, at most so many tokens deep. It may be longer than
        what was read."""
        coupling = self._coupling(len(text))
        found: list[Source] = [self._rows(text, coupling)]
        for store in (self._own, self.memory.earlier):
            speculation = store.speculate(text, _FACTOR, _MIN_SHARE, depth)
            if speculation.tokens:
                found.append(MatchSource(speculation, self.memory.by_length, coupling))
        if self._datastore is not None:
            windows = self._datastore.continuations(
                text, max_span=_MAX_SPAN, min_span=_MIN_SPAN, length=_STORED_DEPTH
            )
            if len(windows):
                common = most_frequent(windows, _STORED_TOKENS)
                shares = tuple(count / len(windows) for count in common.counts)
                stored = StoredSource(common.draft, shares, self.memory.stored, coupling)
                found.append(stored)
        return found

    def likeliest(self, text: Tokens) -> int | None:
        """The likeliest token after a text by the target's rows; None where they know none."""
        rows = self._rows(text, self._coupling(len(text)))
        found = rows.successors(rows.root(), 0.0)
        return found[0][0] if found else None

    def _coupling(self, position: int) -> Coupling | None:
        return None if self._sampler is None else Coupling(self._sampler, position)

    def _rows(self, text: Tokens, coupling: Coupling | None) -> RowSource:
        end = tuple(text[-MAX_ORDER:].tolist())
        return RowSource(self.memory.rows, self.memory.by_order, end, coupling)

    def lessons(
        self,
        text: Tokens,
        draft: Draft,
        scores: Scores,
        end: int = ROOT,
        *,
        clock: Callable[[], float] = perf_counter,
        budget_s: float = math.inf,
    ) -> Iterator[Lesson]:
        """What the target held likely in the rows of a draft that was scored after ``text``: on the
        path to the node ``end``, and then in others, the likeliest first. As many as can be read in
        ``budget_s`` seconds, one at least; of a long path the last ones."""
        begin_s = clock()
        end_of_text = tuple(text[-MAX_ORDER:].tolist())
        contexts: list[Context] = [end_of_text]  # of the root, then of each node
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            contexts.append((*contexts[parent + 1][1 - MAX_ORDER :], token))
        num_read = 0

        def read(rows: Iterable[int]) -> Iterator[Lesson]:
            nonlocal num_read
            for row in rows:
                spent_s = clock() - begin_s
                if num_read and spent_s * (1 + 1 / num_read) > budget_s:
                    return  # another one would take longer
                if row < scores.num_rows:  # or it was accepted, but not scored itself
                    candidates = scores.candidates(row)
                    num_read += 1
                    if candidates.tokens:
                        yield contexts[row], candidates

        path = [0, *(node + 1 for node in draft.path(end))]
        yield from reversed(list(read(reversed(path))))  # a later row replaces an earlier one
        yield from read(row for row in range(scores.num_rows) if row not in path)

    def learn(self, lessons: Iterable[Lesson]) -> None:
        """Keep the rows that `lessons` reads."""
        for context, candidates in lessons:
            self.memory.rows.add(context, candidates)

    def end(self, text: Tokens) -> None:
        """The completion is over."""
        self.memory.earlier.extend(text[self._num_prompt :].tolist())
        self.memory.earlier.end()
