"""Grow the trees that a target's own heads propose: as published, by rank, or by likelihood."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT
from duodec.core.targets import Heads


@dataclass(frozen=True)
class Ranks:
    """Propose a fixed tree, as Medusa (2401.10774) and Hydra (2402.05109) publish theirs. It says
    how many children a node has, by the ranks on the path to it, each among its siblings."""

    widths: Mapping[tuple[int, ...], int]

    def grow(self, heads: Heads, depth: int) -> CandidateTree:
        tree = CandidateTree()
        level: dict[tuple[int, ...], int] = {(): ROOT}
        for _ in range(depth):
            level = {path: node for path, node in level.items() if path in self.widths}
            if not level:
                break
            most = max(self.widths[path] for path in level)
            found = heads.successors(tree, list(level.values()), most)
            below = dict[tuple[int, ...], int]()
            for (path, node), likely in zip(level.items(), found, strict=True):
                tree.expand(node, *likely.first(self.widths[path]))
                below |= {(*path, tree.ranks[child]): child for child in tree.children(node)}
            level = below
        return tree


@dataclass(frozen=True)
class Likeliest:
    """Propose the likeliest tokens, as EAGLE-2 (2406.16858) grows its tree. In each level the
    ``num_leaves`` likeliest nodes get ``num_candidates`` successors each, and ``num_tokens`` of all
    nodes are kept. A node's likelihood is the product along its path. A node less likely than
    ``least`` gets no successors, and no node is deeper than ``depth`` levels."""

    num_tokens: int = 60
    num_leaves: int = 10
    num_candidates: int = 10
    depth: int = sys.maxsize
    least: float = 0.0

    def grow(self, heads: Heads, depth: int) -> CandidateTree:
        tree, values, leaves = CandidateTree(), [1.0], [ROOT]  # the root's value is the last
        for _ in range(min(depth, self.depth)):
            found = heads.successors(tree, leaves, self.num_candidates)
            begin = len(tree)
            for leaf, likely in zip(leaves, found, strict=True):
                tree.expand(leaf, *likely)
            values[begin:begin] = [
                tree.confidences[node] * values[tree.parents[node]]
                for node in range(begin, len(tree))
            ]
            worthy = [node for node in range(begin, len(tree)) if values[node] >= self.least]
            leaves = _best(worthy, values, self.num_leaves)
            if not leaves:
                break
        return _only(tree, _best(range(len(tree)), values, self.num_tokens))


def _best(nodes: Sequence[int], values: Sequence[float], count: int) -> list[int]:
    """Return the nodes of the greatest values, in the order of the tree."""
    return sorted(sorted(nodes, key=lambda node: -values[node])[:count])


def _only(tree: CandidateTree, kept: Sequence[int]) -> CandidateTree:
    """Return the tree of some of its nodes, whose parents are among them."""
    smaller, placed = CandidateTree(), {ROOT: ROOT}
    for node in kept:
        parent = placed[tree.parents[node]]
        placed[node] = len(smaller)
        smaller.expand(parent, [tree.tokens[node]], [tree.confidences[node]])
    return smaller
