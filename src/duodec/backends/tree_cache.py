"""Track which cells of a unified KV cache hold which tree, independent of any library.

A slot's cells cache the *trunk* (a text) and the *nodes* of a tree under it. `fit` receives the
text and the tree that are needed, keeps what matches, frees the rest and returns what must be
computed. A sequence id is the path from the first token of the text down to one leaf, and a token
belongs to the ids of all leaves below it, as llama.cpp requires. Ids lag behind the trunk until
they are needed; then only the positions they lack are copied.

Attention sums in the order of cells. If sums must not depend on the drafts, an *ordered* slot keeps
a text's tokens in consecutive cells: of an accepted branch it keeps the cells right after the
trunk, and recomputes the rest with the next forward pass.

Of a long text a slot may hold only the text's first tokens and its last part. The first tokens are
placed right before that part, at the positions of omitted tokens. Positions are absolute. Older
text is added as a *block*, computed under its own id after its own first tokens. Once it is
complete, it joins all of the slot's ids and replaces the first tokens that were there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from duodec.core.draft import ROOT, Draft
from duodec.core.prefix import common_prefix
from duodec.core.sampling.sampler import Tokens


class Cells(Protocol):
    """Operate on the cache; positions are absolute."""

    def remove(self, seq: int, begin: int, end: int = -1) -> None:
        """Remove positions begin .. end - 1 from a sequence; -1: all from ``begin`` on."""

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        """Add what ``source`` has of positions begin .. end - 1 to ``target`` too."""


class OutOfSequences(Exception):
    """Raised for a tree with more leaves than there are free sequence ids."""


@dataclass(frozen=True)
class Entry:
    """Describe a token to compute: its position, the leaves it leads to, the row it gives."""

    token: int
    position: int
    seqs: tuple[int, ...]
    row: int | None = None


@dataclass(eq=False)
class _Node:
    """Hold a token in the cache, under the trunk; the root stands for the trunk's end."""

    token: int = -1
    parent: _Node | None = None
    position: int = -1  # position in the text; unused for the root
    children: dict[int, _Node] = field(default_factory=dict)
    place: int = -1  # place of its cell, if the slot's cells are consecutive

    def chain(self) -> list[_Node]:
        """Return the nodes from this one up to the root, the root included."""
        nodes = [self]
        while nodes[-1].parent is not None:
            nodes.append(nodes[-1].parent)
        return nodes


@dataclass(frozen=True)
class Missing:
    """Hold what a slot must compute: the rest of the text, then nodes of the tree."""

    text: list[Entry]
    nodes: list[Entry]
    computed: dict[int, _Node]  # draft node -> node, as soon as `nodes` are computed
    tips: dict[int, int]  # sequence id -> the draft node (or ROOT) where it will end


@dataclass
class _Block:
    """Hold older text being computed: first tokens of the text, then the text from ``begin`` on."""

    seq: int
    begin: int
    place: int  # place of the first token
    tokens: list[int]
    num_read: int = 0


class SlotCache:
    """Track the cells of one slot. ``free_ids`` is shared by the slots of one cache; ``num_first``
    tokens of a text come before a part of it."""

    def __init__(
        self,
        cells: Cells,
        free_ids: list[int],
        *,
        is_ordered: bool = False,
        num_first: int = 0,
    ) -> None:
        self._cells = cells
        self._free_ids = free_ids
        self._is_ordered = is_ordered
        self._num_first = num_first
        self._block: _Block | None = None
        self.begin = 0  # where the cached part of the text begins
        self.trunk: Tokens = np.empty(0, dtype=np.int32)  # a prefix of the last text
        self._text = self.trunk  # the text being fitted
        self._root = _Node()
        self._tip: dict[int, _Node] = {}  # id -> where it ends
        self._shared: dict[int, int] = {}  # id -> number of the trunk's positions that it has

    @property
    def num_ids(self) -> int:
        return len(self._tip)

    @property
    def place(self) -> int:
        """Return the first position that has a cell."""
        return self._place_of(self.begin)

    def num_known(self, text: Tokens) -> int:
        """Return how many of the text's first tokens need not be computed."""
        common = common_prefix(self.trunk, text)
        return common if common > self.begin or not self.begin else 0

    @property
    def holder(self) -> int | None:
        """Return a sequence that has all of the trunk; None if nothing is cached."""
        whole = len(self.trunk)
        return next((seq for seq, num in self._shared.items() if num == whole), None)

    def make_room(self, text: Tokens) -> int:
        """Forget everything. Return the sequence to which the caller copies ``text``."""
        self.drop()
        seq = self._free_ids.pop()
        self.trunk, self._tip[seq], self._shared[seq] = text, self._root, len(text)
        return seq

    def start_at(self, text: Tokens, begin: int) -> None:
        """Forget everything, and cache ``text`` from ``begin`` on."""
        self.drop()
        self.begin = begin if begin > self._num_first else 0
        self.trunk = text[: self.place].copy()

    def fit(self, text: Tokens, draft: Draft, rows: Iterable[int]) -> Missing:
        """Keep what matches ``text`` and ``draft``, free the rest, return what is missing.

        A row is obtained by computing its token, so tokens whose rows are needed are not kept. No
        two children of a node in ``draft`` have one token. Raises OutOfSequences.
        """
        wanted = set(rows)
        self._text = text
        if self.begin and not self._leads_to(text):
            self.drop()
        self._follow(text, len(text) - (0 in wanted))
        can_keep = len(self.trunk) == len(text) and not self._is_ordered
        known = self._match(draft, wanted) if can_keep else {}
        self._keep(set(known.values()))
        return self._lay_out(text, draft, wanted, known)

    def add_text(self, entries: Sequence[Entry]) -> None:
        """Mark the next entries of the missing text as computed."""
        if entries:
            self.trunk = self._text[: len(self.trunk) + len(entries)]
            for seq in entries[0].seqs:
                self._shared[seq] = len(self.trunk)

    def add_nodes(self, missing: Missing) -> None:
        """Mark the missing nodes as computed."""
        for node in missing.computed.values():
            assert node.parent is not None
            node.parent.children[node.token] = node
        for seq, tip in missing.tips.items():
            self._tip[seq] = self._root if tip == ROOT else missing.computed[tip]

    def drop(self) -> None:
        """Free everything."""
        self.close_block()
        for seq in self._tip:
            self._cells.remove(seq, 0)
            self._free_ids.append(seq)
        self.begin, self.trunk = 0, self.trunk[:0]
        self._root, self._tip, self._shared = _Node(), {}, {}

    # --- the front

    @property
    def num_to_come(self) -> int:
        """Return how many tokens of the current block are still to be computed; 0 if there is
        none."""
        return len(self._block.tokens) - self._block.num_read if self._block else 0

    def open_block(self, begin: int) -> None:
        """Let the text's part begin at ``begin``, once the entries of the block are computed. These
        are older text and first tokens before it, or only first tokens if text is removed. Raises
        OutOfSequences."""
        self.close_block()
        if not self._free_ids:
            self._free_idle()
        if not self._free_ids:
            raise OutOfSequences
        begin = begin if begin > self._num_first else 0
        place = self._place_of(begin)
        first = self.trunk[: begin - place].tolist()
        older = self.trunk[begin : self.begin].tolist()
        self._block = _Block(self._free_ids.pop(), begin, place, first + older)

    def block_entries(self, num_tokens: int) -> list[Entry]:
        """Return the next tokens of the block."""
        block = self._block
        assert block is not None
        begin = block.num_read
        return [
            Entry(token, block.place + i, (block.seq,))
            for i, token in enumerate(block.tokens[begin : begin + num_tokens], begin)
        ]

    def add_block(self, num_tokens: int) -> None:
        """Mark the block's next tokens as computed; a complete block joins the slot's ids."""
        block = self._block
        assert block is not None
        block.num_read += num_tokens
        if self.num_to_come:
            return
        self._free_idle()
        end = max(self.begin, block.begin)
        for seq in self._tip:
            self._cells.remove(seq, 0, end)
            self._cells.copy(block.seq, seq, block.place, end)
        self.begin = block.begin
        self.close_block()

    def close_block(self) -> None:
        """Abandon the current block, if there is one."""
        if self._block is not None:
            self._cells.remove(self._block.seq, 0)
            self._free_ids.append(self._block.seq)
            self._block = None

    def _leads_to(self, text: Tokens) -> bool:
        """Return whether the text begins with the tokens that are omitted here."""
        common = common_prefix(self.trunk, text)
        return len(text) > self.begin and common >= min(len(self.trunk), self.begin + 1)

    def _place_of(self, begin: int) -> int:
        return max(0, begin - self._num_first)

    def _free_idle(self) -> None:
        """Free all ids that end at the root except one that has all of the trunk."""
        idle = [seq for seq, tip in self._tip.items() if tip is self._root]
        if len(idle) == len(self._tip):
            idle.sort(key=lambda seq: self._shared[seq])
            idle = idle[:-1]
        for seq in idle:
            self._cells.remove(seq, 0)
            self._free_ids.append(seq)
            del self._tip[seq], self._shared[seq]

    # --- keeping

    def _follow(self, text: Tokens, limit: int) -> None:
        """Move the trunk to the longest known prefix of text[:limit], also along nodes."""
        common = common_prefix(self.trunk, text[:limit])
        if common < len(self.trunk):
            self._keep(set())
            self.trunk = self.trunk[:common]
            for seq, shared in self._shared.items():
                if shared > common:
                    self._cells.remove(seq, common)
                    self._shared[seq] = common
            return
        end = self._root
        path: list[_Node] = []
        for token in text[common:limit].tolist():
            if token not in end.children:
                break
            end = end.children[token]
            if self._is_ordered and end.place != len(self.trunk) + len(path):
                break
            path.append(end)
        if path:
            self._promote(path)

    def _promote(self, path: list[_Node]) -> None:
        """Make the nodes of ``path`` trunk; free what is not under its end."""
        for seq, tip in self._tip.items():
            if tip is self._root:
                continue
            chain = tip.chain()
            num_on_path = sum(node in chain for node in path)
            self._shared[seq] = len(self.trunk) + num_on_path
            if num_on_path < len(path):
                self._cells.remove(seq, self._shared[seq])
                self._tip[seq] = path[-1]
        for seq, tip in self._tip.items():
            if tip is self._root:
                self._tip[seq] = path[-1]
        self.trunk = self._text[: len(self.trunk) + len(path)]
        self._root = path[-1]
        self._root.parent = None

    def _match(self, draft: Draft, wanted: set[int]) -> dict[int, _Node]:
        """Return the draft nodes that are cached and need not be computed again."""
        known: dict[int, _Node] = {}
        for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            above = self._root if parent == ROOT else known.get(parent)
            if above is not None and token in above.children and i + 1 not in wanted:
                known[i] = above.children[token]
        return known

    def _keep(self, kept: set[_Node]) -> None:
        """Free all nodes except ``kept``, whose ancestors are kept too."""
        if len(self._root.children) + sum(len(node.children) for node in kept) == len(kept):
            return  # there are no others
        for seq, tip in self._tip.items():
            end = next(node for node in tip.chain() if node in kept or node is self._root)
            if end is not tip:
                self._cells.remove(seq, len(self.trunk) + len(end.chain()) - 1)
                self._tip[seq] = end
        for node in (self._root, *kept):
            node.children = {t: child for t, child in node.children.items() if child in kept}

    # --- laying out what is new

    def _lay_out(
        self, text: Tokens, draft: Draft, wanted: set[int], known: dict[int, _Node]
    ) -> Missing:
        """Give every new leaf a sequence id, and every new token the ids of its leaves."""
        parents = draft.parents
        new = [i for i in range(len(draft)) if i not in known]
        inner = {parents[i] for i in new}
        leaves = [i for i in new if i not in inner]
        if not leaves and len(self.trunk) < len(text):
            leaves = [ROOT]
        seqs: dict[int, list[int]] = {i: [] for i in (ROOT, *new)}
        tips: dict[int, int] = {}
        ends: dict[_Node, list[int]] = {}
        for seq, tip in self._tip.items():
            ends.setdefault(tip, []).append(seq)
        idle = ends.setdefault(self._root, [])
        idle.sort(key=self._shared.__getitem__, reverse=True)
        for leaf in leaves:
            path = []
            start = leaf
            while start != ROOT and start not in known:
                path.append(start)
                start = parents[start]
            seq = self._claim(self._root if start == ROOT else known[start], tips, ends)
            tips[seq] = leaf
            for i in (ROOT, *path):
                seqs[i].append(seq)

        end, num_trunk = len(text), len(self.trunk)
        ids = tuple(seqs[ROOT])
        before = max(0, self.begin - num_trunk)  # places of first tokens
        first = text[num_trunk - self.place :][:before]
        tokens = [*first.tolist(), *text[num_trunk + before :].tolist()]
        text_entries = [
            Entry(token, position, ids, 0 if 0 in wanted and position == end - 1 else None)
            for position, token in enumerate(tokens, num_trunk)
        ]
        computed: dict[int, _Node] = {}
        node_entries: list[Entry] = []
        # An ordered slot knows none: there a first child's cell must be next to its parent's.
        for i in new if known else draft.preorder():
            token, parent = draft.tokens[i], parents[i]
            above = self._root if parent == ROOT else computed.get(parent) or known[parent]
            position = end if parent == ROOT else above.position + 1
            computed[i] = _Node(token, above, position, place=end + len(node_entries))
            row = i + 1 if i + 1 in wanted else None
            node_entries.append(Entry(token, position, tuple(seqs[i]), row))
        return Missing(text_entries, node_entries, computed, tips)

    def _claim(self, node: _Node, taken: dict[int, int], ends: dict[_Node, list[int]]) -> int:
        """Return a sequence id that ends at ``node`` and is not taken: an existing one, or a copy.
        ``ends`` holds the ids by the nodes at which they ended before any was claimed. At the root,
        those that lag behind the trunk least come first."""
        num_trunk = len(self.trunk)
        seq = next((seq for seq in ends.get(node, ()) if seq not in taken), None)
        if seq is not None and (node is not self._root or self._shared[seq] == num_trunk):
            return seq
        seq = next((seq for seq in ends[self._root] if seq not in taken), None)
        if seq is None and self._free_ids:
            seq = self._free_ids.pop()
            self._shared[seq] = self.place
        elif seq is None:
            seq = self._spare(taken)
            ends[self._tip[seq]].remove(seq)
        self._tip[seq] = node
        length = num_trunk if node is self._root else node.position + 1
        if (begin := self._shared[seq]) < length:
            self._cells.copy(self._source(node, seq, ends), seq, begin, length)
        self._shared[seq] = num_trunk
        return seq

    def _spare(self, taken: dict[int, int]) -> int:
        """Return an id whose tokens another id also has, without what it had beyond the trunk."""
        for seq, tip in self._tip.items():
            others = (end for other, end in self._tip.items() if other != seq)
            if seq not in taken and any(tip in end.chain() for end in others):
                self._cells.remove(seq, len(self.trunk))
                return seq
        raise OutOfSequences

    def _source(self, node: _Node, target: int, ends: dict[_Node, list[int]]) -> int:
        """Return an id that has all of the path down to ``node``: it ends there or at a leaf
        below."""
        while node.children:
            node = next(iter(node.children.values()))
        return next(
            seq for seq in ends[node] if seq != target and self._shared[seq] == len(self.trunk)
        )
