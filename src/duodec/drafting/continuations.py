"""Build a draft from continuations seen before: the tree of the most frequent ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from duodec.core.draft import ROOT, Draft
from duodec.drafting import constants

END = -1  # stands for a token: the continuation has ended


@dataclass(frozen=True)
class Frequent:
    """Hold a tree, and how many of the continuations pass through each node."""

    draft: Draft
    counts: tuple[int, ...]


def most_frequent(windows: NDArray[np.int32], num_tokens: int, min_count: int = 1) -> Frequent:
    """Return the ``num_tokens`` nodes that the most continuations pass through, ``min_count`` at
    least.

    ``windows`` has shape (continuations, length), in lexicographic order, padded with `END`. No
    node is more frequent than its parent, so the nodes are one tree. Of two equally frequent nodes
    the one nearer the root comes first.
    """
    if len(windows) <= constants.FEW_WINDOWS:
        return most_frequent_of_few(windows.tolist(), num_tokens, min_count)
    rows, parents = windows, np.full(len(windows), ROOT)  # each row's node at the depth above
    found: list[tuple[int, int, int]] = []  # (count, token, parent in this list)
    for depth in range(windows.shape[1]):
        column = rows[:, depth]
        is_first = np.ones(len(column), dtype=bool)  # first of the rows that pass through a node
        is_first[1:] = (column[1:] != column[:-1]) | (parents[1:] != parents[:-1])
        firsts = np.flatnonzero(is_first)
        counts = np.diff(firsts, append=len(column))
        is_kept = (counts >= min_count) & (column[firsts] != END)
        kept, own = firsts[is_kept], counts[is_kept]
        if not len(kept):
            break
        nodes = np.arange(len(found), len(found) + len(kept))
        found += zip(own.tolist(), column[kept].tolist(), parents[kept].tolist(), strict=True)
        if len(found) >= num_tokens:  # a deeper node must be more frequent than the last of these
            min_count = 1 + sorted(count for count, _, _ in found)[-num_tokens]
        if len(kept) < len(firsts):
            rows = rows[np.repeat(is_kept, counts)]
        parents = np.repeat(nodes, own)
    return _ranked(found, num_tokens)


def most_frequent_of_few(windows: list[list[int]], num_tokens: int, min_count: int = 1) -> Frequent:
    """Do the same for lists."""
    if len(windows) == min_count == 1:  # a long match usually has one window
        tokens = windows[0][:num_tokens]
        length = tokens.index(END) if END in tokens else len(tokens)
        return Frequent(Draft.chain(tokens[:length]), (1,) * length)
    return _ranked(_counted(windows, min_count), num_tokens)


def _counted(windows: list[list[int]], min_count: int) -> list[tuple[int, int, int]]:
    """Return (count, token, parent in this list) of every node; those nearer the root come
    first."""
    level: list[tuple[int, list[list[int]]]] = [(ROOT, windows)]
    found: list[tuple[int, int, int]] = []
    for depth in range(len(windows[0]) if windows else 0):
        below: list[tuple[int, list[list[int]]]] = []
        for parent, through in level:
            by_token: dict[int, list[list[int]]] = {}
            for window in through:
                by_token.setdefault(window[depth], []).append(window)
            for token, on in by_token.items():
                if token != END and len(on) >= min_count:
                    below.append((len(found), on))
                    found.append((len(on), token, parent))
        level = below
    return found


def _ranked(found: list[tuple[int, int, int]], num_tokens: int) -> Frequent:
    """Return the most frequent nodes; of equally frequent ones, those found first."""
    best = sorted(range(len(found)), key=lambda i: -found[i][0])[:num_tokens]  # the sort is stable
    place = {ROOT: ROOT, **{i: node for node, i in enumerate(best)}}
    draft = Draft(tuple(found[i][1] for i in best), tuple(place[found[i][2]] for i in best))
    return Frequent(draft, tuple(found[i][0] for i in best))
