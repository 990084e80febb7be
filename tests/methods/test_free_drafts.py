"""Drafts that no model makes: from earlier text, datastores, recycled candidates, a window."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from fakes import oracles
from fakes.decoding import PROMPT, ListedTexts, Session, decode, decode_rounds, plain_text, proven
from fakes.oracles import PythonSuffixes
from hypothesis import given
from hypothesis import strategies as st

from duodec.core.draft import ROOT, Draft, TreeBuilder
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.drafting import constants
from duodec.drafting.continuations import END, most_frequent
from duodec.drafting.jacobi import NgramPool, Window
from duodec.drafting.recycling import recycled
from duodec.drafting.suffix import Speculation, Suffixes
from duodec.errors import BadOption
from duodec.methods.registry import METHODS, method
from duodec.testing import TableModel, TableTarget

# --- trees


def test_a_builder_adds_a_token_once() -> None:
    tree = TreeBuilder()
    end = tree.add_path(ROOT, [1, 2, 3])
    assert tree.add_path(ROOT, [1, 2, 3]) == end
    assert tree.add_path(end, []) == end
    tree.add_path(ROOT, [1, 4])
    assert tree.draft() == Draft((1, 2, 3, 4), (-1, 0, 1, 0))


def test_a_draft_is_cut_to_a_width_and_a_depth() -> None:
    tree = Draft.sequences([[1, 2, 3], [4, 5], [6]])
    assert tree.within(6, 3) is tree
    assert tree.within(6, 1) == Draft((1, 4, 6), (-1, -1, -1))
    assert tree.within(4, 2) == Draft((1, 2, 4, 5), (-1, 0, -1, 2))
    assert tree.within(0, 9) == Draft()
    assert tree.depths() == [1, 2, 3, 1, 2, 1]


def test_paths_are_found() -> None:
    tree = Draft.sequences([[1, 2, 3], [1, 4]])
    assert tree.find([[1, 4], [], [1, 2], [2], [1, 2, 3, 4]]) == [3, ROOT, 1, None, None]


def test_preorder_follows_first_children() -> None:
    tree = Draft((1, 2, 3, 4, 5), (-1, -1, 0, 1, 0))
    assert tree.preorder() == [0, 2, 4, 1, 3]
    assert Draft().preorder() == []


# --- the commonest continuations


def commonest(windows: list[list[int]], num_tokens: int, min_count: int) -> Counter[tuple]:
    """The same by counting every prefix; of equals, the shorter ones."""
    counts = Counter(
        tuple(window[: n + 1])
        for window in windows
        for n in range(len(window))
        if END not in window[: n + 1]
    )
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], len(pair[0]), pair[0]))
    return Counter(dict([pair for pair in ranked if pair[1] >= min_count][:num_tokens]))


@st.composite
def continuations(draw) -> list[list[int]]:
    window = st.lists(st.integers(0, 2), max_size=4).map(lambda w: w + [END] * (4 - len(w)))
    return sorted(draw(st.lists(window, max_size=12)))


@proven
@given(continuations(), st.integers(1, 20), st.integers(1, 3))
def test_the_commonest_continuations_are_drafted(windows, num_tokens: int, min_count: int) -> None:
    array = np.array(windows, dtype=np.int32).reshape(-1, 4)
    found = most_frequent(array, num_tokens, min_count)
    paths = [tuple(found.draft.path_tokens(node)) for node in range(len(found.draft))]
    assert len(set(paths)) == len(paths)
    wanted = commonest(windows, num_tokens, min_count)
    assert dict(zip(paths, found.counts, strict=True)) == wanted
    assert all(a >= b for a, b in pairwise(found.counts))


# --- suffixes


class PlainSuffixes:
    """What a suffix tree with counts says, by looking everywhere."""

    def __init__(self, texts: list[list[int]], depth: int) -> None:
        self.texts, self.depth = texts, depth

    def best(self, text: list[int], factor: float, min_share: float) -> float:
        """The highest score."""
        scores = [0.0]
        for n in range(1, min(self.depth, len(text)) + 1):
            found = [
                [*known[i + n : i + n + self.depth]]
                for known in self.texts
                for i in range(len(known) - n + 1)
                if known[i : i + n] == text[-n:] and i + n < self.total(known)
            ]
            num_tokens = min(self.depth, int(factor * n + 1e-6))
            if not found or not num_tokens:
                continue
            counts = Counter(tuple(w[: d + 1]) for w in found for d in range(len(w)))
            shares = sorted(
                (count / len(found) for path, count in counts.items() if len(path) <= num_tokens),
                reverse=True,
            )
            kept = [s for s in shares if s * len(found) >= min_share * len(found) - 1e-6]
            scores.append(sum(kept[:num_tokens]))
        return max(scores)

    def total(self, known: list[int]) -> int:
        return len(known) + (known is not self.texts[-1])


@proven
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=3),
    st.lists(st.integers(0, 2), min_size=1, max_size=12),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([0.0, 0.1, 0.4]),
)
def test_a_suffix_drafts_what_a_suffix_tree_would(texts, text, factor, min_share) -> None:
    stores = Suffixes(5), PythonSuffixes(5)
    for store in stores:
        for i, known in enumerate(texts):
            store.extend(known)
            if i < len(texts) - 1:
                store.end()
        assert len(store) == sum(map(len, texts))
    asked = np.array(text, dtype=np.int32), factor, min_share
    found, by_oracle = (store.speculate(*asked) for store in stores)
    assert as_tuples(found) == as_tuples(by_oracle)
    with pytest.MonkeyPatch.context() as patch:  # by arrays
        patch.setattr(constants, "FEW_WINDOWS", 0)
        patch.setattr(oracles, "MANY_PLACES", 0)
        assert by_oracle == stores[1].speculate(*asked)
    assert found.score == pytest.approx(PlainSuffixes(texts, 5).best(text, factor, min_share))
    for node in range(len(found.draft)):  # every node continues some suffix somewhere
        path = [text[-1], *found.draft.path_tokens(node)]
        assert any(known[i : i + len(path)] == path for known in texts for i in range(len(known)))


def as_tuples(found: Speculation) -> tuple[object, ...]:
    return found.draft, tuple(found.shares), found.score, found.length


def test_a_text_that_repeats_is_drafted_whole() -> None:
    tokens = list(range(40))
    store = Suffixes(24)
    store.extend([*tokens, *tokens[:10]])
    found = store.speculate(np.array([*tokens, *tokens[:10]], dtype=np.int32), 1.0, 0.1)
    assert found.draft == Draft.chain(tokens[10:20])
    assert found.score == 10


def test_nothing_known_is_nothing_drafted() -> None:
    text = np.array([7], dtype=np.int32)
    assert not len(Suffixes(4).speculate(text, 1.0, 0.1).draft)
    store = Suffixes(4)
    store.extend([1, 2, 7])  # its last token has no continuation yet
    assert not len(store.speculate(text, 1.0, 0.1).draft)


def test_a_store_forgets_the_older_half() -> None:
    store = Suffixes(4, max_tokens=60)
    for i in range(30):
        store.extend([100 + i, 200 + i, 300 + i])
        store.end()
        assert len(store) <= 33, "each sequence of three takes the room of seven"
    for i, is_known in ((29, True), (0, False)):
        text = np.array([100 + i], dtype=np.int32)
        assert (
            store.speculate(text, 2.0, 0.1).draft == Draft.chain([200 + i, 300 + i])
        ) is is_known


# --- recycling


def test_the_tree_is_the_released_one() -> None:
    adjacency = {token: tuple(range(8)) for token in range(8)}  # a token is its rank
    tree = recycled(adjacency, 0)
    paths = [tuple(tree.path_tokens(node)) for node in range(len(tree))]
    assert len(set(paths)) == len(tree) == 80
    assert Counter(map(len, paths)) == {1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
    assert paths[-3:] == [(0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 1), (0, 0, 0, 1, 0, 0)]
    for path in [(1, 3), (2, 2), (0, 1, 2), (1, 1, 0), (0, 0, 4, 0), (0, 0, 1, 0, 0)]:
        assert path in paths
    for path in [(1, 4), (3, 2), (0, 2, 2), (1, 2, 0), (4, 0, 0, 0)]:
        assert path not in paths


def test_what_is_not_known_is_left_out_and_the_rest_keeps_its_rank() -> None:
    assert recycled({}, 3) == Draft()
    tree = recycled({3: (5, 6), 6: (1, 2, 3, 4, 7)}, 3)
    assert [tree.path_tokens(n) for n in range(len(tree))] == [
        [5], [6], [6, 1], [6, 2], [6, 3], [6, 4],
    ]  # fmt: skip


# --- lookahead


def test_a_window_fills_moves_and_yields_ngrams() -> None:
    """Of a text that counts up, with guesses that are right: as in 2402.02057, figure 3."""
    window = Window([1, 2, 3, 4, 5], num_levels=4)  # six columns; two levels to fill
    assert list(window.branches())[:3] == [[], [1], [1, 2]]
    assert window.advance(0, [1, 2, 3, 4, 5, 6]) == []
    assert list(window.branches())[:3] == [[2], [2, 3], [2, 3, 4]]
    ends = [path[-1] for path in window.branches()]
    assert window.advance(1, [end + 1 for end in ends]) == []
    assert len(list(window.branches())) == 4
    for last in (2, 3, 4):
        ends = [path[-1] for path in window.branches()]
        ngrams = window.advance(last, [end + 1 for end in ends])
        assert ngrams == [tuple(range(last + j, last + j + 4)) for j in range(4)]


def test_a_pool_keeps_the_latest_ngrams_of_a_token() -> None:
    pool = NgramPool(2)
    for ngram in [(1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 6, 7), (2, 8, 9)]:
        pool.add(ngram)
    assert pool.after(1) == [(6, 7), (2, 3)]
    assert pool.after(5) == []


# --- the methods that use them

LOOP = TableModel(num_vocab=16, order=1, seed=3)  # greedy text of one last token runs in circles


@pytest.mark.parametrize("name", ["lookup", "rest", "lookahead", "recycling", "suffix"])
def test_a_text_that_repeats_is_soon_drafted(name: str) -> None:
    greedy = SamplingParams()
    store = ListedTexts([plain_text(LOOP, greedy, 60)])
    found, rounds = decode(
        name, target=TableTarget(LOOP), num_tokens=60, datastore=store, params=greedy
    )
    assert found == plain_text(LOOP, greedy, 60)
    assert len(rounds) < 40


@pytest.mark.parametrize("name", ["recycling", "suffix"])
def test_a_method_that_learns_needs_fewer_rounds_the_second_time(name: str) -> None:
    model = TableModel(num_vocab=64, seed=5)
    learned = method(name)
    num_rounds = []
    for _ in range(2):
        session = Session(
            target=TableTarget(model),
            prompt=PROMPT,
            capacity=len(PROMPT) + 60,
            sampler=Sampler(SamplingParams()),
        )
        num_rounds.append(len(list(decode_rounds(learned, session))))
        assert session.text[len(PROMPT) :].tolist() == plain_text(model, SamplingParams(), 60)
    assert num_rounds[1] < num_rounds[0]
    fresh = Session(target=TableTarget(model), prompt=PROMPT, capacity=len(PROMPT) + 60)
    assert len(list(decode_rounds(method(name), fresh))) == num_rounds[0]


def test_a_number_of_draft_tokens_is_part_of_a_name() -> None:
    assert method("sps:7") == METHODS["sps"](num_tokens=7)
    assert method("duo:24") == METHODS["duo"](num_tokens=24)
    assert method("pearl:24") == METHODS["pearl"](num_tokens=24)
    assert method("sps:16:0.75") == METHODS["sps"](num_tokens=16, least=0.75)
    assert method("lookup:8:2") == METHODS["lookup"](num_tokens=8, max_ngram=2)
    odd = ("sps:7:", "sps:7:x", "sps:7:1.5", "sps:7:-1", "sps:7:nan", "sps:7:0.5:1", "lookup:3:0.5")
    for name in ("sps:", "sps:0", "sps:x", "ar:3", "duo:0", "duo:2:0.5", "spz", *odd):
        with pytest.raises(BadOption):
            method(name)
