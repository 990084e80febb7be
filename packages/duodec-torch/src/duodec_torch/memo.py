"""Track what a slot's cells hold: a text (the trunk) and a tree under it. Independent of torch.

A slot owns a region of the cache's cells. Position i of the trunk is cell ``base + i``; node i of
a tree scored after n tokens is cell ``base + n + i`` until the text shows that it was accepted:
then it is moved to the cell of its position, and refused nodes are overwritten.

A token's keys and values have other last bits when it was *read* (as part of a prompt, in a wide
forward pass) than when it *continued* the text, and others in a pass of 64 rows than in one of 512.
Where bits count, a token is reused only in the way in which it was computed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from duodec.core.draft import ROOT, Draft
from duodec.core.sampling.sampler import Tokens

Moves = list[tuple[int, int]]  # (from, to), cells


@dataclass
class SlotMemo:
    """The cells from ``base`` on."""

    base: int
    trunk: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    ways: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    """Rows of the pass that read each token; 0: it continued the text."""
    tree: Draft = field(default_factory=Draft)

    def follow(self, text: Tokens, ways: NDArray[np.int32] | None = None) -> Moves:
        """Make the trunk the longest known prefix of ``text`` without its last token, whose row is
        always needed, and forget the rest. The moves must be made before the next forward pass.

        With ``ways``, of each token of the text, one counts as known only if it was computed in
        its way.
        """
        limit = len(text) - 1
        length = min(len(self.trunk), limit)
        differs = self.trunk[:length] != text[:length]
        if ways is not None:
            differs |= self.ways[:length] != ways[:length]
        common = int(differs.argmax()) if differs.any() else length
        tree, self.tree = self.tree, Draft()
        if common < len(self.trunk):
            self.cut(common)
            return []
        path = _path(tree, text[common : max(common, limit)].tolist())
        if ways is not None and ways[common]:
            path = []  # drafted tokens must be computed as read
        self.extend(text[common : common + len(path)])
        cells = ((common + node, common + i) for i, node in enumerate(path))
        return [(self.base + source, self.base + to) for source, to in cells if source != to]

    def cut(self, length: int) -> None:
        """Forget all but the trunk's first tokens."""
        self.trunk, self.ways = self.trunk[:length], self.ways[:length]
        self.tree = Draft()

    def extend(self, tokens: Tokens, way: int = 0) -> None:
        """Add tokens that were computed in the cells after the trunk."""
        self.trunk = np.concatenate([self.trunk, tokens])
        self.ways = np.concatenate([self.ways, np.full(len(tokens), way, dtype=np.int32)])


class Slots:
    """The memos of as many slots as the cache has regions for."""

    def __init__(self, num_slots: int, num_cells: int) -> None:
        self._free = [slot * num_cells for slot in range(num_slots)][::-1]
        self._memos: OrderedDict[int, SlotMemo] = OrderedDict()  # least recently used first

    def of(self, slots: Sequence[int]) -> list[SlotMemo]:
        """The memos of ``slots``; the least recently used slots are replaced by new ones."""
        for slot in slots:
            if slot in self._memos:
                self._memos.move_to_end(slot)
        for slot in slots:
            if slot not in self._memos:
                base = self._free.pop() if self._free else self._memos.popitem(last=False)[1].base
                self._memos[slot] = SlotMemo(base)
        return [self._memos[slot] for slot in slots]


def _path(tree: Draft, tokens: list[int]) -> list[int]:
    """The nodes that carry ``tokens``, from the root on, as far as they exist."""
    path: list[int] = []
    for token in tokens:
        node = tree.child(path[-1] if path else ROOT, token)
        if node is None:
            break
        path.append(node)
    return path
