"""Represent a draft as a token tree.

Chains, k sequences, retrieval tries and lookahead windows are all `Draft`s. A node is an index, and
its parent comes before it; ``ROOT`` (-1) is the committed text itself. A node's *row* in `Scores`
is ``node + 1``: row 0 follows the text, row i + 1 follows node i.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import lt

from duodec.core.sampling.sampler import Distribution

ROOT = -1


@dataclass(frozen=True)
class Draft:
    """Hold a token tree under a text. It is immutable, and parents precede children.

    ``distributions[i]`` is what token i was *drawn* from; ``distributions`` is None when tokens
    were chosen, not drawn.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    distributions: tuple[Distribution, ...] | None = None

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents), "one parent a token"
        parents = self.parents
        is_ordered = min(parents, default=ROOT) >= ROOT and all(map(lt, parents, count()))
        assert is_ordered, "parents precede children"
        assert self.distributions is None or len(self.distributions) == len(self.tokens), (
            "one distribution a token"
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(
        cls, tokens: Iterable[int], distributions: Iterable[Distribution] | None = None
    ) -> Draft:
        """Return one sequence: every token is the only child of its predecessor."""
        tokens = tuple(tokens)
        parents = tuple(range(ROOT, len(tokens) - 1))
        return cls(tokens, parents, None if distributions is None else tuple(distributions))

    @classmethod
    def sequences(cls, sequences: Iterable[Sequence[int]]) -> Draft:
        """Return several sequences under one root; common prefixes are merged."""
        tree = TreeBuilder()
        for sequence in sequences:
            tree.add_path(ROOT, sequence)
        return tree.draft()

    def children(self, node: int) -> Iterator[int]:
        """Yield the children of ``node`` in the order in which they were drafted."""
        first = node + 1
        return (i for i in range(first, len(self.parents)) if self.parents[i] == node)

    def child(self, node: int, token: int) -> int | None:
        """Return the child of ``node`` that carries ``token``, if there is one."""
        parents, tokens = self.parents, self.tokens
        for i in range(node + 1, len(parents)):
            if parents[i] == node and tokens[i] == token:
                return i
        return None

    def num_along(self, tokens: Iterable[int]) -> int:
        """Return how many of these tokens, from the first one on, lie along a path from the
        root."""
        num, node = 0, ROOT
        for token in tokens:
            child = self.child(node, token)
            if child is None:
                break
            num, node = num + 1, child
        return num

    def find(self, paths: Iterable[Sequence[int]]) -> list[int | None]:
        """Return the node at the end of each path of tokens from the root (ROOT for an empty path);
        None if the tree has no such path."""
        index = {(p, t): i for i, (p, t) in enumerate(zip(self.parents, self.tokens, strict=True))}
        ends: list[int | None] = []
        for path in paths:
            node: int | None = ROOT
            for token in path:
                node = None if node is None else index.get((node, token))
            ends.append(node)
        return ends

    def preorder(self) -> list[int]:
        """Return all nodes in depth-first order, children in the order in which they were
        drafted."""
        below: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            below.setdefault(parent, []).append(node)
        order: list[int] = []
        waiting = below.get(ROOT, [])[::-1]
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting += below.get(node, [])[::-1]
        return order

    def path(self, node: int) -> list[int]:
        """Return the nodes from below the root down to ``node``, which is last; [] for the root."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def path_tokens(self, node: int) -> list[int]:
        """Return the tokens from below the root down to ``node``."""
        return [self.tokens[i] for i in self.path(node)]

    def leaf(self) -> int:
        """Return the last node of a chain; ROOT when the draft is empty."""
        return len(self.tokens) - 1

    @property
    def num_leaves(self) -> int:
        """Return the number of leaves, which is the number of sequences."""
        return len(self) - len({*self.parents} - {ROOT})

    def graft(self, node: int, other: Draft) -> Draft:
        """Return this tree with ``other`` added under ``node``; tokens already there are not
        repeated."""
        if self.distributions is not None or other.distributions is not None:
            assert self.distributions is not None, "distributions on both sides or none"
            assert other.distributions is not None, "distributions on both sides or none"
        if not len(self) and node == ROOT:
            return other
        tokens, parents = list(self.tokens), list(self.parents)
        distributions = None if self.distributions is None else list(self.distributions)
        index = {(p, t): i for i, (p, t) in enumerate(zip(parents, tokens, strict=True))}
        placed = {ROOT: node}
        for i, (token, parent) in enumerate(zip(other.tokens, other.parents, strict=True)):
            key = (placed[parent], token)
            if key not in index:
                index[key] = len(tokens)
                tokens.append(token)
                parents.append(key[0])
                if distributions is not None and other.distributions is not None:
                    distributions.append(other.distributions[i])
            placed[i] = index[key]
        return Draft(
            tuple(tokens), tuple(parents), None if distributions is None else tuple(distributions)
        )

    def depths(self) -> list[int]:
        """Return the depth of each node: the number of tokens from the root down to it, its own
        included."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent != ROOT else 0))
        return depths

    def within(self, num_tokens: int, depth: int) -> Draft:
        """Return the first ``num_tokens`` nodes of those that are at most ``depth`` deep."""
        if len(self) <= num_tokens and len(self) <= depth:  # no node is deeper
            return self
        depths = self.depths()
        if len(depths) <= num_tokens and max(depths) <= depth:
            return self
        kept = [node for node, deep in enumerate(depths) if deep <= depth][:num_tokens]
        return self._of(kept, {ROOT: ROOT, **{node: i for i, node in enumerate(kept)}})

    def subtree(self, node: int) -> Draft:
        """Return the subtree below ``node``, re-rooted there; the whole tree for the root."""
        if node == ROOT:
            return self
        placed = {node: ROOT}
        kept: list[int] = []
        for i in range(node + 1, len(self)):
            if self.parents[i] in placed:
                placed[i] = len(kept)
                kept.append(i)
        return self._of(kept, placed)

    def _of(self, kept: list[int], placed: dict[int, int]) -> Draft:
        """Return these nodes, renumbered; their parents are among them or are the new root."""
        return Draft(
            tuple(self.tokens[i] for i in kept),
            tuple(placed[self.parents[i]] for i in kept),
            None if self.distributions is None else tuple(self.distributions[i] for i in kept),
        )


NO_DRAFT = Draft()


class TreeBuilder:
    """Build a draft; a token added again under the same parent is the same node."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, parent: int, token: int) -> int:
        """Return the child of ``parent`` that carries ``token``, and add it if there is none."""
        node = self._nodes.setdefault((parent, token), len(self._tokens))
        if node == len(self._tokens):
            self._tokens.append(token)
            self._parents.append(parent)
        return node

    def add_path(self, node: int, tokens: Iterable[int]) -> int:
        """Add a sequence under ``node``; return its last node."""
        for token in tokens:
            node = self.add(node, token)
        return node

    def draft(self) -> Draft:
        return Draft(tuple(self._tokens), tuple(self._parents))
