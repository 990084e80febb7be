"""One tree from all sources: the likeliest nodes, parents first, and what verdicts teach."""

from __future__ import annotations

import pytest
from fakes.decoding import GivenSource, Path, proven, selected
from fakes.oracles import JointMixer, learn, proposer, without
from hypothesis import given
from hypothesis import strategies as st

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT
from duodec.planning.acceptance import Acceptance
from duodec.planning.mixing import Mixer
from duodec.planning.selection import Selection
from duodec.planning.sources import StoredSource, TreeSource

LEAST = 1e-3  # likelihood of a candidate that is worth a row


@st.composite
def sources(draw) -> GivenSource:
    """A source of few tokens, so that several meet. Likelihoods are exact in binary."""
    table: dict[Path, list[tuple[int, float]]] = {}
    paths: list[Path] = [()]
    for _ in range(draw(st.integers(0, 4))):
        path = draw(st.sampled_from(paths))
        tokens = draw(st.lists(st.integers(0, 2), unique=True, max_size=3))
        table[path] = [(t, draw(st.sampled_from([0.125, 0.25, 0.5, 0.75, 1.0]))) for t in tokens]
        paths += [(*path, token) for token in tokens]
    return GivenSource(table)


some_sources = st.lists(sources(), min_size=1, max_size=3)


def merged(sources: list[GivenSource], depth: int) -> dict[Path, float]:
    """The value of every path that any source proposes: along it, that any of them is right."""
    values: dict[Path, float] = {(): 1.0}
    level: list[Path] = [()]
    for _ in range(depth):
        below: list[Path] = []
        for path in level:
            none: dict[int, float] = {}
            for source in sources:
                for token, likelihood in source.table.get(path, ()):
                    none[token] = none.get(token, 1.0) * (1.0 - likelihood)
            for token, wrong in none.items():
                if values[path] * (1.0 - wrong) >= LEAST:
                    values[(*path, token)] = values[path] * (1.0 - wrong)
                    below.append((*path, token))
        level = below
    del values[()]
    return values


def paths(selection: Selection) -> list[Path]:
    draft = selection.draft(len(selection.tokens))
    return [tuple(draft.path_tokens(node)) for node in range(len(draft))]


@proven
@given(some_sources, st.integers(0, 12), st.integers(0, 5))
def test_the_likeliest_nodes_of_all_sources_are_found(given, num_tokens, depth) -> None:
    wanted = merged(given, depth)
    selection = selected(*given, num_tokens=num_tokens, depth=depth)
    found = paths(selection)
    assert len(set(found)) == len(found) == min(num_tokens, len(wanted))
    assert [wanted[path] for path in found] == selection.values
    assert selection.values == sorted(wanted.values(), reverse=True)[: len(found)]
    for node, parent in enumerate(selection.parents):
        assert parent < node
    for num in range(len(found) + 1):
        assert len(selection.draft(num)) == num


@proven
@given(some_sources, st.integers(0, 6), st.integers(0, 5))
def test_without_branches_the_likeliest_child_follows(given, num_tokens, depth) -> None:
    wanted = merged(given, depth)
    selection = selected(*given, num_tokens=num_tokens, depth=depth, has_branches=False)
    assert selection.parents == list(range(-1, len(selection.tokens) - 1))
    path: Path = ()
    for token, value in zip(selection.tokens, selection.values, strict=True):
        children = [wanted[p] for p in wanted if p[:-1] == path]
        assert value == wanted[(*path, token)] == max(children)
        path = (*path, token)
    goes_on = any(p[:-1] == path for p in wanted)
    assert not goes_on or len(path) == num_tokens


def test_the_reach_is_the_likelihood_of_the_next_token() -> None:
    assert selected(GivenSource()).reach == 0.0
    assert selected(GivenSource({(): [(1, 0.5), (2, 0.25)]})).reach == 0.75
    two = GivenSource({(): [(1, 0.5)]}), GivenSource({(): [(1, 0.5), (2, 0.5)]})
    assert selected(*two).reach == 1.0  # 0.75 and 0.5, that cannot be
    assert selected(*two, num_tokens=0).reach == 0.0


def test_a_source_is_asked_along_the_tokens_of_others() -> None:
    """What one source proposes, another may know how to go on from."""
    first = GivenSource({(): [(1, 0.9)]})
    second = GivenSource({(1,): [(2, 0.8)], (1, 2): [(3, 0.7)]})
    assert paths(selected(first, second)) == [(1,), (1, 2), (1, 2, 3)]


def test_a_source_that_stays_behind_is_asked_no_more() -> None:
    """A tree has no place for a token that it did not propose."""
    tree = CandidateTree()
    tree.expand(ROOT, [1], [0.5])
    tree.expand(0, [2], [0.5])
    own = TreeSource(tree, Acceptance())
    other = GivenSource({(): [(7, 0.9)], (7,): [(8, 0.9)]})
    assert set(paths(selected(own, other))) == {(1,), (1, 2), (7,), (7, 8)}  # type: ignore[arg-type]


def test_the_draft_model_proposed_the_first_tokens_of_a_path() -> None:
    tree = CandidateTree()
    tree.expand(ROOT, [1], [0.5])
    tree.expand(0, [2], [0.5])
    own = TreeSource(tree, Acceptance())
    tree.expand(1, [3], [0.5])  # too late for what was selected
    lengths = [own.num_along(path) for path in ((), (1,), (1, 2), (1, 2, 3), (1, 9, 2), (9,))]
    assert lengths == [0, 1, 2, 2, 1, 0]


# --- what verdicts teach


def values_of(mixer: Mixer, *sources: GivenSource) -> dict[Path, float]:
    selection = selected(*sources, mixer=mixer)
    return dict(zip(paths(selection), selection.values, strict=True))


def test_two_that_agree_become_worth_more_than_one_as_sure() -> None:
    mixer = Mixer()
    draft, other = GivenSource({(): [(5, 0.5), (6, 0.75)]}), GivenSource({(): [(5, 0.5)]})
    joint = values_of(JointMixer(), draft, other)
    assert joint[5,] == joint[6,] == 0.75
    for _ in range(60):
        learn(selected(draft, other, mixer=mixer), [5])
    soon = values_of(mixer, draft, other)
    assert soon[5,] > 3 * soon[6,]
    for _ in range(340):
        learn(selected(draft, other, mixer=mixer), [5])
    after = values_of(mixer, draft, other)
    assert after[5,] > 0.9
    assert after[6,] < 0.15


def test_before_anything_is_learned_a_rival_makes_a_token_less_likely() -> None:
    draft = GivenSource({(): [(5, 0.6)]})
    found = [
        values_of(Mixer(), draft, GivenSource({(): others}))[5,]
        for others in ([], [(6, 0.3)], [(6, 0.7)])
    ]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 3


def test_what_a_path_is_worth_without_a_source() -> None:
    first = GivenSource({(): [(1, 0.5)], (1,): [(2, 0.5)], (1, 2): [(3, 0.5)]})
    second = GivenSource({(): [(1, 0.5)], (1,): [(7, 0.5)], (1, 2): [(3, 0.75)]}, is_open=True)
    selection = selected(first, second)
    assert without(selection, second, [1, 2, 3, 4]) == [0.5, 0.25, 0.125]
    assert without(selection, first, [1, 2, 3]) == [0.5]
    assert without(selection, first, [1, 7]) == [0.5, 0.25]
    assert without(selection, first, []) == []


def test_where_the_draft_model_proposes_other_tokens_a_source_is_judged_apart() -> None:
    mixer = Mixer()
    draft, other = GivenSource({(): [(5, 0.6)]}), GivenSource({(): [(6, 0.75)]})
    for _ in range(60):
        learn(selected(draft, other, mixer=mixer), [5])
    where_it_proposes = values_of(mixer, draft, other)[6,]
    assert where_it_proposes < 0.15
    assert values_of(mixer, GivenSource(), other)[6,] > 5 * where_it_proposes


def test_labels_that_are_always_the_same_do_not_run_away() -> None:
    """A source that was right a thousand times is still believed to be wrong once it is."""
    mixer, sure = Mixer(), GivenSource({(): [(5, 0.9)]})
    for _ in range(1000):
        learn(selected(sure, mixer=mixer), [5])
    believed = values_of(mixer, sure)[5,]
    assert 0.95 < believed < 1.0
    assert max(map(abs, mixer.weights)) < 10.0
    for _ in range(200):
        learn(selected(sure, mixer=mixer), [7])
    assert values_of(mixer, sure)[5,] < 0.2


def test_labels_are_given_along_the_text_only() -> None:
    table = {(): [(1, 0.9), (2, 0.5)], (1,): [(3, 0.9)], (2,): [(4, 0.9)], (1, 3): [(6, 0.9)]}
    source, other = GivenSource(table), GivenSource({(1,): [(3, 0.5)]})
    learn(selected(source, other), [1, 3, 5, 6])
    assert source.observed == [((), 1), ((1,), 3), ((1, 3), 5)]
    assert other.observed == source.observed


def test_nothing_is_learned_of_what_was_not_looked_at() -> None:
    source = GivenSource({(): [(1, 0.9)], (1,): [(2, 0.9)], (1, 2): [(3, 0.9)]})
    shallow = selected(source, depth=1)
    learn(shallow, [1, 2, 3])
    assert source.observed == [((), 1)]
    assert shallow.num_labelled == 1
    source.observed.clear()
    learn(selected(source, num_tokens=0), [1])
    assert source.observed == []


def test_a_label_is_given_where_a_token_was_known_but_not_selected() -> None:
    """The acceptance of all candidates is learned, not of the best ones alone."""
    source = GivenSource({(): [(1, 0.9), (2, 0.1)]})
    mixer = Mixer()
    for _ in range(60):
        selection = selected(source, num_tokens=1, mixer=mixer)
        assert paths(selection) in ([(1,)], [(2,)])
        learn(selection, [2])
    assert values_of(mixer, source)[2,] > 0.8


def test_how_often_text_alone_was_right_is_counted() -> None:
    draft = GivenSource({(): [(1, 0.5), (2, 0.5)], (1,): [(3, 0.5)]})
    other = GivenSource({(): [(1, 0.5)], (1,): [(4, 0.5)]})

    def counts(*tokens: int) -> tuple[int, int]:
        selection = selected(draft, other)
        learn(selection, tokens)
        return selection.num_labelled, selection.num_without_draft

    assert counts(1) == (1, 1)  # both
    assert counts(2) == (1, 0)  # the draft model alone
    assert counts(9) == (1, 0)  # nobody
    assert counts(1, 4) == (2, 2)
    assert counts(1, 3) == (2, 1)
    assert counts() == (0, 0)


@pytest.mark.parametrize("learns", [True, False], ids=["datastore", "draft model"])
def test_a_sources_acceptance_is_learned_from_what_it_proposed(learns: bool) -> None:
    """But for the draft model's, which is learned from its whole tree, elsewhere."""
    tree, acceptance = CandidateTree(), Acceptance()
    tree.expand(ROOT, [1, 2], [0.75, 0.25])
    stored = StoredSource((1, 2), (ROOT, ROOT), (0.75, 0.25), acceptance)
    source = stored if learns else TreeSource(tree, acceptance)
    for _ in range(60):
        learn(selected(GivenSource(), source), [2])  # type: ignore[arg-type]
    assert (acceptance.estimate(0.25, 1) > 0.9) is learns
    assert (acceptance.estimate(0.75, 0) < 0.1) is learns
    likelihoods = [p for _, p, _ in proposer(source).successors(ROOT, 0.0)]
    assert likelihoods == [acceptance.estimate(0.75, 0), acceptance.estimate(0.25, 1)]
