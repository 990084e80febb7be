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
        self.ranks: list[int] = []  # among siblings
        self.distributions = None  # candidates are chosen, not drawn
        self._children: dict[int, list[int]] = {}  # of the nodes that are expanded, best first

    def __len__(self) -> int:
        return len(self.tokens)

    def expand(self, node: int, tokens: Sequence[int], confidences: Sequence[float]) -> None:
        """Give a node its successors, best first; they may be none."""
        begin, children = len(self), self._children.setdefault(node, [])
        self.ranks.extend(range(len(children), len(children) + len(tokens)))
        self.tokens.extend(tokens)
        self.confidences.extend(confidences)
        self.parents.extend([node] * len(tokens))
        children.extend(range(begin, len(self)))

    def extend(
        self, tokens: Sequence[int], parents: Sequence[int], confidences: Sequence[float]
    ) -> None:
        """Add nodes as they were made elsewhere, in the same order."""
        begin = 0
        while begin < len(tokens):  # siblings were made together, mostly
            end, parent = begin + 1, parents[begin]
            while end < len(tokens) and parents[end] == parent:
                end += 1
            self.expand(parent, tokens[begin:end], confidences[begin:end])
            begin = end

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
        if node == ROOT:
            return self
        return self._under(node) if self.is_expanded(node) else CandidateTree()

    def _under(self, root: int) -> CandidateTree:
        """Of an expanded node."""
        tree, placed = CandidateTree(), [(root, ROOT)]
        for node, place in placed:  # it grows: parents come before their children
            children, begin = self.children(node), len(tree)
            tree.expand(
                place,
                [self.tokens[child] for child in children],
                [self.confidences[child] for child in children],
            )
            placed += (
                (child, begin + i) for i, child in enumerate(children) if child in self._children
            )
        return tree
