"""The compiled loops have the results of those in Python, to the last bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes.decoding import (
    FakeDatastore,
    GivenSource,
    SlowDrafter,
    TickingClock,
    decode,
    plain_text,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from duodec.backends.table import TableModel, TableTarget
from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT
from duodec.core.protocols import NUM_CANDIDATES, Candidates
from duodec.core.sampling import SamplingParams
from duodec.drafting.inline import InlineDrafter
from duodec.drafting.recycling import RecycledRows
from duodec.drafting.suffix import Suffixes
from duodec.inner_loops import use_native
from duodec.machine.compiler import compiled
from duodec.native import library as native
from duodec.native.rows import NativeRows
from duodec.native.suffixes import NativeSuffixes
from duodec.planning.acceptance import Acceptance
from duodec.planning.compiled import grow
from duodec.planning.selection import Selection, Source
from duodec.planning.sources import RowSource, TextMemory, TextSources, TreeSource

NUM_VOCAB = 24
Context = tuple[int, ...]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = compiled(native.SOURCES, tmp_path_factory.mktemp("native"), native.SIZES)
    if path is None:
        pytest.skip("there is no C++ compiler")
    return path


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = native.library()
    yield
    native._library = before


def acceptance(dice: random.Random) -> Acceptance:
    """One that has learned something."""
    made = Acceptance()
    for cell in range(len(made.num_seen)):
        made.num_seen[cell] = float(dice.randint(0, 50))
        made.num_right[cell] = made.num_seen[cell] * dice.random()
    return made


def tokens(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(NUM_VOCAB) for _ in range(count)]


def candidates(dice: random.Random) -> Candidates:
    found = dice.sample(range(NUM_VOCAB), dice.randint(0, NUM_CANDIDATES + 2))
    sure = sorted((dice.random() for _ in found), reverse=True) if dice.random() < 0.7 else ()
    return Candidates(tuple(found), tuple(sure))


def sources(seed: int) -> tuple[list[Source], Acceptance]:
    """The same for the same seed: a tree, rows, matches of two stores and at times a datastore."""
    dice = random.Random(seed)
    tree, nodes = CandidateTree(), [ROOT]
    for _ in range(dice.randint(0, 20)):
        node = dice.choice(nodes)
        found = dice.sample(range(NUM_VOCAB), dice.randint(0, 8))
        begin = len(tree)
        tree.expand(node, found, sorted((dice.random() for _ in found), reverse=True))
        nodes += range(begin, len(tree))
    memory = TextMemory(
        by_length=tuple(acceptance(dice) for _ in range(5)),
        by_order=tuple(acceptance(dice) for _ in range(3)),
        stored=acceptance(dice),
        agreement=acceptance(dice),
    )
    for _ in range(dice.choice([0, 5, 200])):
        memory.rows.add(tuple(tokens(dice, dice.randint(1, 4))), candidates(dice))
    text = np.array(tokens(dice, dice.choice([1, 2, 100])), dtype=np.int32)
    memory.earlier.extend(tokens(dice, dice.choice([0, 100])))
    memory.earlier.end()
    store = FakeDatastore([tokens(dice, 200)]) if dice.random() < 0.5 else None
    texts = TextSources(memory, text[:0], store)
    texts.read(text)
    own = TreeSource(tree, acceptance(dice), dice.choice(nodes))
    return [own, *texts.sources(text)], memory.agreement


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 1 << 30), st.sampled_from([0, 1, 7, 80]), st.sampled_from([0, 1, 3, 24]),
    st.booleans(), st.sampled_from([1e-3, 1e-2, 0.1]),
)  # fmt: skip
def test_a_selection_is_the_same(
    path: Path, seed: int, num_tokens: int, depth: int, has_branches: bool, least: float
) -> None:
    grown = []
    for library in (None, path):
        native.use(library)
        found, agreement = sources(seed)
        selection = Selection(found, agreement)
        grow(selection, num_tokens, depth, has_branches=has_branches, least=least)
        selection.learn(tokens(random.Random(seed), 3))
        grown.append((selection, agreement))
    (ours, learned), (compiled_, learned_too) = grown
    assert compiled_.tokens == ours.tokens
    assert compiled_.parents == ours.parents
    assert compiled_.values == ours.values
    assert compiled_.reach == ours.reach
    assert compiled_.num_labelled == ours.num_labelled
    assert learned_too.num_seen == learned.num_seen
    assert learned_too.num_right == learned.num_right


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 12))
def test_rows_are_kept_and_forgotten_alike(path: Path, seed: int, max_contexts: int) -> None:
    stores = []
    for library in (None, path):
        native.use(library)
        stores.append(RecycledRows(max_contexts))
        stores[-1].add((1,), Candidates((2,), (0.5,)))
    dice = random.Random(seed)

    def context() -> Context:
        """Of few tokens, so that many are known already."""
        return tuple(dice.randrange(3) for _ in range(dice.randint(0, 4)))

    for _ in range(60):
        known, asked, row = context(), context(), candidates(dice)
        for store in stores:
            store.add(known, row)
        assert stores[0].longest(asked) == stores[1].longest(asked)
        assert stores[0].longest(known) == stores[1].longest(known)
        assert len(stores[0]) == len(stores[1])
    assert isinstance(stores[1].store, NativeRows)
    assert not isinstance(stores[0].store, NativeRows)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 1 << 30), st.sampled_from([2, 20]), st.sampled_from([60, 1 << 18]),
    st.sampled_from([0.5, 1.0, 24.0]), st.sampled_from([0.0, 0.05, 0.4]),
    st.sampled_from([None, 0, 1, 3, 24]),
)  # fmt: skip
def test_texts_are_searched_and_forgotten_alike(
    path: Path, seed: int, num_vocab: int, max_tokens: int,
    factor: float, min_share: float, depth: int | None,
) -> None:  # fmt: skip
    found = []
    for library in (None, path):
        native.use(library)
        dice, store = random.Random(seed), Suffixes(24, max_tokens)
        found.append(list[object]())
        for _ in range(dice.randint(1, 4)):
            read = [dice.randrange(num_vocab) for _ in range(dice.choice([3, 30, 400]))]
            store.extend(read)
            for known in ([], read, read[: len(read) // 2]):
                text = np.array([*known, dice.randrange(num_vocab)], dtype=np.int32)
                for asked in (text, text[:-1]):
                    one = store.speculate(asked, factor, min_share, depth)
                    found[-1].append((one.draft, list(one.shares), one.score, one.length))
            if dice.random() < 0.7:
                store.end()
            found[-1].append(len(store))
        assert isinstance(store._store, NativeSuffixes) == (library is not None)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["stream", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("delays", [None, (1, 2), (3, 7)])
def test_text_is_plain_decodings_whoever_selects_and_however_slow_drafts_are(
    path: Path, name: str, temperature: float, delays: tuple[int, int] | None
) -> None:
    model, params = TableModel(seed=7), SamplingParams(temperature=temperature, seed=5)
    loaded = replace(model, noise=0.4).load()
    expected = plain_text(model, params, 60)
    for library in (None, path):
        native.use(library)
        drafter = InlineDrafter(loaded) if delays is None else SlowDrafter(loaded, *delays)
        found, rounds = decode(
            name, target=TableTarget(model), drafter=drafter, params=params, num_tokens=60,
            clock=TickingClock(),
        )  # fmt: skip
        assert found == expected
        assert sum(done.num_scored for done in rounds)


def test_sources_that_it_does_not_know_are_left_to_python(path: Path) -> None:
    native.use(path)
    source = GivenSource({(): [(1, 0.5)], (1,): [(2, 0.5)]})
    selection = Selection([source, source], Acceptance())
    grow(selection, 20, 8)
    assert selection.tokens == [1, 2]


def test_rows_of_python_are_left_to_python(path: Path) -> None:
    """A text memory that is older than the library."""
    native.use(None)
    found, agreement = sources(3)
    before = Selection(found, agreement)
    grow(before, 40, 8)
    native.use(path)
    after = Selection(found, agreement)
    grow(after, 40, 8)
    assert after.values == before.values


def test_what_cannot_be_loaded_is_left_to_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path))
    made = compiled(native.SOURCES, tmp_path / "native", native.SIZES)
    if made is None:
        pytest.skip("there is no C++ compiler")
    made.unlink()
    made.write_bytes(b"no library")
    made.chmod(0o700)
    assert not use_native()
    assert not made.exists()
    assert use_native(), "compiled anew"
    monkeypatch.setenv("DUODEC_CACHE", "/dev/null/nothing")
    assert not use_native()
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "other"))
    assert use_native()


def test_a_tree_that_grows_is_learned_from_as_it_was(path: Path) -> None:
    """The drafter goes on while the target computes."""
    learned = []
    for library in (None, path):
        for grows in (False, True):
            native.use(library)
            tree, agreement = CandidateTree(), Acceptance()
            tree.expand(ROOT, [1, 2], [0.5, 0.3])
            rows = RecycledRows()
            rows.add((1,), Candidates((3, 4), (0.6, 0.2)))
            own = TreeSource(tree, Acceptance())
            selection = Selection([own, RowSource(rows, TextMemory().by_order, (9,))], agreement)
            grow(selection, 9, 9)
            if grows:
                tree.expand(0, [3], [0.9])
            selection.learn([1, 3])
            learned.append((selection.values, list(agreement.num_seen)))
    assert learned[0][0]
    assert learned.count(learned[0]) == len(learned)


def test_a_node_that_is_not_there_has_no_successors() -> None:
    tree = CandidateTree()
    for node in (-2, 0, 7):
        with pytest.raises(IndexError):
            tree.expand(node, [1], [0.5])
    assert len(tree) == 0
