"""A tree of candidates: what a drafter holds possible, and how likely it thinks each token.

The drafter grows such a tree and the target's side keeps a mirror of it. Unlike a `Draft`, it
changes: nodes are added, and the verdict moves its root. A node that has been *expanded* has its
likely successors as children; the others are the tree's edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from duodec.core.draft import ROOT


class CandidateTree:
    """Tokens, parents and confidences by node; parents precede children."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.confidences: list[float] = []
        self.laws = None  # candidates are chosen, not drawn
        self._children: dict[int, list[int]] = {}  # of the nodes that are expanded, best first

    def __len__(self) -> int:
        return len(self.tokens)

    def expand(self, node: int, tokens: Iterable[int], confidences: Iterable[float]) -> None:
        """Give a node its successors, best first; they may be none."""
        children = self._children.setdefault(node, [])
        for token, confidence in zip(tokens, confidences, strict=True):
            children.append(self._add(node, token, confidence))

    def extend(
        self, tokens: Sequence[int], parents: Sequence[int], confidences: Sequence[float]
    ) -> None:
        """Add nodes as they were made elsewhere, in the same order."""
        for token, parent, confidence in zip(tokens, parents, confidences, strict=True):
            node = self._add(parent, token, confidence)
            self._children.setdefault(parent, []).append(node)

    @property
    def num_expanded(self) -> int:
        return len(self._children)

    def is_expanded(self, node: int) -> bool:
        return node in self._children

    def children(self, node: int) -> list[int]:
        """A node's successors, best first; [] where they are not known."""
        return self._children.get(node, [])

    def child(self, node: int, token: int) -> int | None:
        return next((c for c in self.children(node) if self.tokens[c] == token), None)

    def path_tokens(self, node: int) -> list[int]:
        """Tokens from below the root down to ``node``."""
        tokens = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def follow(self, tokens: Iterable[int]) -> CandidateTree:
        """What lies under the end of a path from the root, in a tree of its own; nothing does where
        the path leaves the tree."""
        node = ROOT
        for token in tokens:
            child = self.child(node, token)
            if child is None:
                return CandidateTree()
            node = child
        return self if node == ROOT else self._under(node)

    def _under(self, root: int) -> CandidateTree:
        tree = CandidateTree()
        placed = {root: ROOT}
        for node in range(root + 1, len(self)):
            parent = placed.get(self.parents[node])
            if parent is not None:
                placed[node] = tree._add(parent, self.tokens[node], self.confidences[node])
        for node, place in placed.items():
            if node in self._children:
                tree._children[place] = [placed[child] for child in self._children[node]]
        return tree

    def _add(self, parent: int, token: int, confidence: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.confidences.append(confidence)
        return len(self.tokens) - 1
