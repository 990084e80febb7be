"""A memo equals a fresh model: whatever was asked before, each row is computed from its own path.

`FakeCells` keeps llama.cpp's rules and, in place of numbers, the path of tokens that every cell
was computed from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from fakes import FakeCells, proven
from hypothesis import given, settings
from hypothesis import strategies as st

from duodec.backends.tree_cache import Missing, OutOfSequences, SlotCache
from duodec.core.draft import ROOT, Draft


@dataclass
class Cache:
    """A cache of some slots, evaluated as `LlamaContext` does it."""

    num_ids: int = 6
    num_slots: int = 2
    cells: FakeCells = field(default_factory=FakeCells)

    def __post_init__(self) -> None:
        self.free_ids = list(range(self.num_ids))
        self.slots = [SlotCache(self.cells, self.free_ids) for _ in range(self.num_slots)]

    def fit(self, slot: int, text: list[int], draft: Draft, rows: set[int]) -> Missing:
        """Fit, with the other slots dropped when there are too few ids."""
        wanted = np.array(text, dtype=np.int32)
        try:
            return self.slots[slot].fit(wanted, draft, rows)
        except OutOfSequences:
            for other in self.slots:
                if other is not self.slots[slot]:
                    other.drop()
            self.check()
        return self.slots[slot].fit(wanted, draft, rows)

    def evaluate(
        self,
        slot: int,
        text: list[int],
        draft: Draft,
        rows: set[int],
        chunk: int = 1000,
        num_chunks: int = 1000,
    ) -> int:
        """Compute what is missing, the text in chunks; abandoned after ``num_chunks`` of them.
        Returns how many tokens were computed."""
        missing = self.fit(slot, text, draft, rows)
        num_computed = 0
        while len(missing.text) > chunk:
            if not num_chunks:
                return num_computed
            part = missing.text[:chunk]
            assert self.cells.decode(part) == {}
            self.slots[slot].add_text(part)
            del missing.text[:chunk]
            num_computed += chunk
            num_chunks -= 1
        found = self.cells.decode([*missing.text, *missing.nodes])
        num_computed += len(missing.text) + len(missing.nodes)
        self.slots[slot].add_text(missing.text)
        self.slots[slot].add_nodes(missing)
        assert found == {row: (*text, *draft.path_tokens(row - 1)) for row in rows}
        return num_computed

    def check(self) -> None:
        """No id leaks, and no cell without a slot that knows it."""
        held = sum(slot.num_ids for slot in self.slots)
        assert len(set(self.free_ids)) == len(self.free_ids)
        assert len(self.free_ids) + held == self.num_ids
        in_use = {seq for cell in self.cells.cells for seq in cell.seqs}
        assert not in_use & set(self.free_ids)
        for seq in range(self.num_ids):
            self.cells.end(seq)  # checks that its positions have no gaps


def num_leaves(draft: Draft) -> int:
    return max(1, len(set(range(len(draft))) - set(draft.parents)))


@st.composite
def small_trees(draw) -> Draft:
    lists = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=5)
    return Draft.sequences(draw(lists))


@dataclass(frozen=True)
class Ask:
    """One query. Its text comes from the slot's last one, changed as ``kind`` says."""

    slot: int
    kind: str
    tokens: tuple[int, ...]
    cut: int
    draft: Draft
    mask: int  # bit i: row i is wanted
    chunk: int
    num_chunks: int

    def text(self, last: list[int], last_draft: Draft) -> list[int]:
        cut = self.cut % (len(last) + 1)
        texts = {
            "again": last,
            "extend": [*last, *self.tokens],
            "along the tree": [*last, *path_to(last_draft, self.cut), *self.tokens[:1]],
            "truncate": last[:cut],
            "diverge": [*last[:cut], *self.tokens],
            "new": list(self.tokens),
        }
        return texts[self.kind] or [1]

    def rows(self) -> set[int]:
        return {row for row in range(len(self.draft) + 1) if self.mask >> row & 1}


def path_to(draft: Draft, number: int) -> list[int]:
    return draft.path_tokens(number % len(draft)) if len(draft) else []


KINDS = ["again", "extend", "along the tree", "along the tree", "truncate", "diverge", "new"]


@st.composite
def asks(draw) -> Ask:
    return Ask(
        slot=draw(st.integers(0, 1)),
        kind=draw(st.sampled_from(KINDS)),
        tokens=tuple(draw(st.lists(st.integers(0, 2), max_size=6))),
        cut=draw(st.integers(0, 30)),
        draft=draw(small_trees()),
        mask=draw(st.one_of(st.just(-1), st.just(0), st.integers(0, 2**16))),
        chunk=draw(st.sampled_from([1000, 1000, 1, 2, 3])),
        num_chunks=draw(st.sampled_from([1000, 1000, 0, 1])),
    )


@settings(proven, max_examples=600)
@given(st.lists(asks(), min_size=1, max_size=12), st.integers(1, 8))
def test_a_memo_equals_a_fresh_model(sequence: list[Ask], num_ids: int) -> None:
    cache = Cache(num_ids=num_ids)
    last: dict[int, tuple[list[int], Draft]] = {0: ([1], Draft()), 1: ([1], Draft())}
    for ask in sequence:
        text = ask.text(*last[ask.slot])
        last[ask.slot] = (text, ask.draft)
        if num_leaves(ask.draft) > num_ids:
            continue
        cache.evaluate(ask.slot, text, ask.draft, ask.rows(), ask.chunk, ask.num_chunks)
        cache.check()
    for slot in cache.slots:
        slot.drop()
    assert sorted(cache.free_ids) == list(range(num_ids))
    assert not cache.cells.cells


@settings(proven, max_examples=300)
@given(st.lists(asks(), min_size=1, max_size=12))
def test_a_refusal_for_want_of_ids_harms_nothing(sequence: list[Ask]) -> None:
    """Trees with more leaves than ids come in between."""
    cache = Cache(num_ids=3, num_slots=2)
    last: dict[int, tuple[list[int], Draft]] = {0: ([1], Draft()), 1: ([1], Draft())}
    for ask in sequence:
        text = ask.text(*last[ask.slot])
        last[ask.slot] = (text, ask.draft)
        try:
            cache.evaluate(ask.slot, text, ask.draft, ask.rows())
        except OutOfSequences:
            assert num_leaves(ask.draft) > 3
        cache.check()


@settings(proven, max_examples=100)
@given(small_trees(), small_trees(), st.lists(st.integers(0, 2), min_size=1, max_size=9))
def test_nothing_is_computed_twice(first: Draft, second: Draft, text: list[int]) -> None:
    """Without rows that are wanted, only what was never computed is."""
    cache = Cache(num_ids=32, num_slots=1)
    assert cache.evaluate(0, text, first, set()) == len(text) + len(first)
    assert cache.evaluate(0, text, first, set()) == 0
    new = {tuple(second.path_tokens(n)) for n in range(len(second))}
    new -= {tuple(first.path_tokens(n)) for n in range(len(first))}
    assert cache.evaluate(0, text, second, set()) == len(new)


def test_an_accepted_path_becomes_text_and_what_is_under_it_is_kept() -> None:
    cache = Cache(num_slots=1)
    tree = Draft.sequences([[5, 6, 7], [5, 8], [9]])
    cache.evaluate(0, [1, 2, 3], tree, set(range(6)))
    # 5 was accepted and 6 recovered: only its row and the new leaf are computed
    below = tree.subtree(0)
    assert cache.evaluate(0, [1, 2, 3, 5], below, set()) == 0
    below = below.subtree(0).graft(ROOT, Draft.chain([4]))
    assert cache.evaluate(0, [1, 2, 3, 5, 6], below, {0}) == 3


def test_rows_of_what_is_known_are_computed_again() -> None:
    cache = Cache(num_slots=1)
    assert cache.evaluate(0, [1, 2, 3], Draft(), {0}) == 3
    assert cache.evaluate(0, [1, 2, 3], Draft(), {0}) == 1
    assert cache.evaluate(0, [1, 2, 3], Draft(), set()) == 0


def test_a_dropped_slot_has_nothing_left() -> None:
    cache = Cache()
    cache.evaluate(0, [1, 2], Draft.sequences([[1], [2]]), {0})
    cache.evaluate(1, [1, 2], Draft.chain([1]), {0})
    cache.slots[0].drop()
    cache.check()
    assert cache.slots[0].num_ids == 0
    assert len(cache.slots[0].trunk) == 0
    assert len(cache.cells.cells) == 3
    cache.slots[1].drop()
    assert not cache.cells.cells
    assert cache.evaluate(0, [1, 2], Draft(), {0}) == 2


def test_more_leaves_than_ids_are_refused() -> None:
    cache = Cache(num_ids=2)
    with pytest.raises(OutOfSequences):
        cache.evaluate(0, [1], Draft.sequences([[1], [2], [3]]), {0})
    cache.evaluate(0, [1], Draft.sequences([[1], [2]]), {0, 1, 2})
    cache.check()


def test_ids_that_ended_at_one_node_serve_leaves_elsewhere() -> None:
    cache = Cache(num_ids=3)
    cache.evaluate(0, [1, 2], Draft.sequences([[0, 0], [0, 1], [0, 2]]), set())
    cache.evaluate(0, [1, 2], Draft.sequences([[0], [1], [2]]), {2, 3})
    cache.check()
    cache.evaluate(0, [1, 2], Draft.sequences([[0, 1], [0, 2], [2, 1]]), {2, 3, 5})
    cache.check()
