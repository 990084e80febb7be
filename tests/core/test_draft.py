"""Trees: what is grafted is found again, what is verified is the longest path that was drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from fakes.decoding import proven
from hypothesis import given
from hypothesis import strategies as st

from duodec.core.draft import ROOT, Draft
from duodec.core.sampling.sampler import Distribution, Draw
from duodec.core.verify import verify

tokens = st.integers(0, 3)
sequences = st.lists(st.lists(tokens, max_size=5), max_size=6)


@st.composite
def trees(draw, max_size: int = 14) -> Draft:
    """Trees as plans make them: siblings differ."""
    size = draw(st.integers(0, max_size))
    children: set[tuple[int, int]] = set()
    nodes: list[tuple[int, int]] = []
    for i in range(size):
        node = (draw(st.integers(ROOT, i - 1)), draw(st.integers(0, 5)))
        if node not in children:
            children.add(node)
            nodes.append(node)
        else:  # a fresh token under the same parent
            node = (node[0], 100 + i)
            nodes.append(node)
    return Draft(tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes))


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """The tree as a set: the tokens down to each node. Two trees are one if these are equal."""
    return {tuple(draft.path_tokens(node)) for node in range(len(draft))}


def node_at(draft: Draft, path: tuple[int, ...]) -> int:
    node = ROOT
    for token in path:
        found = draft.child(node, token)
        assert found is not None
        node = found
    return node


@proven
@given(trees())
def test_a_path_leads_from_the_root_to_its_node(tree: Draft) -> None:
    for node in range(len(tree)):
        path = tree.path(node)
        assert path == sorted(path)
        assert path[-1] == node
        assert [tree.parents[n] for n in path] == [ROOT, *path[:-1]]
        assert tree.path_tokens(node) == [tree.tokens[n] for n in path]
        assert node_at(tree, tuple(tree.path_tokens(node))) == node
    assert tree.path(ROOT) == []


@proven
@given(trees())
def test_children_are_those_whose_parent_it_is(tree: Draft) -> None:
    for node in range(ROOT, len(tree)):
        children = list(tree.children(node))
        assert children == [i for i, parent in enumerate(tree.parents) if parent == node]
        for child in children:
            assert tree.child(node, tree.tokens[child]) == child
        assert tree.child(node, 99) is None


@proven
@given(sequences)
def test_sequences_share_their_prefixes(lists: list[list[int]]) -> None:
    tree = Draft.sequences(lists)
    prefixes = {tuple(s[:n]) for s in lists for n in range(1, len(s) + 1)}
    assert paths(tree) == prefixes
    assert len(tree) == len(prefixes)


@proven
@given(st.lists(tokens, max_size=8))
def test_a_chain_is_one_sequence(chain: list[int]) -> None:
    tree = Draft.chain(chain)
    assert tree == Draft.sequences([chain])
    assert tree.leaf() == len(chain) - 1
    assert tree.path_tokens(tree.leaf()) == chain


@proven
@given(trees(), trees(), st.data())
def test_what_is_grafted_is_found_under_its_node(tree: Draft, other: Draft, data) -> None:
    node = data.draw(st.integers(ROOT, len(tree) - 1))
    grown = tree.graft(node, other)
    root = tuple(tree.path_tokens(node))
    assert paths(grown) == paths(tree) | {(*root, *path) for path in paths(other)}
    assert len(grown) == len(paths(grown))
    # nodes keep their numbers: rows that were scored stay the rows of their nodes
    if len(tree):
        assert grown.tokens[: len(tree)] == tree.tokens
        assert grown.parents[: len(tree)] == tree.parents
    assert paths(other) <= paths(grown.subtree(node))


@proven
@given(trees(), st.data())
def test_a_subtree_is_what_lies_below(tree: Draft, data) -> None:
    node = data.draw(st.integers(ROOT, len(tree) - 1))
    root = tuple(tree.path_tokens(node))
    below = {
        path[len(root) :] for path in paths(tree) if path[: len(root)] == root and path != root
    }
    subtree = tree.subtree(node)
    assert paths(subtree) == below
    assert len(subtree) == len(below)


@proven
@given(trees(), st.data())
def test_grafting_a_subtree_where_it_was_changes_nothing(tree: Draft, data) -> None:
    node = data.draw(st.integers(ROOT, len(tree) - 1))
    assert tree.graft(node, tree.subtree(node)) == tree


@proven
@given(trees(), trees())
def test_a_graft_under_a_chain_is_a_subtree_of_it(tree: Draft, other: Draft) -> None:
    chain = Draft.chain([7, 8, 9])
    assert paths(chain.graft(chain.leaf(), tree).subtree(chain.leaf())) == paths(tree)


def test_empty_trees() -> None:
    empty = Draft()
    assert len(empty) == 0
    assert empty == Draft.chain([]) == Draft.sequences([]) == Draft.sequences([[], []])
    assert empty.leaf() == ROOT
    assert empty.graft(ROOT, empty) == empty
    assert empty.subtree(ROOT) == empty
    assert list(empty.children(ROOT)) == []
    chain = Draft.chain([1, 2])
    assert chain.graft(1, empty) == chain
    assert empty.graft(ROOT, chain) == chain


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [((1,), ()), ((1, 2), (ROOT, 1)), ((1,), (0,)), ((1,), (-2,)), ((1, 2), (1, ROOT))],
)
def test_parents_precede_children(tokens, parents) -> None:
    with pytest.raises(AssertionError):
        Draft(tokens, parents)


def test_distributions_go_with_their_tokens() -> None:
    distributions = [Distribution(np.array([i]), np.ones(1)) for i in range(4)]
    tree = Draft.chain([0, 1], distributions[:2]).graft(0, Draft.chain([2, 3], distributions[2:]))
    assert [
        distribution.prob(token)
        for distribution, token in zip(tree.distributions, tree.tokens, strict=True)
    ] == [1] * 4
    below = tree.subtree(0)
    assert [
        distribution.prob(token)
        for distribution, token in zip(below.distributions, below.tokens, strict=True)
    ] == [1] * 3
    with pytest.raises(AssertionError):
        Draft.chain([0], distributions[:1]).graft(0, Draft.chain([1]))
    with pytest.raises(AssertionError):
        Draft.chain([0, 1], distributions[:1])


# --- verification


@dataclass(frozen=True)
class DrawnScores:
    """A target that draws ``drawn[row]``, by the margin ``margins[row]``."""

    drawn: tuple[int, ...]
    margins: tuple[float, ...]

    @property
    def num_rows(self) -> int:
        return len(self.drawn)

    def draw(self, row: int) -> Draw:
        assert 0 <= row < self.num_rows
        return Draw(self.drawn[row], self.margins[row])

    def distribution(self, row: int) -> Distribution:
        raise AssertionError("keyed verification needs no distributions")


@proven
@given(trees(), st.data())
def test_the_longest_path_along_the_draws_is_accepted(tree: Draft, data) -> None:
    num_rows = data.draw(st.integers(0, len(tree) + 1))
    drawn = data.draw(st.lists(st.integers(0, 5), min_size=num_rows, max_size=num_rows))
    margins = data.draw(st.lists(st.floats(0, 9), min_size=num_rows, max_size=num_rows))
    verdict = verify(tree, DrawnScores(tuple(drawn), tuple(margins)))

    # a node lies on the draws' path when each token down to it is drawn from the row above it
    def is_drawn(node: int) -> bool:
        path = [ROOT, *tree.path(node)]
        return all(
            above + 1 < num_rows and drawn[above + 1] == tree.tokens[below]
            for above, below in pairwise(path)
        )

    end = max(
        (n for n in range(len(tree)) if is_drawn(n)), key=lambda n: len(tree.path(n)), default=ROOT
    )
    assert verdict.end == end
    assert list(verdict.accepted) == tree.path_tokens(end)
    is_scored = end + 1 < num_rows
    assert verdict.final == (drawn[end + 1] if is_scored else None)
    assert list(verdict.tokens) == tree.path_tokens(end) + ([drawn[end + 1]] if is_scored else [])
    rows_read = [n + 1 for n in (ROOT, *tree.path(end)) if n + 1 < num_rows]
    assert verdict.margin == min((margins[row] for row in rows_read), default=math.inf)


def test_a_walk_that_leaves_what_was_scored_ends_without_a_final_token() -> None:
    tree = Draft.chain([1, 2, 3])
    verdict = verify(tree, DrawnScores((1, 2), (0.5, 0.25)))
    assert verdict.accepted == (1, 2)
    assert verdict.end == 1
    assert verdict.final is None
    assert verdict.tokens == (1, 2)
    assert verdict.margin == 0.25


def test_an_empty_draft_gives_the_targets_own_token() -> None:
    verdict = verify(Draft(), DrawnScores((4,), (0.5,)))
    assert verdict.accepted == ()
    assert verdict.end == ROOT
    assert verdict.tokens == (4,)
