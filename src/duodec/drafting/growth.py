"""Grow a tree continuously: best first, several leaves a pass, kept from one text to the next.

The tree of a text is remembered. When the next request's text continues along the tree, the subtree
at its end is kept, and growth continues from there.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from statistics import fmean, median
from time import perf_counter
from weakref import WeakKeyDictionary

import numpy as np

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.core.drafters import DraftModel, DraftRequest, RowQuery
from duodec.core.round import TICK_S
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Context, Sampler, Tokens
from duodec.core.traits import Parallel
from duodec.drafting import constants

Seed = tuple[tuple[int, float], ...]
"""Tokens in order, and how likely each is given those before it."""


@dataclass(frozen=True)
class Tree:
    """Grow a tree of candidates under the text until no node is worth a forward pass."""

    num_leaves: int = 0  # leaves expanded in one forward pass; 0: as many as pay
    num_candidates: int = constants.CANDIDATES_OF_LEAF  # candidates of each leaf
    least_confidence: float = constants.MIN_VALUE
    max_expanded: int = constants.MAX_EXPANDED  # each may be a leaf, and leaves cost sequence ids
    depth: int = constants.MAX_MATCH
    seed: Seed = ()
    """What other sources, such as the target's heads, propose under the text. It is computed at
    once, whatever the model itself holds likely, and the tree grows from it."""

    @property
    def num_tokens(self) -> int:
        return self.max_expanded * self.num_candidates

    def grow(self, model: DraftModel, request: DraftRequest) -> Iterator[CandidateTree]:
        """Yield what is left of the last tree, then the tree after each forward pass."""
        growth = _growth_of(model, request, self)
        yield growth.tree
        can_seed = self.seed and self.depth and model.traits.has_branches
        if can_seed and growth.add_seed(model, request, self.seed):
            yield growth.tree
        # A simulation's clock is virtual.
        clock = model.clock if model.traits.has_clock else perf_counter
        while growth.is_open:
            leaves, length = growth.next_step()
            start_s = clock()
            gain = growth.expand(model, request, leaves, length)
            growth.steps.observe(len(leaves), length, clock() - start_s, gain)
            yield growth.tree


class _Steps:
    """Keep running medians of a forward pass's seconds, by its leaves and the tokens after each.

    A model that drafts several tokens at once (``parallel``) does so as long as it pays: a chain's
    tokens take time, and its guesses are worth less than what a leaf's own row says. How much less
    is learned where the model computes a node that was guessed.
    """

    def __init__(self, parallel: Parallel | None) -> None:
        self._lengths = (1,) if parallel is None else (1, parallel.num_tokens)
        self._seconds = {
            (k, length): deque[float](maxlen=constants.WINDOW)
            for k in constants.LEAVES
            for length in self._lengths
        }
        self._num_steps = Counter(dict.fromkeys(self._lengths, 0))
        self._gains = deque[float](maxlen=constants.WINDOW)
        self._overlaps = deque[float](
            [constants.FIRST_TRUST] * constants.MIN_PASSES_OF_WIDTH, maxlen=constants.WINDOW
        )

    @property
    def trust(self) -> float:
        """Return the share of what mask tokens hold likely that the model holds likely, too, once
        it knows the tokens before."""
        return fmean(self._overlaps)

    def observe_guess(self, guessed: Mapping[int, float], known: Mapping[int, float]) -> None:
        """Record a node's likely successors as they were guessed, and as they are."""
        total = sum(guessed.values())  # their likelihoods include the trust of that time
        overlap = sum(min(share / total, known.get(token, 0)) for token, share in guessed.items())
        self._overlaps.append(min(1.0, overlap / sum(known.values())))

    def observe(self, num_leaves: int, length: int, seconds: float, gain: float) -> None:
        """Record a step, and the value of all that it expanded relative to the values of its
        leaves."""
        if (num_leaves, length) in self._seconds:
            self._seconds[num_leaves, length].append(seconds)
        self._num_steps[length] += 1
        if length > 1:
            self._gains.append(gain)

    def best(self, values: Sequence[float]) -> tuple[int, int]:
        """Return how many of the likeliest leaves (``values``, best first), and how many tokens
        after each, bring the most value a second. Each length of chains is tried now and then,
        because steps that read text are slow, and texts differ. What is untried is estimated to
        cost little more than what is measured."""
        best, best_rate, first_s = (1, 1), 0.0, 1.0
        rare = min(self._lengths, key=self._num_steps.__getitem__)
        is_due = self._num_steps[rare] < max(
            constants.MIN_PASSES_OF_WIDTH, self._num_steps.total() / constants.PROBE_EVERY
        )
        for length in (rare,) if is_due else self._lengths:
            gain = 1.0
            if length > 1:
                first_s *= constants.COST_OF_TWICE_THE_LEAVES ** log2(length)
                gain = fmean(self._gains) if self._gains else float(length)
            expected_s = first_s
            for k in constants.LEAVES:
                if k > max(1, len(values)):
                    break
                known = self._seconds[k, length]
                expected_s = (
                    median(known) if known else expected_s * constants.COST_OF_TWICE_THE_LEAVES
                )
                first_s = expected_s if k == 1 else first_s
                rate = gain * sum(values[:k]) / max(TICK_S, expected_s)
                if rate > best_rate:
                    best, best_rate = (k, length), rate
        return best


class _Growth:
    """Grow a tree under one text."""

    def __init__(
        self,
        text: Tokens,
        sampler: Sampler,
        tree: CandidateTree,
        plan: Tree,
        steps: _Steps,
        is_chain: bool = False,
        guessed: Collection[tuple[int, ...]] = (),
    ) -> None:
        """Continue from what ``tree`` already holds. If ``is_chain``, only the likeliest successor
        is expanded, for a model whose state has no branches. After the ``guessed`` paths,
        successors come from mask tokens: the model has not computed these nodes."""
        self._is_chain = is_chain
        self.text, self.sampler, self.tree, self._plan = text, sampler, tree, plan
        self.steps = steps
        self._guessed = {ROOT} if () in guessed else set[int]()
        self._values: dict[int, float] = {ROOT: 1.0}
        self._depths: dict[int, int] = {ROOT: 0}
        self._edge: list[tuple[float, int]] = []  # (-value, node) of nodes that may be expanded
        # This is what the model computes under the text, parents first: the places of its nodes and
        # of their parents.
        self._place: dict[int, int] = {ROOT: ROOT}
        self._tokens: list[int] = []
        self._parents: list[int] = []
        if (ROOT in self._guessed or not tree.is_expanded(ROOT)) and plan.depth > 0:
            self._edge.append((-1.0, ROOT))
        self._know(range(len(tree)))
        inner = [node for node in range(len(tree)) if tree.is_expanded(node)]
        if guessed:
            self._guessed |= {n for n in inner if tuple(tree.path_tokens(n)) in guessed}
        for node in inner:
            if node not in self._guessed:
                self._compute(node)
        self._open([node for node in range(len(tree)) if not tree.is_expanded(node)])

    def _know(self, nodes: Iterable[int]) -> None:
        """Value new nodes, parents first."""
        tree, values, depths = self.tree, self._values, self._depths
        for node in nodes:
            parent = tree.parents[node]
            values[node] = values[parent] * tree.confidences[node]
            depths[node] = depths[parent] + 1

    def _open(self, nodes: Iterable[int]) -> None:
        """Let nodes be expanded if they are worth it."""
        for node in nodes:
            value = self._values[node]
            if value < constants.MIN_VALUE or self._depths[node] >= self._plan.depth:
                continue
            if not self._is_chain or node == self.tree.children(self.tree.parents[node])[0]:
                heapq.heappush(self._edge, (-value, node))

    def _compute(self, node: int) -> list[int]:
        """Let the model compute a node and its ancestors. Returns those that it did not compute
        before."""
        new = []
        while node not in self._place:
            new.append(node)
            node = self.tree.parents[node]
        for one in reversed(new):
            self._parents.append(self._place[self.tree.parents[one]])
            self._place[one] = len(self._tokens)
            self._tokens.append(self.tree.tokens[one])
        return new[::-1]

    @property
    def _room(self) -> int:
        """Return how many nodes may still be expanded."""
        return self._plan.max_expanded - (self.tree.num_expanded - self.tree.is_expanded(ROOT))

    @property
    def is_open(self) -> bool:
        """Return whether some node may be expanded."""
        return self._room > 0 and bool(self._edge)

    def next_step(self) -> tuple[list[int], int]:
        """Return the likeliest nodes that may be expanded, and how many tokens to draft after
        each."""
        num_leaves, length = self._plan.num_leaves, 1
        if not num_leaves:
            values = [-v for v, _ in heapq.nsmallest(constants.LEAVES[-1], self._edge)]
            num_leaves, length = self.steps.best(values)
        num_leaves = min(self._room, len(self._edge), num_leaves)
        return [heapq.heappop(self._edge)[1] for _ in range(num_leaves)], length

    def expand(
        self, model: DraftModel, request: DraftRequest, leaves: list[int], length: int
    ) -> float:
        """Expand leaves in one batched forward pass. Below each, mask tokens expand a chain of the
        likeliest tokens (PARD, arXiv 2504.18583), ``length`` tokens long. Returns the value of all
        that is expanded, relative to the values of the leaves alone."""
        # Rows are also taken of nodes that were guessed so far and are computed now.
        asked = [node for leaf in leaves for node in self._compute(leaf) or [leaf]]
        tokens, parents = self._tokens.copy(), self._parents.copy()
        rows = [self._place[node] + 1 for node in asked]
        chains = []
        room = max(0, self._room // len(leaves) - 1)  # nodes left for each leaf
        for leaf in leaves:
            above = self._place[leaf]
            num_masks = min(length - 1, self._plan.depth - self._depths[leaf] - 1, room)
            if leaf in self._guessed:
                num_masks = 0  # a chain is there
            chains.append(range(len(rows), len(rows) + num_masks))
            for _ in chains[-1]:
                assert model.traits.parallel is not None
                parents.append(above)
                above = len(tokens)
                tokens.append(model.traits.parallel.mask_token)
                rows.append(above + 1)
        draft = Draft(tuple(tokens), tuple(parents))
        found = model.rows(RowQuery(request.slot, request.text, draft, tuple(rows)))

        new = {node: self._add(request, node, row) for node, row in zip(asked, found, strict=False)}
        of_leaves = of_chains = 0.0
        for leaf, chain in zip(leaves, chains, strict=True):
            open_ = new.pop(leaf)
            of_leaves += sum(self._values[node] for node in open_)
            for row in chain:
                if not open_ or self._values[open_[0]] < constants.MIN_VALUE:
                    break
                node, *others = open_
                self._open(others)
                open_ = self._add(request, node, found[row], self.steps.trust)
                of_chains += sum(self._values[one] for one in open_)
            self._open(open_)
        for nodes in new.values():
            self._open(nodes)
        return 1.0 + of_chains / max(of_leaves, constants.MIN_VALUE)

    def add_seed(self, model: DraftModel, request: DraftRequest, seed: Seed) -> bool:
        """Compute a chain under the text in one forward pass, so that the tree has what the model
        holds likely in place of it and after it, and value its nodes as other sources do. Returns
        False and computes nothing if all of it is known."""
        tree = self.tree
        seed = seed[: max(0, min(self._plan.depth, self._room) - 1)]
        node: int | None = ROOT
        tokens, parents, places = self._tokens.copy(), self._parents.copy(), [ROOT]
        asked = []  # tokens of the chain before each node
        for number, token in enumerate([None, *(token for token, _ in seed)]):
            if token is not None:
                node = None if node is None else tree.child(node, token)
                if node in self._place:
                    places.append(self._place[node])
                else:
                    parents.append(places[-1])
                    places.append(len(tokens))
                    tokens.append(token)
            if node is None or node in self._guessed or not tree.is_expanded(node):
                asked.append(number)
        found: dict[int, Row] = {}
        if asked:
            draft, rows = Draft(tuple(tokens), tuple(parents)), tuple(places[n] + 1 for n in asked)
            computed = model.rows(RowQuery(request.slot, request.text, draft, rows))
            found = dict(zip(asked, computed, strict=True))
            self._tokens, self._parents = tokens, parents

        node, value = ROOT, 1.0
        seeded = {ROOT: value}
        for number, place in enumerate(places):
            if number:
                token, likely = seed[number - 1]
                below = tree.child(node, token)
                if below is None:  # the model itself would not have proposed it
                    below = len(tree)
                    tree.expand(node, [token], [self._plan.least_confidence])
                    self._know([below])
                value *= likely
                node, seeded[below], self._place[below] = below, value, place
            if number in found:
                self._add(request, node, found[number])
        self._revalue(seeded)
        return bool(asked)

    def _revalue(self, seeded: Mapping[int, float]) -> None:
        """Update the values of the tree where other sources hold nodes likelier than the model
        does."""
        values, tree = self._values, self.tree
        for node in range(len(tree)):
            own = values[tree.parents[node]] * tree.confidences[node]
            values[node] = max(own, seeded.get(node, 0.0))
        self._edge = []
        self._open(node for node in range(len(tree)) if not tree.is_expanded(node))

    def _add(
        self, request: DraftRequest, node: int, row: Row, trust: float | None = None
    ) -> list[int]:
        """Give a node the likely successors that it lacks, and return them. A guess is as likely as
        its row says times ``trust``."""
        tree, begin = self.tree, len(self.tree)
        context = Context(request.text, tuple(tree.path_tokens(node)))
        tokens, likely = request.sampler.candidates(row, context, self._plan.num_candidates)
        num_kept = max(1, int(np.count_nonzero(likely >= self._plan.least_confidence)))
        found = dict(zip(tokens[:num_kept].tolist(), likely[:num_kept].tolist(), strict=True))
        if node in self._guessed:
            known = {tree.tokens[child]: tree.confidences[child] for child in tree.children(node)}
            self.steps.observe_guess(known, found)
            self._guessed.remove(node)
            found = {token: share for token, share in found.items() if token not in known}
        if trust is not None:
            found = {token: trust * share for token, share in found.items()}
            self._guessed.add(node)
        tree.expand(node, list(found), list(found.values()))
        new = range(begin, len(tree))
        self._know(new)
        return list(new)

    def guessed_after(self, tokens: Sequence[int]) -> set[tuple[int, ...]]:
        """Return the paths after these tokens whose successors were guessed by mask tokens."""
        before, num = tuple(tokens), len(tokens)
        paths = (tuple(self.tree.path_tokens(node)) for node in self._guessed)
        return {path[num:] for path in paths if path[:num] == before}


@dataclass
class _Memory:
    """Keep with a model its costs and, by slot, the last tree, which belongs to a text."""

    steps: _Steps
    growths: dict[int, _Growth] = field(default_factory=dict)


_memories: WeakKeyDictionary[DraftModel, _Memory] = WeakKeyDictionary()


def _growth_of(model: DraftModel, request: DraftRequest, plan: Tree) -> _Growth:
    """Return the growth under the request's text so far."""
    memory = _memories.get(model)
    if memory is None:
        memory = _memories[model] = _Memory(_Steps(model.traits.parallel))
    last = memory.growths.get(request.slot)
    tree, guessed = CandidateTree(), set[tuple[int, ...]]()
    if last is not None and last.sampler == request.sampler:
        length = len(last.text)
        if len(request.text) >= length and np.array_equal(request.text[:length], last.text):
            new = request.text[length:].tolist()
            tree, guessed = last.tree.follow(new), last.guessed_after(new)
    is_chain = not model.traits.has_branches
    growth = _Growth(request.text, request.sampler, tree, plan, memory.steps, is_chain, guessed)
    memory.growths[request.slot] = growth
    return growth
