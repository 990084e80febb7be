"""What rows that the target scored are remembered for: the longest context that is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from fakes.decoding import (
    PROMPT,
    FakeClock,
    FixedBudget,
    GivenSource,
    ListedTexts,
    Session,
    decode,
    decode_rounds,
    plain_text,
    proven,
    selected,
)
from fakes.oracles import learn, proposer
from hypothesis import given
from hypothesis import strategies as st

from duodec.core.draft import ROOT, Draft
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Candidates, Query, Scores, Target
from duodec.core.verify import verify
from duodec.drafting.recycling import MAX_ORDER, NUM_CANDIDATES, RecycledRows
from duodec.methods.registry import method
from duodec.methods.stream import Stream
from duodec.planning.acceptance import Acceptance
from duodec.planning.sources import MatchHistory, MatchSource, RowSource, TextMemory, TextSources
from duodec.testing import TableModel, TableTarget

MODEL = TableModel(num_vocab=24, seed=9)


def match(
    draft: Draft, shares: tuple[float, ...], length: int, history: MatchHistory
) -> MatchSource:
    return MatchSource(draft.tokens, draft.parents, shares, length, history)


def only(token: int) -> Candidates:
    return Candidates((token,), (1.0,))


# --- what followed the same words


def learned() -> MatchHistory:
    """As in a text where matches of one token are wrong and longer ones right."""
    history = TextMemory().own_matches
    copied = Draft.chain(range(12))
    for _ in range(40):
        source = proposer(match(copied, (1.0,) * 12, 1, history))
        source.observe(ROOT, 99)
        for node in range(11):
            source.observe(node, node + 1)
    return history


def likelihoods(source: MatchSource) -> list[float]:
    """By depth, of a chain."""
    states = [ROOT, *range(11)]
    return [proposer(source).successors(state, 0.0)[0][1] for state in states]


def test_a_match_that_goes_on_counts_as_the_longer_match_it_becomes() -> None:
    history = learned()
    short = likelihoods(match(Draft.chain(range(12)), (1.0,) * 12, 1, history))
    assert short[0] < 0.1
    assert all(likelihood > 0.85 for likelihood in short[1:])
    # after four matched tokens, as the fourth token after one
    longer = likelihoods(match(Draft.chain(range(12)), (1.0,) * 12, 4, history))
    assert longer[:8] == pytest.approx(short[3:11])


def test_before_anything_is_learned_longer_matches_are_expected_to_be_right_more_often() -> None:
    """And those in the text itself more often than those in earlier completions."""
    firsts = []
    for history in (TextMemory().own_matches, TextMemory().earlier_matches):
        found = likelihoods(match(Draft.chain(range(12)), (1.0,) * 12, 1, history))
        assert found == sorted(found)
        firsts.append(found[0])
    assert firsts == pytest.approx([0.4, 0.2])


def test_a_token_is_worth_its_share_of_the_places_of_its_parent() -> None:
    tree = Draft((5, 6, 7), (ROOT, ROOT, 0))
    source = proposer(match(tree, (0.75, 0.25, 0.375), 1, TextMemory().own_matches))
    (first, p_first, at_first), (second, p_second, _) = source.successors(ROOT, 0.0)
    assert (first, second) == (5, 6)
    assert p_first == pytest.approx(3 * p_second)
    assert source.successors(at_first, 0.0) == [(7, pytest.approx(0.6 * 0.5), 2)]


def test_a_copy_after_one_known_token_is_offered_as_a_whole() -> None:
    text = np.array([*range(1, 30), 40, 1], dtype=np.int32)
    sources = TextSources(TextMemory(), text)
    sources.read(text)
    found = selected(GivenSource({}), *sources.sources(text), num_tokens=16, depth=24)
    assert found.tokens == list(range(2, 18))


# --- rows by context


def test_the_longest_known_context_is_taken() -> None:
    rows = RecycledRows()
    rows.add((3,), only(10))
    rows.add((2, 3), only(11))
    rows.add((1, 2, 3), only(12))
    assert rows.longest((1, 2, 3)) == (3, only(12))
    assert rows.longest((0, 1, 2, 3)) == (3, only(12))  # its last three tokens count
    assert rows.longest((9, 2, 3)) == (2, only(12))  # the latest of those that end so
    assert rows.longest((9, 3)) == (1, only(12))
    assert rows.longest((3,)) == (1, only(12))
    assert rows.longest((9,)) is None
    assert rows.longest(()) is None


def test_the_latest_row_takes_the_place_of_earlier_ones() -> None:
    rows = RecycledRows()
    rows.add((1, 2, 3), only(10))
    rows.add((7, 2, 3), only(11))
    assert rows.longest((1, 2, 3)) == (3, only(10))
    assert rows.longest((2, 3)) == (2, only(11))
    rows.add((1, 2, 3), only(12))
    assert rows.longest((1, 2, 3)) == (3, only(12))
    assert rows.longest((2, 3)) == (2, only(12))
    assert len(rows) == 1 + 1 + 2


def test_longer_contexts_are_bounded_and_those_of_one_token_kept() -> None:
    rows = RecycledRows(max_contexts=4)
    for i in range(10):
        rows.add((100 + i, 200 + i, 300 + i), only(i))
    assert len(rows) == 10 + 4 + 4
    for i in range(10):
        order, candidates = rows.longest((100 + i, 200 + i, 300 + i)) or (0, Candidates())
        assert order == (3 if i >= 6 else 1)
        assert candidates == only(i)


def test_a_row_that_is_seen_again_is_not_the_next_to_be_forgotten() -> None:
    rows = RecycledRows(max_contexts=3)
    for context in ((1, 2), (3, 4), (1, 2), (5, 6), (7, 8)):
        rows.add(context, only(0))
    found = [rows.longest(context) for context in ((1, 2), (3, 4), (5, 6), (7, 8))]
    assert [order for order, _ in filter(None, found)] == [2, 1, 2, 2]


@proven
@given(st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(0, 9))))
def test_rows_are_found_as_by_a_search_of_all(added: list[tuple[list[int], int]]) -> None:
    rows = RecycledRows()
    for context, token in added:
        rows.add(tuple(context), only(token))
    for context, _ in added:
        wanted = None
        for order in range(1, min(MAX_ORDER, len(context)) + 1):
            for other, token in added:
                if len(other) >= order and other[-order:] == context[-order:]:
                    wanted = order, only(token)
        assert rows.longest(tuple(context)) == wanted


def test_a_source_of_rows_goes_on_along_its_own_tokens() -> None:
    rows = RecycledRows()
    rows.add((1, 2, 3), Candidates((4, 5), (0.75, 0.25)))
    rows.add((2, 3, 4), Candidates((6,), (1.0,)))
    rows.add((5,), Candidates((7,), (1.0,)))
    source = RowSource(rows, [Acceptance() for _ in range(MAX_ORDER)], (1, 2, 3))
    selection = selected(GivenSource(), source, depth=2)  # type: ignore[arg-type]
    draft = selection.draft(9)
    found = {tuple(draft.path_tokens(n)): selection.values[n] for n in range(len(draft))}
    assert found == {(4,): 0.75, (4, 6): 0.75, (5,): 0.25, (5, 7): 0.25}


def test_a_source_of_rows_learns_by_the_length_of_the_context() -> None:
    rows, acceptance = RecycledRows(), [Acceptance() for _ in range(MAX_ORDER)]
    rows.add((1, 2, 3), Candidates((4, 5), (0.75, 0.25)))
    for _ in range(60):
        source = RowSource(rows, acceptance, (1, 2, 3))
        learn(selected(GivenSource(), source), [5])  # type: ignore[arg-type]
    assert acceptance[2].estimate(0.25, 1) > 0.9
    assert acceptance[2].estimate(0.75, 0) < 0.1
    assert acceptance[1].estimate(0.25, 1) == acceptance[0].estimate(0.25, 1) == 0.25
    longest = proposer(RowSource(rows, acceptance, (1, 2, 3))).successors((1, 2, 3), 0.0)
    shorter = proposer(RowSource(rows, acceptance, (9, 2, 3))).successors((9, 2, 3), 0.0)
    assert [token for token, _, _ in longest] == [token for token, _, _ in shorter] == [4, 5]
    assert longest[0][1] < 0.1
    assert shorter[0][1] == 0.75


def test_tokens_without_confidences_are_expected_by_their_rank() -> None:
    rows, acceptance = RecycledRows(), [Acceptance() for _ in range(MAX_ORDER)]
    rows.add((3,), Candidates((4, 5)))
    source = proposer(RowSource(rows, acceptance, (3,)))
    first, second = source.successors((3,), 0.0)
    assert 1 > first[1] > second[1] > 0
    for _ in range(60):
        source.observe((3,), 5)
    assert source.successors((3,), 0.0)[1][1] > 0.9


# --- every row teaches


@dataclass
class Noted(Target):
    """Notes the context of every row that it scores, by whether it is on the verdict's path."""

    model: TableModel
    on_path: list[tuple[int, ...]] = field(default_factory=list)
    refused: list[tuple[int, ...]] = field(default_factory=list)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        scores = TableTarget(self.model).score(queries)
        for query, answer in zip(queries, scores, strict=True):
            path = [ROOT, *query.draft.path(verify(query.draft, answer).end)]
            for node in range(ROOT, len(query.draft)):
                context = (*query.text.tolist(), *query.draft.path_tokens(node))[-MAX_ORDER:]
                (self.on_path if node in path else self.refused).append(context)
        return scores


def scored(text: Sequence[int], draft: Draft) -> tuple[np.ndarray, Scores]:
    query = Query(0, np.array(text, dtype=np.int32), draft, num_candidates=NUM_CANDIDATES)
    return query.text, TableTarget(MODEL).score([query])[0]


def known_after(model: TableModel, context: Sequence[int]) -> Candidates:
    (scores,) = TableTarget(model).score(
        [Query(0, np.array(context, dtype=np.int32), num_candidates=NUM_CANDIDATES)]
    )
    return scores.candidates(0)


def test_refused_rows_teach_too() -> None:
    """`stream` over a table that looks back two tokens: whatever was scored is known after."""
    target, stream = Noted(MODEL), Stream()
    for prompt in (PROMPT, (*PROMPT, 7)):
        session = Session(target, prompt, len(prompt) + 40, costs=FixedBudget(6), clock=FakeClock())
        list(decode_rounds(stream, session))
    assert len(target.refused) > 20
    for context in [*target.on_path, *target.refused]:
        order, candidates = stream.memory.rows.of("").longest(context) or (0, Candidates())
        assert order == MAX_ORDER
        assert candidates == known_after(MODEL, context)


DRAFT = Draft.sequences([[1, 2], [3, 4]])


@pytest.mark.parametrize("is_accepted", [True, False])
def test_as_many_rows_teach_as_there_is_time_for(is_accepted: bool) -> None:
    """First the end of the path, then what is before it, then rows that were refused."""
    clock = FakeClock()

    @dataclass(frozen=True)
    class Slow:
        scores: Scores

        @property
        def num_rows(self) -> int:
            return self.scores.num_rows

        def keep(self, row: int) -> Callable[[], Candidates]:
            clock.advance(1.0)
            return self.scores.keep(row)

    text, scores = scored(PROMPT, DRAFT)
    contexts = [(6, 5, 3), (5, 3, 1), (3, 1, 2), (5, 3, 3), (3, 3, 4)]
    end = 3 if is_accepted else ROOT

    def known(budget_s: float) -> list[int]:
        memory = TextMemory()
        sources = TextSources(memory, text)
        sources.learn(
            sources.lessons(text, DRAFT, Slow(scores), end, clock=clock, budget_s=budget_s)  # type: ignore[arg-type]
        )
        found = [memory.rows.of("").longest(context) for context in contexts]
        return [row for row, entry in enumerate(found) if entry and entry[0] == MAX_ORDER]

    path = [0, 3, 4] if is_accepted else [0]
    assert known(0.0) == path[-1:]  # one at least
    for num in range(1, len(path) + 1):
        assert known(num + 0.5) == path[-num:]
    assert set(known(len(path) + 1.5)) == {*path, 1}
    assert known(math.inf) == [0, 1, 2, 3, 4]


def test_rows_that_are_kept_teach_the_same_when_they_are_found_later() -> None:
    @dataclass(frozen=True)
    class Kept:
        scores: Scores

        @property
        def num_rows(self) -> int:
            return self.scores.num_rows

        def keep(self, row: int) -> Callable[[], Candidates]:
            def find() -> Candidates:
                found.append(row)
                return self.scores.candidates(row)

            return find

    text, scores = scored(PROMPT, DRAFT)
    at_once, later, found = TextMemory(), TextMemory(), list[int]()
    TextSources(at_once, text).learn(TextSources(at_once, text).lessons(text, DRAFT, scores, 3))
    lessons = TextSources(later, text).lessons(text, DRAFT, Kept(scores), 3)  # type: ignore[arg-type]
    assert not found
    TextSources(later, text).learn(lessons)
    assert found == [0, 3, 4, 1, 2]  # of the path a later row replaces an earlier one
    for context in [(6, 5, 3), (5, 3, 1), (3, 1, 2), (5, 3, 3), (3, 3, 4)]:
        found_later, found_at_once = (one.rows.of("").longest(context) for one in (later, at_once))
        assert found_later == found_at_once is not None


def test_scores_without_candidates_teach_nothing_and_break_nothing() -> None:
    text = np.array(PROMPT, dtype=np.int32)
    (scores,) = TableTarget(MODEL).score([Query(0, text, DRAFT)])
    memory = TextMemory()
    sources = TextSources(memory, text)
    sources.learn(sources.lessons(text, DRAFT, scores))
    assert len(memory.rows.of("")) == 0


def test_a_token_that_was_accepted_but_not_scored_teaches_nothing() -> None:
    text, scores = scored(PROMPT, Draft.chain([1]))
    memory = TextMemory()
    sources = TextSources(memory, text)
    sources.learn(sources.lessons(text, Draft.chain([1, 2]), scores, 1))
    assert memory.rows.of("").longest((1, 2)) is None
    assert memory.rows.of("").longest((3, 1)) is not None


# --- a datastore


def test_a_datastore_is_a_source_whose_acceptance_is_its_own() -> None:
    store = ListedTexts([[6, 5, 3, 11, 12], [5, 3, 11, 13], [5, 3, 11, 13]])
    text = np.array(PROMPT, dtype=np.int32)  # it ends with 6, 5, 3
    memory = TextMemory()

    def values() -> dict[tuple[int, ...], float]:
        sources = TextSources(memory, text[:0], store).sources(text)
        selection = selected(GivenSource(), *sources)  # type: ignore[arg-type]
        draft = selection.draft(len(selection.tokens))
        learn(selection, [9])
        return {tuple(draft.path_tokens(n)): selection.values[n] for n in range(len(draft))}

    assert values()[(11,)] > 0.9
    for _ in range(60):
        known = values()
    assert known.get((11,), 0.0) < 0.2
    assert sum(memory.stored.num_right) < 0.1 * sum(memory.stored.num_seen)
    assert TextMemory().stored.covered()[-1] > 0.5


# --- what is remembered makes drafts


@pytest.mark.parametrize("name", ["stream", "recycling"])
def test_rows_of_one_completion_draft_for_another(name: str) -> None:
    """Of another prompt: no text is repeated, but the table says the same after a context."""
    model = TableModel(num_vocab=6, order=2, seed=5)
    params = SamplingParams(temperature=0.7, seed=3)
    learned, num_rounds = method(name), []
    for prompt in ((1, 2), (3, 4), (5, 0)):
        sampler = Sampler(params, 0, len(prompt))
        session = Session(TableTarget(model), prompt, 62, sampler=sampler, costs=FixedBudget(6))
        num_rounds.append(len(list(decode_rounds(learned, session))))
        assert session.text[2:].tolist() == plain_text(model, params, 60, prompt)
    _, fresh = decode(name, target=TableTarget(model), params=params, num_tokens=60, prompt=(5, 0))
    assert num_rounds[2] < len(fresh)
