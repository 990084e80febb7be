"""The inner loops in Python, to which those in C++ are compared: the same results, bit for bit."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from duodec.core import rows, targets
from duodec.core.draft import ROOT
from duodec.core.rows import Row, descending, log_normaliser
from duodec.core.sampling import noise, sampler
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import NUM_CANDIDATES, Candidates
from duodec.drafting import constants
from duodec.drafting.continuations import (
    END,
    Frequent,
    most_frequent,
    most_frequent_of_few,
)
from duodec.drafting.recycling import MAX_ORDER, RecycledRows
from duodec.drafting.suffix import Speculation, Suffixes
from duodec.methods import draft_selector
from duodec.native import ranking
from duodec.planning import planner
from duodec.planning.acceptance import Acceptance
from duodec.planning.coupling import LEAST, Coupling
from duodec.planning.mixing import Kind, Mixer
from duodec.planning.selection import Selection
from duodec.planning.sources import (
    LENGTHS,
    ContinuationSource,
    End,
    HeadSource,
    MatchSource,
    RowSource,
    StoredSource,
    TextSources,
    TreeSource,
)
from duodec_vllm import speculator

MANY_PLACES = 100  # from here on, arrays are faster than comparing one by one
_Places = Sequence[int] | NDArray[np.integer]
_Found = tuple[Sequence[int], Sequence[int], Sequence[float], float, int]
"""Tokens, parents and shares by node; the score; the length of the match."""


def use(patch: pytest.MonkeyPatch) -> None:
    """Use what is here in place of the compiled loops, for whatever is made from now on; unlike
    them, it can be copied."""
    for compiled, oracle in ((Suffixes, PythonSuffixes), (RecycledRows, PythonRows)):
        for name, function in vars(oracle).items():
            if callable(function) or isinstance(function, property):
                patch.setattr(compiled, name, function, raising=False)
    for module in (targets, rows, sampler):
        patch.setattr(module, "ranking", Ranking)
    for module in (planner, speculator):
        patch.setattr(module, "grow", grow)
        patch.setattr(module, "learn", learn)
    patch.setattr(draft_selector, "without", without)
    patch.setattr(planner, "propose", propose)
    patch.setattr(planner, "fastest_width", fastest_width)


# --- sources of candidates: what they propose, and what they learn of themselves

Successor = tuple[int, float, Any]
"""Token, likelihood, the state there. A state of None is found by `follow`, once it is needed."""
Context = tuple[int, ...]


class Tree:
    """`TreeSource`; a state is a node."""

    is_open = False

    def __init__(self, source: TreeSource) -> None:
        self.source = source

    def root(self) -> int:
        return self.source.node

    def successors(self, state: int, least: float) -> list[Successor]:
        tree, acceptance = self.source.tree, self.source.acceptance
        found = []
        for child in tree.children(state):
            if child < self.source.num_nodes:
                likelihood = acceptance.estimate(tree.confidences[child], tree.ranks[child])
                found.append((tree.tokens[child], likelihood, child))
        return [one for one in found if one[1] >= least]

    def observe(self, state: int, token: int) -> None: ...


class Continuations:
    """`ContinuationSource`; a state is a node."""

    is_open = False

    def __init__(self, source: ContinuationSource) -> None:
        self.source = source

    def root(self) -> int:
        return ROOT

    def successors(self, state: int, least: float) -> list[Successor]:
        if not (children := self._children(state)):
            return []
        source = self.source
        acceptance, confidences = self._judged(state, children)
        likelihoods = [acceptance.estimate(one, rank) for rank, one in enumerate(confidences)]
        if isinstance(source, MatchSource | StoredSource) and source.coupling:
            tokens = [source.tokens[child] for child in children]
            depth = self._depth(state)
            likelihoods = likely_of_texts(source.coupling, tokens, likelihoods, depth)
        return [
            (source.tokens[child], likelihood, child)
            for child, likelihood in zip(children, likelihoods, strict=True)
            if likelihood >= least
        ]

    def observe(self, state: int, token: int) -> None:
        if children := self._children(state):
            acceptance, confidences = self._judged(state, children)
            is_right = [self.source.tokens[child] == token for child in children]
            acceptance.observe(confidences, range(len(children)), is_right)

    def _children(self, state: int) -> list[int]:
        return [node for node, parent in enumerate(self.source.parents) if parent == state]

    def _depth(self, node: int) -> int:
        return 0 if node == ROOT else 1 + self._depth(self.source.parents[node])

    def _judged(self, node: int, children: Sequence[int]) -> tuple[Acceptance, tuple[float, ...]]:
        """What was learned of a node's children, and the confidence in each."""
        source, sure = self.source, 1.0
        if isinstance(source, MatchSource):
            number = bisect_right(LENGTHS, source.length + self._depth(node)) - 1
            acceptance, sure = source.history.by_length[number], source.history.expected[number]
        else:
            assert isinstance(source, StoredSource | HeadSource)
            acceptance = source.acceptance
        above = 1.0 if node == ROOT else source.shares[node]
        return acceptance, tuple(sure * source.shares[child] / above for child in children)


class Rows:
    """`RowSource`; a state is the end of the text and the tokens from there to a node."""

    is_open = True

    def __init__(self, source: RowSource) -> None:
        self.source = source

    def root(self) -> Context:
        return self.source.end

    def successors(self, state: Context, least: float) -> list[Successor]:
        if (known := self._judged(state)) is None:
            return []
        acceptance, tokens, confidences = known
        likelihoods = [acceptance.estimate(one, rank) for rank, one in enumerate(confidences)]
        return [
            (token, likelihood, None)
            for token, likelihood in zip(tokens, likelihoods, strict=True)
            if likelihood >= least
        ]

    def follow(self, state: Context, token: int) -> Context:
        return (*state, token)

    def observe(self, state: Context, token: int) -> None:
        if (known := self._judged(state)) is not None:
            acceptance, tokens, confidences = known
            is_right = [own == token for own in tokens]
            acceptance.observe(confidences, range(len(tokens)), is_right)

    def _judged(
        self, state: Context
    ) -> tuple[Acceptance, tuple[int, ...], tuple[float, ...]] | None:
        """What was learned of a row, its tokens, the likeliest first, and the confidence in
        each."""
        source = self.source
        known = source.rows.longest(state)
        if known is None:
            return None
        order, (tokens, confidences) = known
        acceptance = source.acceptance[order - 1]
        confidences = confidences or constants.EXPECTED_BY_RANK[: len(tokens)]
        if source.coupling is None or not tokens:
            return acceptance, tokens, confidences
        depth = len(state) - len(source.end)
        found = likely_of_row(source.coupling, tokens, confidences, depth)
        return acceptance, tuple(tokens[i] for i, _ in found), tuple(sure for _, sure in found)


def proposer(source: Any) -> Any:
    """What a source proposes; one of the tests' own says so itself."""
    if isinstance(source, TreeSource):
        return Tree(source)
    if isinstance(source, RowSource):
        return Rows(source)
    return Continuations(source) if isinstance(source, ContinuationSource) else source


def likely_of_row(
    coupling: Coupling, tokens: Sequence[int], confidences: Sequence[float], depth: int
) -> list[tuple[int, float]]:
    """What a row that was scored before says of the token at this depth under the text (0: the
    next one): which of its tokens, and how likely it is drawn, the likeliest first.
    ``confidences`` are those of the row, at temperature 1, best first."""
    power, most = coupling.power, max(confidences[0], LEAST)
    sums = [
        power * math.log(max(one, LEAST) / most) + own
        for one, own in zip(confidences, _noise(coupling, tokens, depth), strict=True)
    ]
    order = sorted(range(len(sums)), key=lambda i: -sums[i])  # stable
    weights = [math.exp(sums[i] - sums[order[0]]) for i in order]
    total = 0.0
    for weight in weights:  # newer versions of Python round `sum` otherwise than C++
        total += weight
    return [(i, weight / total) for i, weight in zip(order, weights, strict=True)]


def likely_of_texts(
    coupling: Coupling, tokens: Sequence[int], likelihoods: Sequence[float], depth: int
) -> list[float]:
    """How likely tokens that followed earlier are drawn at this depth, if they are as likely as
    that whatever the noise is."""
    found = []
    for likelihood, own in zip(likelihoods, _noise(coupling, tokens, depth), strict=True):
        likely = math.exp(constants.NOISE_POWER * math.log(max(likelihood, LEAST)))
        found.append(likelihood / likely * math.exp(-(1.0 - likely) / likely * math.exp(-own)))
    return found


def _noise(coupling: Coupling, tokens: Sequence[int], depth: int) -> list[float]:
    key = coupling.sampler.key(coupling.position + depth)
    found: list[float] = noise.gumbel(key, np.array(tokens, dtype=np.int64)).tolist()
    return found


# --- selections


@dataclass
class Proposed:
    """A token at a node."""

    likelihoods: dict[int, float]  # by the kind of who proposes it
    below: list[Any]  # where it leads the sources
    none: float = 1.0
    others: frozenset[int] = frozenset()  # kinds of sources that propose others, but not it
    rival: float = 0.0

    @property
    def joint(self) -> float:
        return 1.0 - self.none


def _proposed(
    selection: Selection, given: Sequence[Any], states: list[Any], value: float
) -> dict[int, Proposed]:
    """What sources propose at a node of this value, each token once."""
    share = selection.least / value
    found: dict[int, Proposed] = {}
    asked = set()
    for number, (source, state) in enumerate(zip(given, states, strict=True)):
        for token, likelihood, below in [] if state is None else source.successors(state, share):
            kind = int(selection.sources[number].kind)
            entry = found.setdefault(token, Proposed({}, [None] * len(given)))
            entry.none *= 1.0 - likelihood
            entry.likelihoods[kind] = likelihood
            entry.below[number] = below
            asked.add(kind)
    for entry in found.values():
        entry.others = frozenset(asked - set(entry.likelihoods))
        rivals = (other.joint for other in found.values() if other is not entry)
        entry.rival = max(rivals, default=0.0)
    return found


def _inputs(one: Proposed) -> Iterator[tuple[int, float]]:
    """The weights that matter to a token, and what each is multiplied by."""
    num = len(Kind)
    for kind in range(num):
        if kind in one.likelihoods:
            yield kind, _logit(one.likelihoods[kind])
            yield num + kind, 1.0
        elif kind in one.others:
            yield 2 * num + kind, 1.0
    yield 3 * num, _logit(one.joint)
    yield 3 * num + 1, one.rival


def _logit(likelihood: float) -> float:
    p = min(max(likelihood, constants.MIN_VALUE), 1.0 - constants.MIN_VALUE)
    return math.log(p / (1.0 - p))


def mixed(mixer: Mixer, one: Proposed) -> float:
    """How likely it is the target's token."""
    if isinstance(mixer, JointMixer):
        return one.joint
    total = 0.0
    for i, own in _inputs(one):
        total += mixer.weights[i] * own
    return 1.0 / (1.0 + math.exp(-total))


def learn_to_mix(mixer: Mixer, one: Proposed, *, is_right: bool) -> None:
    error = is_right - mixed(mixer, one)
    for i, own in _inputs(one):
        gradient = error * own
        squares = min(constants.MAX_SQUARES, mixer.squares[i] + gradient * gradient)
        mixer.squares[i] = squares
        mixer.weights[i] += constants.MIXING_RATE * gradient / math.sqrt(1.0 + squares)


class JointMixer(Mixer):
    """Takes the joint likelihood as it is, whatever it learned."""


def _below(given: Sequence[Any], states: list[Any], token: int, one: Proposed) -> list[Any]:
    """Where a token leads the sources."""
    below = list(one.below)
    for i, source in enumerate(given):
        if source.is_open and below[i] is None and states[i] is not None:
            below[i] = source.follow(states[i], token)
    return below


def learn(selection: Selection, tokens: Sequence[int]) -> None:
    """`duodec.planning.compiled.learn`, of whatever sources."""
    index: dict[tuple[int, int], int] = {}
    for i, edge in enumerate(zip(selection.parents, selection.tokens, strict=True)):
        index.setdefault(edge, i)
    given = [proposer(source) for source in selection.sources]
    states = [source.root() for source in given]
    node, value = ROOT, 1.0
    selection.num_labelled = selection.num_without_draft = 0
    for token in tokens[: selection.depth]:
        selection.num_labelled += 1
        found = _proposed(selection, given, states, value)
        if token in found:
            by = found[token].likelihoods
            selection.num_without_draft += any(kind != Kind.DRAFT_MODEL for kind in by)
        for other, one in found.items():
            learn_to_mix(selection.mixer, one, is_right=other == token)
        for source, state in zip(given, states, strict=True):
            if state is not None:
                source.observe(state, token)
        if (node, token) not in index or token not in found:  # others have taught meanwhile
            return
        states, node = _below(given, states, token, found[token]), index[node, token]
        value = selection.values[node]


def without(selection: Selection, source: Any, tokens: Sequence[int]) -> list[float]:
    """`duodec.planning.compiled.without`, of whatever sources."""
    given = [proposer(one) for one in selection.sources]
    states: list[Any] = [
        None if one is source else own.root()
        for one, own in zip(selection.sources, given, strict=True)
    ]
    values, value = list[float](), 1.0
    for token in tokens:
        one = _proposed(selection, given, states, value).get(token)
        if one is None:
            break
        value *= mixed(selection.mixer, one)
        values.append(value)
        states = _below(given, states, token, one)
    return values


def grow(
    selection: Selection,
    num_tokens: int,
    depth: int,
    *,
    has_branches: bool = True,
    least: float = constants.MIN_VALUE,
) -> None:
    """`duodec.planning.compiled.grow`, of whatever sources."""
    selection.depth, selection.least = depth if num_tokens else 0, least
    given, values = [proposer(one) for one in selection.sources], selection.values
    tokens, parents = selection.tokens, selection.parents
    # (-value, order, parent, token, what it is, depth)
    edge: list[tuple[float, int, int, int, Proposed, int]] = []
    states = [source.root() for source in given]
    all_states = [states]  # of the root, then of each node
    node, value, deep, order = ROOT, 1.0, 0, 0
    while True:
        if deep < selection.depth:
            total = 0.0
            for token, one in _proposed(selection, given, states, value).items():
                likelihood = mixed(selection.mixer, one)
                total += likelihood
                if value * likelihood >= least:
                    order += 1
                    heappush(edge, (-value * likelihood, order, node, token, one, deep + 1))
            if node == ROOT:
                selection.reach = min(1.0, total)
        if not edge or len(tokens) >= num_tokens:
            selection.is_full = len(tokens) == num_tokens
            return
        negative, _, parent, token, one, deep = heappop(edge)
        if not has_branches:
            edge.clear()
        states = _below(given, all_states[parent + 1], token, one)
        node, value = len(tokens), -negative
        tokens.append(token)
        parents.append(parent)
        values.append(value)
        all_states.append(states)


def fastest_width(
    values: Sequence[float], seconds: Sequence[float], worst: Sequence[float], *,
    trust: float, caution: float, lost: float, most_bet: float, bet: float, more_s: float,
) -> int:  # fmt: skip
    """`compiled.fastest_width`."""
    plain_s = max(1e-9, seconds[0] + more_s)
    best, width, promised = caution / plain_s, 0, 0.0
    for num, value in enumerate(values, 1):
        promised += trust * value
        if worst[num] + more_s > plain_s * (1.0 + lost + min(most_bet, bet * promised)):
            continue
        rate = (1.0 + promised) / max(1e-9, seconds[num] + more_s)
        if rate > best:
            best, width = rate, num
    return width


def propose(
    selection: Selection, texts: TextSources, end: End, num_tokens: int, depth: int,
    seconds: Sequence[float], worst: Sequence[float], *, has_branches: bool, least: float,
    **bounds: float,
) -> int:  # fmt: skip
    """`compiled.propose`."""
    texts.own.extend(end.tokens[len(end.tokens) - end.num_new :])
    before = np.full(end.position - len(end.tokens), -1, dtype=np.int32)
    text = np.concatenate([before, np.array(end.tokens, dtype=np.int32)])
    tree, *others = selection.given
    found = texts.sources(text)
    given = [one for one in found if not isinstance(one, StoredSource)]  # which is among the others
    selection.given = [tree, *given, *others]
    grow(selection, num_tokens, depth, has_branches=has_branches, least=least)
    return fastest_width(selection.values, seconds, worst, **bounds)


class PythonSuffixes:
    """`Suffixes`."""

    def __init__(self, max_depth: int, max_tokens: int = constants.MAX_STORED) -> None:
        self._max_depth = max_depth
        self._max_tokens = max_tokens
        self._clear()

    def _clear(self) -> None:
        self._tokens = array("i", [END] * self._max_depth)
        self._num_tokens = 0
        self._places: dict[int, array[int]] = {}

    def __len__(self) -> int:
        return self._num_tokens

    @property
    def num_cells(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._places.setdefault(token, array("i")).append(len(self._tokens))
            self._tokens.append(token)
            self._num_tokens += 1

    def end(self) -> None:
        self._tokens.extend([END] * self._max_depth)
        if len(self._tokens) > self._max_tokens:
            newer = self._tokens[len(self._tokens) // 2 :]
            self._clear()
            for token in newer:
                if token == END:
                    self._tokens.append(END)
                else:
                    self.extend([token])

    def speculate(
        self, text: Tokens, factor: float, min_share: float, depth: int | None = None
    ) -> Speculation:
        if not len(text):
            return Speculation()
        most = self._max_depth if depth is None else max(0, min(depth, self._max_depth))
        tail: list[int] = text[-self._max_depth :].tolist()
        best: _Found = (), (), (), 0.0, 0
        for length, places in reversed(self._matches(tail[::-1])):
            num_tokens = min(most, int(factor * length + 1e-6))
            best_score = best[3]
            if num_tokens <= best_score:  # no shorter one scores more, and the longer one wins
                break
            places = places[-constants.MAX_PLACES :]
            tree = self._after(places, num_tokens, _at_least(min_share * len(places)))
            score = sum(tree.counts) / len(places)
            if score > best_score:
                shares = tuple(count / len(places) for count in tree.counts)
                best = tree.draft.tokens, tree.draft.parents, shares, score, length
        return Speculation(*best)

    def _matches(self, tail: list[int]) -> list[tuple[int, _Places]]:
        """Suffix lengths, ascending, with the places of a suffix's last token; of lengths with the
        same places only the longest. The text's last token comes first."""
        places: _Places = self._places.get(tail[0], ())
        if len(places) and places[-1] + 1 == len(self._tokens):  # the text's own end
            places = places[:-1]
        matches, length = list[tuple[int, _Places]](), 1
        while len(places):
            longer = self._before(places, length, tail[length]) if length < len(tail) else ()
            if len(longer) < len(places):
                matches.append((length, places))
            places, length = longer, length + 1
        return matches

    def _before(self, places: _Places, distance: int, token: int) -> _Places:
        """The places that ``token`` precedes by ``distance``."""
        if len(places) < MANY_PLACES:
            known = self._tokens
            return [place for place in places if known[place - distance] == token]
        at = np.asarray(places)
        found: NDArray[np.integer] = at[self._known()[at - distance] == token]
        return found

    def _after(self, places: _Places, num_tokens: int, min_count: int) -> Frequent:
        """The most frequent tokens after these places."""
        if len(places) <= constants.FEW_WINDOWS:
            lists = [self._tokens[place + 1 : place + 1 + num_tokens].tolist() for place in places]
            padded = [found + [END] * (num_tokens - len(found)) for found in lists]
            return most_frequent_of_few(sorted(padded), num_tokens, min_count)
        known = self._known()
        at = np.asarray(places)[:, None] + np.arange(1, num_tokens + 1)
        windows = np.where(at < len(known), known[np.minimum(at, len(known) - 1)], END)
        return most_frequent(windows[np.lexsort(windows.T[::-1])], num_tokens, min_count)

    def _known(self) -> NDArray[np.int32]:
        """A view; while there is one, the store cannot grow."""
        return np.frombuffer(self._tokens, dtype=np.int32)


def _at_least(count: float) -> int:
    """The least whole number not below ``count``, up to rounding error."""
    return max(1, math.ceil(count - 1e-6))


class Ranking:
    """`ranking`, of rows that are finite."""

    @staticmethod
    def top(row: Row, k: int) -> NDArray[np.int64]:
        return descending(row)[:k]

    @staticmethod
    def best_two(row: Row) -> ranking.BestTwo:
        tokens = Ranking.top(row, 2)
        return tokens.tolist(), row[tokens].tolist()

    @staticmethod
    def likeliest(row: Row, k: int) -> ranking.Best:
        tokens = Ranking.top(row, k)
        return tokens, np.exp(row[tokens].astype(np.float64) - log_normaliser(row))

    @staticmethod
    def candidates(row: Row, k: int) -> ranking.Best | None:
        tokens = Ranking.top(row, k)
        if np.isnan(row).any() or not np.isfinite(row[tokens[0]]):
            return None
        weights = np.exp(row[tokens].astype(np.float64) - float(row[tokens[0]]))
        return tokens, weights / weights.sum()

    @staticmethod
    def noisy(row: Row, k: int, head: int, temperature: float, key: int) -> ranking.Best:
        tokens = np.sort(Ranking.top(row, head))
        scores = row[tokens] * np.float32(1 / temperature)
        if len(tokens) > 1:
            scores = scores + noise.gumbel(key, tokens)
        order = descending(scores)
        weights = np.exp(scores[order].astype(np.float64) - float(scores[order[0]]))
        return tokens[order][:k], (weights / weights.sum())[:k]


class PythonRows:
    """`RecycledRows`."""

    def __init__(self, max_contexts: int = constants.MAX_CONTEXTS) -> None:
        self._max_contexts = max_contexts
        self._by_order: tuple[dict[tuple[int, ...], Candidates], ...] = tuple(
            {} for _ in range(MAX_ORDER)
        )

    def __len__(self) -> int:
        return sum(map(len, self._by_order))

    def add(self, context: tuple[int, ...], candidates: Candidates) -> None:
        candidates = candidates.first(NUM_CANDIDATES)
        for order, known in enumerate(self._by_order, 1):
            if order > len(context):
                return
            key = context[-order:]
            if order > 1:
                known.pop(key, None)  # it becomes the latest
                if len(known) >= self._max_contexts:
                    del known[next(iter(known))]
            known[key] = candidates

    def longest(self, context: tuple[int, ...]) -> tuple[int, Candidates] | None:
        shortest = self._by_order[0].get(context[-1:])
        if shortest is None:  # then no longer one is known either
            return None
        for order in range(min(MAX_ORDER, len(context)), 1, -1):
            found = self._by_order[order - 1].get(context[-order:])
            if found is not None:
                return order, found
        return 1, shortest
