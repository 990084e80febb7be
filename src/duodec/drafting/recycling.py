"""Drafts from an adjacency matrix: after each token, what was likely when it was last scored."""

from __future__ import annotations

from collections.abc import Mapping

from duodec.core.draft import ROOT, Draft

NUM_CANDIDATES = 8

Adjacency = dict[int, tuple[int, ...]]
"""A token's likeliest successors, best first."""

# The tree of 2408.08696 (release 2.2.2): how many children each node has, breadth first, its
# root included. A node's i-th child is its token's i-th candidate. 80 nodes, 6 deep.
_TEMPLATE = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    (2, 0, 0, 1, 0, 0, 0, 0),
)


def recycled(adjacency: Mapping[int, tuple[int, ...]], last: int) -> Draft:
    """The tree under ``last``, the text's last token; what is not known yet is left out."""
    tokens: list[int] = []
    parents: list[int] = []
    # of a level: each node that the template has, its token, or None where it is not known
    level: list[tuple[int, int] | None] = [(ROOT, last)]
    for counts in _TEMPLATE:
        below: list[tuple[int, int] | None] = []
        for node, count in zip(level, counts, strict=True):
            successors = () if node is None else adjacency.get(node[1], ())[:count]
            for token in successors:
                below.append((len(tokens), token))
                tokens.append(token)
                parents.append(node[0] if node else ROOT)
            below += [None] * (count - len(successors))
        level = below
    return Draft(tuple(tokens), tuple(parents))
