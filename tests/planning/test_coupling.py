"""Sampled tokens are foreseen by their noise, which seed, position and token alone decide."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from fakes.decoding import FakeClock, FixedBudget, GivenSource, Session, decode_rounds, selected
from fakes.oracles import likely_of_row, likely_of_texts

from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams
from duodec.core.targets import NUM_CANDIDATES, Candidates, Query
from duodec.drafting import constants
from duodec.methods.stream import Stream
from duodec.planning.coupling import Coupling
from duodec.planning.sources import TextMemory, TextSources
from duodec.testing import TableModel, TableTarget

MODEL = TableModel(num_vocab=NUM_CANDIDATES, seed=3)
TEXT = np.array([1, 5, 2], dtype=np.int32)


def sampler(temperature: float, seed: int = 0, choice: int = 0) -> Sampler:
    return Sampler(SamplingParams(temperature=temperature, seed=seed), choice)


def text_of(length: int) -> np.ndarray:
    """One that the table goes on from as from `TEXT`."""
    return np.concatenate([np.zeros(length - len(TEXT), dtype=np.int32), TEXT])


@pytest.mark.parametrize("temperature", [1e-4, 0.3, 0.7, 1.0, 1.5])
def test_a_row_that_is_known_says_what_will_be_drawn(temperature: float) -> None:
    row = MODEL.logits(Context(TEXT))
    known = Candidates.of(row, NUM_CANDIDATES)
    drawn = set()
    for seed in range(20):
        for length in (len(TEXT), 40, 41):
            own = sampler(temperature, seed, choice=seed % 3)
            coupling = Coupling(own, length)
            found = likely_of_row(coupling, known.tokens, known.confidences, 0)
            token = known.tokens[found[0][0]]
            assert token == own.draw(row, Context(text_of(length))).token
            assert sorted(i for i, _ in found) == list(range(NUM_CANDIDATES))
            sure = [confidence for _, confidence in found]
            assert sure == sorted(sure, reverse=True)
            assert sum(sure) == pytest.approx(1)
            drawn.add(token)
    assert len(drawn) > 1 or temperature < 0.7


def test_deeper_tokens_have_the_noise_of_their_own_position() -> None:
    known = Candidates.of(MODEL.logits(Context(TEXT)), NUM_CANDIDATES)
    one, two = Coupling(sampler(1.0), 10), Coupling(sampler(1.0), 14)
    assert likely_of_row(one, *known, 7) == likely_of_row(two, *known, 3)
    assert likely_of_row(one, *known, 7) != likely_of_row(one, *known, 3)


@pytest.mark.parametrize(("likely", "same"), [(0.9, 0.97), (0.5, 0.78), (0.15, 0.51)])
def test_what_followed_is_likelier_where_its_noise_is_high(likely: float, same: float) -> None:
    """As often as it is expected: in all, and where it is expected to be likely or unlikely. A text
    goes on in the same way, where the token is as likely as ``same``, or otherwise altogether."""
    assert same == pytest.approx(likely**constants.NOISE_POWER, abs=0.01)
    dice = np.random.default_rng(0)
    row = np.log(np.array([same, *[(1 - same) / 7] * 7], dtype=np.float32))
    expected, right = [], []
    for seed in range(4000):
        own = sampler(1.0, seed)
        expected += likely_of_texts(Coupling(own, len(TEXT)), [0], [likely], 0)
        goes_on = dice.random() < likely / same
        right.append(goes_on and own.draw(row, Context(TEXT)).token == 0)
    is_right, sure = np.array(right), np.array(expected)
    assert sure.mean() == pytest.approx(likely, abs=0.02)
    edges = np.quantile(sure, [0, 0.1, 0.3, 0.6, 1])
    for low, high in pairwise(edges):
        part = (sure >= low) & (sure <= high)
        error = 2.5 / part.sum() ** 0.5  # five deviations at most
        assert is_right[part].mean() == pytest.approx(sure[part].mean(), abs=error)
    assert edges[1] < 0.97 * likely, "something is known in advance"


@pytest.mark.parametrize("likelihood", [0.0, 1e-40, 1e-9, 1.0])
def test_likelihoods_stay_likelihoods(likelihood: float) -> None:
    for seed in range(50):
        (found,) = likely_of_texts(Coupling(sampler(1.0, seed), 9), [3], [likelihood], 0)
        assert 0 <= found <= 1
        found = likely_of_row(
            Coupling(sampler(1e-5, seed), 9), [3, 4], [likelihood, likelihood / 2], 0
        )
        assert sum(sure for _, sure in found) == pytest.approx(1)


def rows_of(memory: TextMemory, *tokens: int) -> None:
    """The row after each of these tokens is known."""
    for token in tokens:
        text = np.array([7, token], dtype=np.int32)
        query = Query(0, text, num_candidates=NUM_CANDIDATES)
        memory.rows.of("").add((7, token), TableTarget(MODEL).score([query])[0].candidates(0))


def test_sources_of_a_sampled_text_propose_its_draws_first() -> None:
    memory = TextMemory()
    rows_of(memory, *range(NUM_CANDIDATES))
    firsts = set()
    for seed in range(30):
        own, text = sampler(0.9, seed), np.array([3, 7, 4], dtype=np.int32)
        texts = TextSources(memory, text, sampler=own)
        found = selected(GivenSource({}), *texts.sources(text), num_tokens=1)
        drawn = own.draw(MODEL.logits(Context(text)), Context(text)).token
        assert found.tokens == [drawn]
        rows = selected(GivenSource({}), texts.rows(text), num_tokens=1)  # type: ignore[arg-type]
        assert rows.tokens == [drawn]
        firsts.add(drawn)
    assert len(firsts) > 1


def test_a_greedy_text_has_no_noise() -> None:
    memory, text = TextMemory(), np.array([3, 7, 4], dtype=np.int32)
    rows_of(memory, 4)
    found = []
    for own in (None, Sampler(), sampler(0.0, 1), sampler(0.0, 2)):
        texts = TextSources(memory, text, sampler=own)
        selection = selected(GivenSource({}), *texts.sources(text))
        found.append((selection.tokens, selection.values))
    assert found.count(found[0]) == len(found)


@pytest.mark.parametrize("temperature", [0.7, 1.2])
def test_fewer_forward_passes_are_needed(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of texts over a table, by what was scored before, without any draft model."""

    def passes() -> tuple[list[int], int]:
        model, stream = replace(MODEL, num_vocab=24, seed=9), Stream()
        tokens, num = [], 0
        for seed in range(4):
            session = Session(
                TableTarget(model), (6, 5, 3), 120, costs=FixedBudget(6), clock=FakeClock(),
                sampler=sampler(temperature, seed),
            )  # fmt: skip
            for done in decode_rounds(stream, session):
                tokens += done.tokens
                num += 1
        return tokens, num

    coupled, num_coupled = passes()
    monkeypatch.setattr(TextSources, "_coupling", lambda self, position: None)
    plain, num_plain = passes()
    assert coupled == plain, "the text is the target's whoever foresees it"
    assert num_coupled < 0.8 * num_plain


def test_a_draft_that_is_empty_is_judged() -> None:
    memory, text = TextMemory(), np.array([3], dtype=np.int32)
    memory.rows.of("").add((3,), Candidates())
    texts = TextSources(memory, text, sampler=sampler(1.0))
    assert selected(GivenSource({}), *texts.sources(text)).draft(4) == Draft()
    assert not selected(GivenSource({}), texts.rows(text)).tokens  # type: ignore[arg-type]
