"""Grow a tree of candidates: the tokens a drafter considers, and how likely it finds each.

The drafter grows such a tree and the target's side keeps a mirror of it. Unlike a `Draft` it is
mutable: nodes are added, and the verdict moves its root. A node that has been *expanded* has its
likely successors as children; the other nodes are leaves.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from duodec.core.draft import ROOT


class CandidateTree:
    """Hold tokens, parents and confidences by node; parents precede children."""

    def __init__(self) -> None:
        self.tokens = array("i")
        self.parents = array("i")
        self.confidences = array("d")
        self.ranks = array("i")  # rank among siblings
        self.distributions = None  # candidates are chosen, not drawn
        self._children: dict[int, list[int]] = {}  # children of expanded nodes, best first

    def __len__(self) -> int:
        return len(self.parents)

    def expand(self, node: int, tokens: Sequence[int], confidences: Sequence[float]) -> None:
        """Give a node its successors, best first; there may be none. Raises IndexError for a node
        that does not exist."""
        if not ROOT <= node < len(self):
            raise IndexError(f"there is no node {node} among {len(self)}")
        begin, children = len(self), self._children.setdefault(node, [])
        self.ranks.extend(range(len(children), len(children) + len(tokens)))
        self.tokens.extend(tokens)
        self.confidences.extend(confidences)
        self.parents.extend([node] * len(tokens))
        children.extend(range(begin, len(self)))

    def extend(
        self, tokens: Sequence[int], parents: Sequence[int], confidences: Sequence[float]
    ) -> None:
        """Append nodes of another copy of this tree, in the same order."""
        begin = 0
        while begin < len(tokens):  # siblings mostly come together
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
        """Return a node's successors, best first; [] if they are not known."""
        return self._children.get(node, [])

    def child(self, node: int, token: int) -> int | None:
        for child in self._children.get(node, ()):
            if self.tokens[child] == token:
                return child
        return None

    def path_tokens(self, node: int) -> list[int]:
        """Return the tokens from below the root down to ``node``."""
        tokens = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def follow(self, tokens: Iterable[int]) -> CandidateTree:
        """Return the subtree at the end of a path from the root, as a new tree; empty if the path
        leaves the tree."""
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
        """Return the subtree of an expanded node, as a new tree."""
        tree, placed = CandidateTree(), [(root, ROOT)]
        for node, cursor in placed:  # grows in the loop: parents come before their children
            children, begin = self.children(node), len(tree)
            tree.expand(
                cursor,
                [self.tokens[child] for child in children],
                [self.confidences[child] for child in children],
            )
            placed += (
                (child, begin + i) for i, child in enumerate(children) if child in self._children
            )
        return tree


@dataclass(frozen=True)
class TreeCursor:
    """Mark where in a tree a text ends. A verdict moves the cursor, and the tree stays as it is."""

    tree: CandidateTree = field(default_factory=CandidateTree)
    node: int = ROOT

    def follow(self, tokens: Iterable[int]) -> TreeCursor:
        """Return the cursor after these tokens; its tree is empty where the path leaves the
        tree."""
        node = self.node
        for token in tokens:
            child = self.tree.child(node, token)
            if child is None:
                return TreeCursor()
            node = child
        return TreeCursor(self.tree, node)

    def down(self, length: int) -> list[int]:
        """Return the nodes below the cursor along the likeliest children, at most ``length``."""
        node, nodes = self.node, list[int]()
        while len(nodes) < length and (children := self.tree.children(node)):
            node = children[0]
            nodes.append(node)
        return nodes

    @property
    def is_known(self) -> bool:
        """Return whether the tree has a node below the cursor."""
        return bool(self.tree.children(self.node))

    @property
    def is_expanded(self) -> bool:
        """Return whether its successors are known; there may be none."""
        return self.tree.is_expanded(self.node)

    @property
    def num_under(self) -> int:
        """Return the number of nodes below the cursor."""
        if self.node == ROOT:
            return len(self.tree)
        under = list(self.tree.children(self.node))
        for node in under:  # grows in the loop
            under += self.tree.children(node)
        return len(under)
