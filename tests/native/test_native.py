"""The compiled loops have the results of their oracles in Python, to the last bit."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from fakes import oracles
from fakes.decoding import (
    ListedTexts,
    SlowDrafter,
    TickingClock,
    decode,
    plain_text,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT
from duodec.core.rows import top
from duodec.core.sampling import noise
from duodec.core.sampling.sampler import Context as Before
from duodec.core.sampling.sampler import Sampler, SamplingParams, Tokens
from duodec.core.targets import NUM_CANDIDATES, Candidates
from duodec.drafting import constants
from duodec.drafting.recycling import RecycledRows
from duodec.drafting.suffix import Suffixes
from duodec.errors import ComputeFailed
from duodec.methods import draft_selector
from duodec.native import ranking
from duodec.native.library import Handle, library
from duodec.planning import compiled, planner
from duodec.planning.acceptance import Acceptance
from duodec.planning.mixing import Kind, Mixer
from duodec.planning.selection import Selection
from duodec.planning.sources import (
    LENGTHS,
    HeadSource,
    MatchHistory,
    MatchSource,
    RowSource,
    Source,
    StoredSource,
    TextMemory,
    TextSources,
    TreeSource,
)
from duodec.testing import InlineDrafter, TableModel, TableTarget

NUM_VOCAB = 24
Context = tuple[int, ...]


TEXT = Before(np.zeros(1, dtype=np.int32))
LOOPS = ("in Python", "in C++")


@contextmanager
def used(loops: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if loops == "in Python":
            oracles.use(patch)
        yield


def acceptance(dice: random.Random) -> Acceptance:
    """One that has learned something."""
    made = Acceptance()
    for cell in range(len(made.num_seen)):
        made.num_seen[cell] = float(dice.choice([dice.randint(0, 50), 400]))  # full, too
        made.num_right[cell] = made.num_seen[cell] * dice.random()
    return made


def history(dice: random.Random, kind: Kind) -> MatchHistory:
    """One that has learned something."""
    expected = array("d", sorted(dice.random() for _ in LENGTHS))
    return MatchHistory(kind, expected, tuple(acceptance(dice) for _ in LENGTHS))


def mixer(dice: random.Random) -> Mixer:
    """One that has learned something."""
    made = Mixer()
    for i in range(len(made.weights)):
        made.weights[i] += dice.choice([0.0, dice.gauss(0.0, 1.0)])
        made.squares[i] = dice.choice([0.0, 50 * dice.random(), constants.MAX_SQUARES])  # full, too
    return made


def tokens(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(NUM_VOCAB) for _ in range(count)]


def candidates(dice: random.Random) -> Candidates:
    found = dice.sample(range(NUM_VOCAB), dice.randint(0, NUM_CANDIDATES + 2))
    sure = sorted((dice.random() for _ in found), reverse=True) if dice.random() < 0.7 else ()
    return Candidates(tuple(found), tuple(sure))


@dataclass
class Place:
    """A text, greedy or sampled, where a tree ends, rows, two stores of texts, at times a datastore
    and heads propose; `sources` reads the text."""

    texts: TextSources
    text: Tokens
    tree: TreeSource
    heads: list[HeadSource]

    def sources(self) -> list[Source]:
        self.texts.read(self.text)
        return [self.tree, *self.texts.sources(self.text), *self.heads]


def place(seed: int) -> Place:
    """The same for the same seed."""
    dice = random.Random(seed)
    tree, nodes = CandidateTree(), [ROOT]
    for _ in range(dice.randint(0, 20)):
        node = dice.choice(nodes)
        found = dice.sample(range(NUM_VOCAB), dice.randint(0, 8))
        begin = len(tree)
        tree.expand(node, found, sorted((dice.random() for _ in found), reverse=True))
        nodes += range(begin, len(tree))
    memory = TextMemory(
        own_matches=history(dice, Kind.OWN_TEXT),
        earlier_matches=history(dice, Kind.EARLIER_TEXTS),
        by_order=tuple(acceptance(dice) for _ in range(3)),
        stored=acceptance(dice),
        mixer=mixer(dice),
    )
    for _ in range(dice.choice([0, 5, 200])):
        memory.rows.of("").add(tuple(tokens(dice, dice.randint(1, 4))), candidates(dice))
    text = np.array(tokens(dice, dice.choice([1, 2, 100])), dtype=np.int32)
    memory.earlier.of("").extend(tokens(dice, dice.choice([0, 100])))
    memory.earlier.of("").end()
    store = ListedTexts([tokens(dice, 200)]) if dice.random() < 0.5 else None
    params = SamplingParams(
        temperature=dice.choice([0.0, 1e-4, 0.7, 1.5]), seed=dice.randrange(1 << 64)
    )
    sampler = Sampler(params, dice.randint(0, 2))
    texts = TextSources(memory, text[:0], store, dice.choice([None, sampler, sampler]))
    own = TreeSource(tree, acceptance(dice), dice.choice(nodes))
    heads = [HeadSource(copy(tree), acceptance(dice))] if dice.random() < 0.3 else []
    return Place(texts, text, own, heads)


def known(sources: list[Source]) -> list[list[float]]:
    """What the acceptance of each has learned."""
    found: list[Acceptance] = []
    for source in sources:
        if isinstance(source, RowSource):
            found += source.acceptance
        elif isinstance(source, MatchSource):
            found += source.history.by_length
        else:
            assert isinstance(source, TreeSource | StoredSource | HeadSource)
            found.append(source.acceptance)
    return [[*one.num_right, *one.num_seen] for one in found]


NUM_EXAMPLES = [100, pytest.param(300, marks=pytest.mark.slow)]
PLACES = (
    st.integers(0, 1 << 30), st.sampled_from([0, 1, 7, 80]), st.sampled_from([0, 1, 3, 24]),
    st.booleans(), st.sampled_from([1e-3, 1e-2, 0.1]),
)  # fmt: skip


@pytest.mark.parametrize("num_examples", NUM_EXAMPLES)
def test_a_selection_is_the_same(num_examples: int) -> None:
    @settings(max_examples=num_examples, deadline=None)
    @given(*PLACES)
    def check(seed: int, num_tokens: int, depth: int, has_branches: bool, least: float) -> None:
        grown, taught = [], []
        for loops in LOOPS:
            with used(loops):
                here = place(seed)
                found, mixer = here.sources(), here.texts.memory.mixer
                selection = Selection(found, mixer)
                planner.grow(selection, num_tokens, depth, has_branches=has_branches, least=least)
                grown.append((selection, mixer))
                dice = random.Random(seed)
                for _ in range(6):  # along the tree, and where it ends
                    path = selection.draft(num_tokens).path_tokens(
                        dice.randrange(-1, len(selection.tokens))
                    )
                    came = [*path, *tokens(dice, dice.randint(0, 3))]
                    worth = [draft_selector.without(selection, one, came) for one in found]
                    planner.learn(selection, came)
                    counts = selection.num_labelled, selection.num_without_draft
                    taught.append((worth, counts, known(found)))
        assert taught[:6] == taught[6:]
        (ours, learned), (compiled_, learned_too) = grown
        assert compiled_.tokens == ours.tokens
        assert compiled_.parents == ours.parents
        assert compiled_.values == ours.values
        assert compiled_.reach == ours.reach
        assert compiled_.is_full == ours.is_full
        assert learned_too.weights == learned.weights
        assert learned_too.squares == learned.squares

    check()


@pytest.mark.parametrize("num_examples", NUM_EXAMPLES)
def test_a_proposal_is_the_selection_of_what_is_found_at_the_end_of_a_text(
    num_examples: int,
) -> None:
    """As the text goes on, and where it may go on."""

    @settings(max_examples=num_examples, deadline=None)
    @given(*PLACES)
    def check(seed: int, num_tokens: int, depth: int, has_branches: bool, least: float) -> None:
        made = []
        for loops in LOOPS:
            with used(loops):
                here, dice = place(seed), random.Random(seed)
                texts, text, mixer = here.texts, here.text, here.texts.memory.mixer
                seconds = [1.0 + dice.random() * num for num in range(num_tokens + 1)]
                for _ in range(3):
                    likely = tokens(dice, 2)
                    longer = np.concatenate([text, np.array(likely, dtype=np.int32)])
                    for whole in (text, longer, text):
                        end = texts.end_after(text, likely) if whole is longer else None
                        end = end or texts.end_to_read(text)
                        selection = Selection([here.tree, *texts.stored(whole), *here.heads], mixer)
                        width = planner.propose(
                            selection, texts, end, num_tokens, depth, seconds, seconds,
                            has_branches=has_branches, least=least, trust=0.9, caution=1.0,
                            lost=2.0, most_bet=2.0, bet=0.25, more_s=0.1,
                        )  # fmt: skip
                        nodes = [list(one) for one in (selection.tokens, selection.parents)]
                        values = list(selection.values), selection.reach
                        made.append((width, nodes, values, selection.is_full, len(texts.own)))
                        planner.learn(selection, [*selection.tokens[:1], *tokens(dice, 1)])
                        made.append((known(selection.sources), list(mixer.weights)))
                    text = np.concatenate([text, np.array(tokens(dice, 3), dtype=np.int32)])
        assert made[: len(made) // 2] == made[len(made) // 2 :]

    check()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 12))
def test_rows_are_kept_and_forgotten_alike(seed: int, max_contexts: int) -> None:
    stores = oracles.PythonRows(max_contexts), RecycledRows(max_contexts)
    for store in stores:
        store.add((1,), Candidates((2,), (0.5,)))
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


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 1 << 30), st.sampled_from([2, 20]), st.sampled_from([60, 1 << 18]),
    st.sampled_from([0.5, 1.0, 24.0]), st.sampled_from([0.0, 0.05, 0.4]),
    st.sampled_from([None, 0, 1, 3, 24]),
)  # fmt: skip
def test_texts_are_searched_and_forgotten_alike(
    seed: int, num_vocab: int, max_tokens: int,
    factor: float, min_share: float, depth: int | None,
) -> None:  # fmt: skip
    found = []
    for kind in (oracles.PythonSuffixes, Suffixes):
        dice, store = random.Random(seed), kind(24, max_tokens)
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
            found[-1].append((len(store), store.num_cells))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stream", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("delays", [None, (1, 2), (3, 7)])
def test_text_is_plain_decodings_whoever_selects_and_however_slow_drafts_are(
    name: str, temperature: float, delays: tuple[int, int] | None
) -> None:
    model, params = TableModel(seed=7), SamplingParams(temperature=temperature, seed=5)
    loaded = replace(model, noise=0.4).load()
    expected = plain_text(model, params, 60)
    for loops in LOOPS:
        drafter = InlineDrafter(loaded) if delays is None else SlowDrafter(loaded, *delays)
        with used(loops):
            found, rounds = decode(
                name, target=TableTarget(model), drafter=drafter, params=params, num_tokens=60,
                clock=TickingClock(),
            )  # fmt: skip
        assert found == expected
        assert sum(done.num_scored for done in rounds)


def test_a_tree_that_grows_is_learned_from_as_it_was() -> None:
    """The drafter goes on while the target computes."""
    learned = []
    for loops, grows in product(LOOPS, (False, True)):
        with used(loops):
            tree, mixer = CandidateTree(), Mixer()
            tree.expand(ROOT, [1, 2], [0.5, 0.3])
            rows = RecycledRows()
            rows.add((1,), Candidates((3, 4), (0.6, 0.2)))
            own = TreeSource(tree, Acceptance())
            selection = Selection([own, RowSource(rows, TextMemory().by_order, (9,))], mixer)
            planner.grow(selection, 9, 9)
            if grows:
                tree.expand(0, [3], [0.9])
            planner.learn(selection, [1, 3])
            learned.append((selection.values, list(mixer.weights)))
    assert learned[0][0]
    assert learned.count(learned[0]) == len(learned)


def test_a_node_that_is_not_there_has_no_successors() -> None:
    tree = CandidateTree()
    for node in (-2, 0, 7):
        with pytest.raises(IndexError):
            tree.expand(node, [1], [0.5])
    assert len(tree) == 0


def test_objects_of_the_library_cannot_be_copied() -> None:
    """A copy would free them a second time."""
    memory = TextMemory()
    memory.rows.of("")
    for kept in (Suffixes(4), RecycledRows(), memory, Handle("rows", 4)):
        with pytest.raises(TypeError, match="cannot be copied"):
            deepcopy(kept)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy(Handle("rows", 4))
    assert library() is library()


def best_two_of_all(
    noises: np.ndarray, tokens: np.ndarray, scores: np.ndarray
) -> tuple[list[int], list[float]]:
    """With the noise of every token."""
    sums = scores + noises
    largest = np.flatnonzero(sums >= np.partition(sums, -2)[-2])
    order = largest[np.argsort(-sums[largest], kind="stable")[:2]]
    return tokens[order].tolist(), sums[order].tolist()


def best_two(key: int, tokens: np.ndarray, scores: np.ndarray) -> ranking.BestTwo:
    """Of numbers none of which is NaN."""
    found = noise.best_two(key, tokens, scores)
    assert found is not None
    return found


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 3.0, 30.0, 1e6])
@pytest.mark.parametrize("num_tokens", [2, 3, 255, 256, 257, 1000, 20_011])
def test_the_best_two_are_those_of_all_noise(num_tokens: int, spread: float) -> None:
    dice = np.random.default_rng(num_tokens)
    every = np.arange(num_tokens)
    for trial in range(200 if num_tokens < 2000 else 20):
        tokens = every if trial % 2 else np.sort(dice.choice(1 << 31, num_tokens, replace=False))
        scores = dice.normal(0, spread, num_tokens).astype(np.float32)
        if trial % 3 == 0:  # many that are equal, and many that are banned
            scores = np.round(scores)
            scores[dice.random(num_tokens) < 0.3] = -np.inf
            scores[int(dice.integers(num_tokens))] = 0
        if trial % 5 == 0:  # as of a model: a broad bulk, and a few that stand out
            scores[dice.integers(0, num_tokens, 4)] += 12
        key = int(dice.integers(0, 1 << 64, dtype=np.uint64))
        before = scores.copy()
        found, sums = best_two(key, tokens, scores)
        expected, expected_sums = best_two_of_all(noise.gumbel(key, tokens), tokens, scores)
        assert sums.tolist() == expected_sums
        assert found[0] == expected[0]
        assert found[1] == expected[1] or sums[1] == -np.inf
        assert np.array_equal(scores, before)


@pytest.mark.parametrize("order", [1, -1], ids=["ascending", "descending"])
def test_a_draw_needs_no_luck_in_the_order_of_scores(order: int) -> None:
    tokens = np.arange(60_000)
    scores = np.linspace(-30, 30, len(tokens), dtype=np.float32)[::order].copy()
    for key in range(20):
        found, sums = best_two(key, tokens, scores)
        assert (list(found), list(sums)) == best_two_of_all(
            noise.gumbel(key, tokens), tokens, scores
        )


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_token_far_from_the_best_wins_by_rare_noise(temperature: float) -> None:
    """In a block of such tokens, or next to one that is near the best."""
    num_tokens = 150_007  # the last block is not whole
    every, num_won = np.arange(num_tokens), 0
    dice = np.random.default_rng(7)
    for trial in range(90):
        key = int(dice.integers(0, 1 << 64, dtype=np.uint64))
        noises = noise.gumbel(key, every)
        rare = int(noises.argmax())
        row = temperature * dice.normal(-11.5, 0.3, num_tokens).astype(np.float32)
        row[dice.integers(0, num_tokens, 20)] = 0
        if trial % 3:
            row[rare ^ 1] = -1
        sums = row * np.float32(1 / temperature) + noises
        sums[rare] = -np.inf
        needed = np.partition(sums, -2)[-1 - trial // 2 % 2]
        row[rare] = (needed - noises[rare] + dice.normal(0, 0.5)) * temperature
        found = noise.best_two(key, None, row, temperature)
        assert found is not None
        tokens, best = best_two_of_all(noises, every, row * np.float32(1 / temperature))
        assert (list(found[0]), list(found[1])) == (tokens, best)
        num_won += rare in tokens
    assert 30 < num_won < 80


def test_a_token_wins_by_rare_noise_after_the_bound_has_risen() -> None:
    """What it needs is less than what is mapped back, at first; later it is more."""
    num_tokens, num_won = 150_007, 0
    every, dice = np.arange(num_tokens), np.random.default_rng(8)
    for _ in range(100):
        key = int(dice.integers(0, 1 << 64, dtype=np.uint64))
        noises = noise.gumbel(key, every)
        rare = int(noises.argmax())
        if noises[rare] < 12.9 or rare < 1000:
            continue
        row = dice.normal(-11.5, 0.1, num_tokens).astype(np.float32)
        likely = dice.integers(rare - 500, num_tokens, 20)
        row[likely] = 0
        bound = np.sort(noises[likely])[-2]
        riser = int(noises[: rare - 500].argmax())
        row[riser] = bound + 0.8 - noises[riser]
        row[rare] = bound - 11.9
        found = noise.best_two(key, None, row)
        assert found is not None
        tokens, best = best_two_of_all(noises, every, row)
        assert (list(found[0]), list(found[1])) == (tokens, best)
        num_won += rare in tokens
    assert num_won > 10


@pytest.mark.parametrize("num_tokens", [2, 63, 64, 65, 1000, 20_011])
def test_a_row_is_drawn_from_as_its_scores_are(num_tokens: int) -> None:
    every, dice = np.arange(num_tokens), np.random.default_rng(num_tokens)
    for trial in range(50):
        temperature = (0.3, 0.7, 1.0, 1.7)[trial % 4]
        row = dice.normal(0, (0.01, 3, 8)[trial % 3], num_tokens).astype(np.float32)
        if trial % 5 == 0:
            row[dice.random(num_tokens) < 0.3] = -np.inf
            row[:2] = 0
        key = int(dice.integers(0, 1 << 64, dtype=np.uint64))
        found = noise.best_two(key, None, row, temperature)
        scores = row * np.float32(1 / temperature)
        assert found is not None
        assert (list(found[0]), list(found[1])) == best_two_of_all(
            noise.gumbel(key, every), every, scores
        )
        row[int(dice.integers(num_tokens))] = np.nan
        assert noise.best_two(key, None, row, temperature) is None


def test_equal_sums_give_the_lowest_token() -> None:
    scores = np.full(600, 1e9, dtype=np.float32)  # noise is rounded away
    found, _ = best_two(1, np.arange(600) + 5, scores)
    assert found.tolist() == [5, 6]


# --- rows of logits


@settings(deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 20_000), st.sampled_from([0, 1, 2, 8, 128, 1024, 8192]),
    st.sampled_from(["many values", "few values", "banned"]),
)  # fmt: skip
def test_the_largest_come_first_and_the_lowest_among_equals(seed, num_vocab, k, kind) -> None:
    dice = np.random.default_rng(seed)
    row = dice.normal(size=num_vocab).astype(np.float32)
    if kind == "few values":
        row = np.round(row)  # -0 and 0 are equal
    if kind == "banned":
        row[dice.integers(0, num_vocab, num_vocab)] = -np.inf
    assert top(row, k).tolist() == oracles.Ranking.top(row, k).tolist()
    assert top(row, k).tolist() == np.argsort(-row, kind="stable")[:k].tolist()


@pytest.mark.parametrize("place", [0, 63, 64, 150, 199])
def test_a_row_with_what_is_no_number_has_no_largest(place: int) -> None:
    row = np.arange(200, dtype=np.float32)
    row[place] = np.nan
    with pytest.raises(ComputeFailed, match="no numbers"):
        top(row, 3)
    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        with pytest.raises(ComputeFailed, match="no numbers"):
            Sampler(params).draw(row, TEXT)
    assert Candidates.of(row, 3) == Candidates()
    masked = SamplingParams(logit_bias={place: -np.inf})
    with pytest.raises(ComputeFailed, match="no numbers"):
        Sampler(masked).draw(row, TEXT)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_a_row_whose_largest_is_not_finite_draws_nothing(value: float) -> None:
    row = np.full(200, -np.inf, dtype=np.float32)
    row[70] = value
    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        with pytest.raises(ComputeFailed, match="no numbers"):
            Sampler(params).draw(row, TEXT)
    assert Candidates.of(row, 3) == Candidates()


@settings(deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 3000), st.integers(1, 200), st.sampled_from([0.5, 3, 20])
)
def test_the_likeliest_tokens_and_their_probabilities(seed, num_vocab, k, spread) -> None:
    row = (np.random.default_rng(seed).normal(size=num_vocab) * spread).astype(np.float32)
    row[np.random.default_rng(seed + 1).integers(0, num_vocab, num_vocab // 3)] = np.round(spread)
    two = ranking.best_two(row)
    assert two is not None
    assert tuple(map(list, two)) == oracles.Ranking.best_two(row)
    found, expected = ranking.likeliest(row, k), oracles.Ranking.likeliest(row, k)
    assert found is not None
    assert found[0].tolist() == expected[0].tolist()
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-9)
    found, expected = ranking.candidates(row, k), oracles.Ranking.candidates(row, k)
    assert found is not None
    assert expected is not None
    assert found[0].tolist() == expected[0].tolist()
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-12, atol=1e-15)
    assert found[1].sum() == pytest.approx(1.0)


@settings(deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 3000), st.integers(1, 200),
    st.sampled_from([0.01, 0.8, 1.7]), st.integers(0, (1 << 64) - 1),
)  # fmt: skip
def test_the_order_by_noise_is_that_of_the_targets_draws(
    seed, num_vocab, k, temperature, key
) -> None:
    row = (np.random.default_rng(seed).normal(size=num_vocab) * 3).astype(np.float32)
    found = ranking.noisy(row, k, 128, temperature, key)
    expected = oracles.Ranking.noisy(row, k, 128, temperature, key)
    assert found is not None
    assert found[0].tolist() == expected[0].tolist()
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("num_vocab", [1, 63, 64, 65, 151_936])
def test_banned_tokens_rank_last_and_have_no_probability(num_vocab: int) -> None:
    row = np.full(num_vocab, -np.inf, dtype=np.float32)
    row[num_vocab - 1] = 2.0
    found = ranking.likeliest(row, 3)
    assert found is not None
    assert found[0].tolist() == [num_vocab - 1, 0, 1][: len(found[0])]
    assert found[1] == pytest.approx([1.0, 0.0, 0.0][: len(found[1])], abs=1e-7)


@pytest.mark.parametrize("place", [0, 63, 64, 699])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_row_that_is_no_numbers_is_not_ranked(odd: float, place: int) -> None:
    row = np.zeros(700, dtype=np.float32)
    row[place] = odd
    assert ranking.likeliest(row, 4) is None
    assert ranking.candidates(row, 4) is None
    assert ranking.noisy(row, 4, 128, 0.8, 1) is None


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.floats(0, 1), max_size=80).map(lambda values: sorted(values, reverse=True)),
    st.lists(st.floats(0, 0.5), min_size=81, max_size=81),
    st.integers(0, 80), st.floats(0.05, 1), st.floats(1, 1.4), st.floats(0, 2), st.floats(0, 1),
)  # fmt: skip
def test_the_width_that_yields_most_is_that_of_its_oracle(
    values, steps, num_known, trust, caution, lost, more_s
) -> None:
    seconds = np.cumsum([1.0, *steps[1:]]).tolist()[: len(values) + 1]
    worst = [s if i <= num_known else np.inf for i, s in enumerate(seconds)]
    more = {
        "trust": trust, "caution": caution, "lost": lost, "most_bet": 2.0, "bet": 0.25,
        "more_s": more_s,
    }  # fmt: skip
    width = compiled.fastest_width(values, seconds, worst, **more)
    assert width == oracles.fastest_width(values, seconds, worst, **more)
    assert width <= num_known
