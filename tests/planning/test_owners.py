"""Each owner's texts are learned from apart, in no more memory than one has alone."""

from __future__ import annotations

import random

import numpy as np

from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Candidates
from duodec.drafting.owners import ByOwner
from duodec.drafting.suffix import Suffixes
from duodec.planning.sources import Lessons, MatchSource, TextMemory, TextSources

TEXT = np.array([1, 2, 3, 4, 5, 6, 7, 8], dtype=np.int32)
BEGUN = TEXT[:4]


def stores(most: int) -> ByOwner[list[int]]:
    return ByOwner(list, len, most)


def test_earlier_texts_and_rows_are_ones_own() -> None:
    memory = TextMemory()
    alices = TextSources(memory, BEGUN[:1], owner="alice")
    alices.learn(Lessons((2, 3, 4), Draft(), [(0, lambda: Candidates((5,), (0.9,)))]))
    alices.end(TEXT)

    def proposed(owner: str) -> list[object]:
        sources = TextSources(memory, BEGUN, owner=owner)
        rows, *others = sources.sources(BEGUN)
        matches = [tuple(one.tokens) for one in others if isinstance(one, MatchSource)]
        return [rows.rows.longest((2, 3, 4)), *matches]  # type: ignore[union-attr]

    assert proposed("alice") == [(3, Candidates((5,), (0.9,))), (5, 6, 7, 8)]
    assert proposed("bob") == proposed("") == proposed("alice:1") == [None]


def test_all_owners_together_have_one_bound() -> None:
    dice = random.Random(1)
    held = stores(10_000)
    for _ in range(2_000):
        store = held.of(f"{dice.choice('abc')}:{dice.randrange(100)}")
        store += range(dice.randrange(2_000))
        assert held.num_held <= 10_000 + 2_000
        assert len(held) <= 11


def test_an_owner_alone_has_all_of_it() -> None:
    held = stores(10_000)
    held.of("").extend(range(9_000))
    held.of("").extend(range(9_000))  # its own bound is its own affair
    assert len(held.of("")) == 18_000


def test_many_names_of_one_key_cost_others_nothing() -> None:
    held = stores(100_000)
    bobs = held.of("bob")
    bobs += range(5_000)
    for i in range(1_000):
        held.of(f"alice:{i}").extend(range(1_000))
    assert held.of("bob") is bobs
    assert len(bobs) == 5_000
    assert len(held.of("alice:999")) == 1_000, "the last used are kept"


def test_who_fills_all_of_it_begins_anew() -> None:
    held = stores(10_000)
    held.of("bob").extend(range(2_000))
    held.of("alice").extend(range(9_000))
    assert held.of("alice") == []
    assert len(held.of("bob")) == 2_000


def test_cells_of_texts_are_counted() -> None:
    """As the compiled store has them: 262,144 at most, or as many as fit after an end."""
    dice = random.Random(2)
    kept = Suffixes(24, 1_000)
    for _ in range(300):
        tokens: Tokens = np.array(dice.choices(range(50), k=dice.randrange(60)), dtype=np.int32)
        kept.extend(tokens.tolist())
        assert len(kept) <= kept.num_cells
        kept.end()
        assert kept.num_cells <= 1_000
