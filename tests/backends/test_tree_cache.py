"""A memo equals a fresh model: whatever was asked before, each row is computed from its own path.

`FakeCells` keeps llama.cpp's rules and, in place of numbers, the path of tokens that every cell
was computed from.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
from fakes.decoding import FakeCells, proven
from hypothesis import given, settings
from hypothesis import strategies as st

from duodec.backends.tree_cache import Missing, OutOfSequences, SlotCache
from duodec.core.draft import ROOT, Draft


@dataclass
class Cache:
    """A cache of some slots, evaluated as `LlamaContext` does it."""

    num_ids: int = 6
    num_slots: int = 2
    first: tuple[int, ...] = ()  # tokens that come before a part of a text

    def __post_init__(self) -> None:
        self.cells = FakeCells(self.first)
        self.free_ids = list(range(self.num_ids))
        self.slots = [
            SlotCache(self.cells, self.free_ids, num_first=len(self.first))
            for _ in range(self.num_slots)
        ]

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
        seen = self.seen(slot, text)
        assert found == {row: (*seen, *draft.path_tokens(row - 1)) for row in rows}
        return num_computed

    def seen(self, slot: int, text: list[int]) -> list[int]:
        """What the slot holds of a text: its first tokens, if it holds a part, and that part."""
        begin = self.slots[slot].begin
        return [*self.first, *text[begin:]] if begin else text

    def read_block(self, slot: int, num_tokens: int) -> int:
        """Compute the next tokens of a block; returns how many."""
        entries = self.slots[slot].block_entries(num_tokens)
        assert self.cells.decode(entries) == {}
        self.slots[slot].add_block(len(entries))
        return len(entries)

    def move_front(self, slot: int, begin: int) -> int:
        """Let the slot's part of its text begin there; returns how many tokens were computed."""
        self.slots[slot].open_block(begin)
        return self.read_block(slot, 1000)

    def check(self) -> None:
        """No id leaks, and no cell without a slot that knows it."""
        held = sum(slot.num_ids + (slot.num_to_come > 0) for slot in self.slots)
        assert len(set(self.free_ids)) == len(self.free_ids)
        assert len(self.free_ids) + held == self.num_ids
        in_use = {seq for cell in self.cells.cells for seq in cell.seqs}
        assert not in_use & set(self.free_ids)
        for seq in range(self.num_ids):
            self.cells.span(seq)  # checks that its positions have no gaps
        for slot in self.slots:
            for seq in slot._tip:
                assert not self.cells.span(seq) or self.cells.span(seq).start == slot.place


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


@pytest.mark.slow
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


# --- parts of texts

FIRST = (1, 2)
LONG = [*FIRST, *range(3, 40)]


def test_an_id_that_left_a_node_is_no_source_for_others_there() -> None:
    cache = Cache(num_ids=5, num_slots=1)
    text, slot = [1, 2], 0
    # five ids: two end under each of 7 and 8, one at 9
    cache.evaluate(slot, text, Draft((7, 8, 9, 3, 4, 5, 6), (ROOT, ROOT, ROOT, 0, 0, 1, 1)), {0})
    cache.evaluate(slot, text, Draft((7, 8, 9), (ROOT, ROOT, ROOT)), set())  # now they end at these
    # a leaf elsewhere takes one of 7's, then two new leaves there need another's
    wider = Draft((7, 8, 9, 1, 1, 2), (ROOT, ROOT, ROOT, ROOT, 0, 0))
    cache.evaluate(slot, text, wider, {4, 5, 6})
    cache.check()


def test_cells_of_an_ordered_slot_go_down_before_they_go_aside() -> None:
    """A text's next tokens then lie right after it, whichever first children are accepted."""
    slot = SlotCache(FakeCells(()), list(range(4)), is_ordered=True)
    draft = Draft((5, 6, 7, 8), (ROOT, ROOT, 0, 1))
    missing = slot.fit(np.array([1, 2], np.int32), draft, range(5))
    assert [entry.token for entry in missing.nodes] == [5, 7, 6, 8]
    assert [entry.position for entry in missing.nodes] == [2, 3, 2, 3]


def test_a_part_of_a_text_stands_after_the_texts_first_tokens() -> None:
    cache = Cache(first=FIRST)
    cache.slots[0].start_at(np.array(LONG, dtype=np.int32), 30)
    tree = Draft.sequences([[50, 51], [60]])
    assert cache.evaluate(0, LONG, tree, {0, 1, 2, 3}) == 2 + len(LONG) - 30 + 3
    cache.check()
    assert cache.evaluate(0, [*LONG, 50, 51, 70], Draft(), set()) == 1
    assert cache.slots[0].begin == 30


def test_older_text_joins_all_branches_and_nothing_is_computed_again() -> None:
    cache = Cache(first=FIRST)
    cache.slots[0].start_at(np.array(LONG, dtype=np.int32), 30)
    tree = Draft.sequences([[50, 51], [60], [70]])
    cache.evaluate(0, LONG, tree, set())
    assert cache.move_front(0, 20) == 2 + 10
    cache.check()
    assert cache.evaluate(0, LONG, tree, set()) == 0
    cache.evaluate(0, LONG, tree, {2, 3, 4})  # checks what they see
    assert cache.move_front(0, 1) == 20  # no room for first tokens: it is the whole text
    assert cache.slots[0].begin == 0
    assert cache.seen(0, LONG) == LONG
    cache.evaluate(0, LONG, tree, {0, 1, 2, 3, 4})
    cache.check()


def test_the_oldest_part_goes_for_the_price_of_the_first_tokens() -> None:
    cache = Cache(first=FIRST)
    tree = Draft.sequences([[50, 51], [60]])
    cache.evaluate(0, LONG, tree, set())
    num_cells = len(cache.cells.cells)
    assert cache.move_front(0, 25) == 2
    assert len(cache.cells.cells) == num_cells - 25 + 2
    assert cache.evaluate(0, LONG, tree, set()) == 0
    cache.evaluate(0, LONG, tree, {0, 1, 2, 3})
    cache.check()


@pytest.mark.parametrize(
    ("cut", "num_computed"),
    [(35, 1), (32, 1), (31, 1), (30, 30), (29, 29), (1, 1)],
)
def test_a_text_that_ends_before_the_part_is_read_from_its_beginning(
    cut: int, num_computed: int
) -> None:
    """Within the part it is known, but for the token whose row is wanted."""
    cache = Cache(first=FIRST)
    cache.slots[0].start_at(np.array(LONG, dtype=np.int32), 30)
    cache.evaluate(0, LONG, Draft.chain([50, 51]), {0})
    assert cache.evaluate(0, LONG[:cut], Draft(), {0}) == num_computed
    cache.check()


def test_a_part_that_was_never_read_is_no_part_of_a_shorter_text() -> None:
    cache = Cache(first=FIRST)
    cache.slots[0].start_at(np.array(LONG, dtype=np.int32), 30)
    assert cache.evaluate(0, LONG[:29], Draft(), {0}) == 29
    cache.check()


def test_another_text_is_not_taken_for_the_one_whose_part_is_known() -> None:
    cache = Cache(first=FIRST)
    cache.slots[0].start_at(np.array(LONG, dtype=np.int32), 30)
    cache.evaluate(0, LONG, Draft(), {0})
    other = [*LONG[:10], 99, *LONG[11:]]
    assert cache.slots[0].num_known(np.array(other, dtype=np.int32)) == 0
    assert cache.evaluate(0, other, Draft(), {0}) == len(other)


def test_a_block_in_work_leaves_with_its_slot_and_takes_no_id_from_a_tree() -> None:
    cache = Cache(num_ids=2, num_slots=1, first=FIRST)
    cache.slots[0].start_at(np.array(LONG, dtype=np.int32), 30)
    cache.evaluate(0, LONG, Draft(), set())
    cache.slots[0].open_block(20)
    assert cache.read_block(0, 5) == 5
    cache.check()
    cache.slots[0].close_block()
    cache.check()
    cache.evaluate(0, LONG, Draft.sequences([[50], [60]]), {1, 2})
    with pytest.raises(OutOfSequences):
        cache.slots[0].open_block(20)
    cache.evaluate(0, LONG, Draft(), {0})
    cache.slots[0].open_block(20)  # an idle id gives way
    cache.read_block(0, 5)
    cache.slots[0].drop()
    cache.check()
    assert not cache.cells.cells


@settings(proven, max_examples=400)
@given(
    st.lists(st.tuples(asks(), st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(2, 8),
)
def test_whatever_the_front_does_every_cell_is_where_it_belongs(
    sequence: list[tuple[Ask, int, int]], num_ids: int
) -> None:
    """Parts, blocks read in pieces, and dropped fronts come between the queries of trees."""
    cache = Cache(num_ids=num_ids, first=FIRST)
    last: dict[int, tuple[list[int], Draft]] = {i: ([*FIRST, 1], Draft()) for i in range(2)}
    for ask, begin, num_tokens in sequence:
        text = ask.text(*last[ask.slot])
        text = text if text[:2] == [*FIRST] else [*FIRST, *text]
        last[ask.slot] = (text, ask.draft)
        slot = cache.slots[ask.slot]
        if num_leaves(ask.draft) > num_ids:
            continue
        if begin < len(text) and not slot.num_known(np.array(text, dtype=np.int32)):
            slot.start_at(np.array(text, dtype=np.int32), begin)
        slot.close_block()  # as `LlamaContext` does where ids are short
        cache.evaluate(ask.slot, text, ask.draft, ask.rows(), ask.chunk, ask.num_chunks)
        cache.check()
        if begin < len(slot.trunk) - 1:
            with suppress(OutOfSequences):
                slot.open_block(begin)
                cache.read_block(ask.slot, num_tokens)
        cache.check()
    for slot in cache.slots:
        slot.drop()
    assert sorted(cache.free_ids) == list(range(num_ids))
    assert not cache.cells.cells
