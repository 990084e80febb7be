"""Samplers against a slow oracle in float64, and the keyed draw against a draw without pruning.

The oracle follows transformers' warpers, one after the other, over whole rows. Where it cannot
say which side of a boundary fp32 falls on, it says so and nothing is compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from fakes.decoding import chi_square_limit, proven
from hypothesis import assume, given
from hypothesis import strategies as st

from duodec.core.rows import log_normaliser, top
from duodec.core.sampling import noise
from duodec.core.sampling.grammar import GrammarEnded, NoEndBefore
from duodec.core.sampling.sampler import Context, Distribution, Sampler, SamplingParams
from duodec.errors import BadOption

# --- the oracle


def adjusted(row: np.ndarray, context: Context, sampler: Sampler) -> np.ndarray:
    """Bias, repetition penalty (transformers), presence and frequency penalties (OpenAI)."""
    p, row = sampler.params, row.astype(np.float64)
    for token, bias in p.logit_bias.items():
        row[token] += bias
    tokens = context.tokens().tolist()
    for token in set(tokens):
        row[token] *= p.repetition_penalty if row[token] < 0 else 1 / p.repetition_penalty
    for token, count in Counter(tokens[sampler.num_prompt_tokens :]).items():
        row[token] -= p.frequency_penalty * count + p.presence_penalty
    return row


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


@dataclass(frozen=True)
class OracleDistribution:
    probs: np.ndarray  # (vocab,) float64
    scores: np.ndarray  # (vocab,) logits over temperature
    doubt: float  # how far the nearest boundary is


def oracle(row: np.ndarray, context: Context, sampler: Sampler) -> OracleDistribution:
    p = sampler.params
    logits = adjusted(row, context, sampler)
    if p.temperature == 0:
        best = np.argsort(-logits, kind="stable")[:2]
        probs = np.zeros(len(row))
        probs[best[0]] = 1.0
        return OracleDistribution(probs, logits, float(logits[best[0]] - logits[best[-1]]))
    scores = logits / p.temperature
    order = np.argsort(-scores, kind="stable")
    gaps = [math.inf]
    is_kept = np.ones(len(row), dtype=bool)
    if 0 < p.top_k < len(row):
        is_kept[order[p.top_k :]] = False
        gaps.append(scores[order[p.top_k - 1]] - scores[order[p.top_k]])
    if p.top_p < 1:
        probs = softmax(np.where(is_kept, scores, -np.inf))
        reached = np.cumsum(probs[order])
        num_kept = int((reached < p.top_p).sum()) + 1
        is_kept[order[num_kept:]] = False
        gaps.append(float(np.abs(reached - p.top_p).min()))
    if p.min_p > 0:
        probs = softmax(np.where(is_kept, scores, -np.inf))
        others = probs[is_kept][probs[is_kept] < probs.max()]
        gaps.append(float(np.abs(others / probs.max() - p.min_p).min()) if len(others) else 1.0)
        is_kept &= probs >= p.min_p * probs.max()
    return OracleDistribution(softmax(np.where(is_kept, scores, -np.inf)), scores, min(gaps))


def dense(distribution: Distribution, num_vocab: int) -> np.ndarray:
    probs = np.zeros(num_vocab)
    probs[distribution.tokens] = distribution.probs
    return probs


def context_of(*tokens: int, tail: tuple[int, ...] = ()) -> Context:
    return Context(np.array(tokens or (0,), dtype=np.int32), tail)


def random_row(seed: int, num_vocab: int, spread: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, num_vocab).astype(np.float32)


def shown(params: SamplingParams) -> str:
    """What differs from the defaults."""
    usual = vars(SamplingParams())
    return ",".join(f"{k}={v}" for k, v in vars(params).items() if v != usual[k])


# --- distributions


@st.composite
def situations(draw) -> tuple[np.ndarray, Context, Sampler]:
    num_vocab = draw(st.sampled_from([2, 3, 7, 40, 129, 300, 1000]))
    token = st.integers(0, num_vocab - 1)
    text = draw(st.lists(token, min_size=1, max_size=12))
    tail = draw(st.lists(token, max_size=6))
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 5, 50, 5000])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.2, 0.8, 0.95, 0.999])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.7, -0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.4, -0.3])),
        logit_bias=draw(st.dictionaries(token, st.sampled_from([-100.0, -2.0, 1.5]), max_size=3)),
        seed=draw(st.integers(0, 2**64 - 1)),
    )
    row = random_row(draw(st.integers(0, 2**20)), num_vocab, draw(st.sampled_from([0.5, 3.0])))
    sampler = Sampler(params, draw(st.integers(0, 3)), draw(st.integers(0, len(text))))
    return row, context_of(*text, tail=tuple(tail)), sampler


@proven
@given(situations())
def test_the_distribution_is_the_oracles(situation) -> None:
    row, context, sampler = situation
    before = row.copy()
    wanted = oracle(row, context, sampler)
    assume(wanted.doubt > 3e-5)
    distribution = sampler.distribution(row, context)
    assert np.array_equal(row, before)
    assert (np.diff(distribution.tokens) > 0).all()
    assert distribution.tokens.tolist() == np.flatnonzero(wanted.probs).tolist()
    assert np.abs(dense(distribution, len(row)) - wanted.probs).max() < 1e-5
    assert distribution.probs.sum() == pytest.approx(1, abs=1e-12)


@proven
@given(situations())
def test_the_draw_is_the_best_of_score_and_noise(situation) -> None:
    row, context, sampler = situation
    wanted = oracle(row, context, sampler)
    assume(wanted.doubt > 3e-5)
    best, margin = naive_draw(wanted, context, sampler)
    assume(margin > 1e-4)
    drawn = sampler.draw(row, context)
    assert drawn.token == best
    assert drawn.margin == pytest.approx(margin, abs=1e-4)


def naive_draw(wanted: OracleDistribution, context: Context, sampler: Sampler) -> tuple[int, float]:
    """The winner over the whole row and what it won by, noise made for every token."""
    scores = wanted.scores.copy()
    if sampler.params.temperature > 0:
        key = noise.key(sampler.params.seed, sampler.choice, context.position)
        scores = scores + noise.gumbel(key, np.arange(len(scores)))
        scores[wanted.probs == 0] = -np.inf
    order = np.argsort(-scores, kind="stable")
    margin = scores[order[0]] - scores[order[1]] if len(scores) > 1 else math.inf
    return int(order[0]), float(margin)


def realistic_row(seed: int, num_vocab: int, head: float) -> np.ndarray:
    """A language model's row: a broad bulk, and a few tokens that stand out."""
    generator = np.random.default_rng(seed)
    row = generator.normal(-2.0, 2.2, num_vocab)
    likely = generator.choice(num_vocab, 40, replace=False)
    row[likely] += head + generator.exponential(3.0, 40)
    return row.astype(np.float32)


LARGE = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.95),
    SamplingParams(temperature=1.2, top_p=0.95),
    SamplingParams(temperature=1.0, top_k=50),
    SamplingParams(temperature=1.5, min_p=0.02),
    SamplingParams(temperature=0.8, top_k=400, top_p=0.9, min_p=0.01, repetition_penalty=1.1),
    SamplingParams(temperature=2.0),
    SamplingParams(temperature=0.05),
]


@pytest.mark.parametrize("num_vocab", [50_257, pytest.param(151_936, marks=pytest.mark.slow)])
@pytest.mark.parametrize("params", LARGE, ids=shown)
def test_pruning_changes_no_draw_from_a_large_row(params: SamplingParams, num_vocab: int) -> None:
    num_compared = 0
    for seed, head in enumerate([0.0, 4.0, 9.0, 9.0]):
        row = realistic_row(seed, num_vocab, head)
        sampler = Sampler(replace(params, seed=seed))
        inner, outer = (
            oracle(row, context_of(5), Sampler(replace(params, top_p=top_p)))
            for top_p in (params.top_p, min(1.0, params.top_p + 1e-4))
        )
        for position in range(1, 7):
            context = context_of(*range(5, 5 + position))
            if params.repetition_penalty != 1:
                inner = outer = oracle(row, context, sampler)
            drawn = sampler.draw(row, context)
            best, margin = naive_draw(inner, context, sampler)
            if naive_draw(outer, context, sampler) != (best, margin) or margin < 1e-4:
                continue  # the nucleus's border decides
            num_compared += 1
            assert drawn.token == best
            assert drawn.margin == pytest.approx(margin, abs=1e-3)
    assert num_compared >= 20


def test_a_flat_row_is_drawn_right_too() -> None:
    """Nothing can be pruned by scores here."""
    for spread in (0.0, 0.1):
        row = random_row(1, 60_000, spread)
        sampler = Sampler(SamplingParams(temperature=1.0, seed=9))
        for position in range(1, 6):
            context = context_of(*range(position))
            wanted = oracle(row, context, sampler)
            best, margin = naive_draw(wanted, context, sampler)
            assert sampler.draw(row, context).token == best
            assert sampler.draw(row, context).margin == pytest.approx(margin, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.3, top_k=6, min_p=0.05, presence_penalty=0.5),
    ],
    ids=shown,
)
def test_draws_follow_the_distribution_over_seeds(params: SamplingParams) -> None:
    """The seeds are fixed, so chance was thrown once: alpha 1e-6."""
    row, context, num_seeds = random_row(4, 12, 1.5), context_of(1, 2, 3, 2), 20_000
    distribution = Sampler(params).distribution(row, context)
    assert len(distribution.tokens) > 2
    counts = Counter(
        Sampler(replace(params, seed=seed)).draw(row, context).token for seed in range(num_seeds)
    )
    assert set(counts) == set(distribution.tokens.tolist())
    expected = distribution.probs * num_seeds
    found = np.array([counts[token] for token in distribution.tokens.tolist()])
    chi_square = float(((found - expected) ** 2 / expected).sum())
    assert chi_square < chi_square_limit(len(distribution.tokens) - 1)


def test_draws_of_neighbouring_positions_and_choices_are_independent() -> None:
    row, num_seeds = np.zeros(4, dtype=np.float32), 8000
    counts: Counter[tuple[int, int, int]] = Counter()
    for seed in range(num_seeds):
        params = SamplingParams(temperature=1.0, seed=seed)
        here, other = Sampler(params), Sampler(params, choice=1)
        triple = (
            here.draw(row, context_of(0, 1)).token,
            here.draw(row, context_of(0, 1, 2)).token,
            other.draw(row, context_of(0, 1)).token,
        )
        counts[triple] += 1
    expected = num_seeds / 64
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == 64
    assert chi_square < chi_square_limit(63)


def test_a_draw_depends_on_row_seed_choice_and_position_alone() -> None:
    row = random_row(3, 400)
    params = SamplingParams(temperature=1.2, seed=17)
    drawn = Sampler(params).draw(row, context_of(1, 2, 3))
    assert drawn == Sampler(params).draw(row, context_of(9, tail=(8, 7)))
    assert drawn == Sampler(params, num_prompt_tokens=2).draw(row, context_of(4, 5, 6))


# --- greedy


def test_temperature_0_takes_the_best_and_the_lowest_among_equals() -> None:
    row = np.array([0.5, 2.0, -1.0, 2.0, 1.0], dtype=np.float32)
    sampler = Sampler(SamplingParams())
    assert sampler.draw(row, context_of()).token == 1
    assert sampler.draw(row, context_of()).margin == 0
    distribution = sampler.distribution(row, context_of())
    assert distribution.tokens.tolist() == [1]
    assert distribution.probs.tolist() == [1.0]
    row[3] = 1.5
    assert sampler.draw(row, context_of()).margin == 0.5
    large = np.zeros(100_000, dtype=np.float32)
    large[[77_777, 5_555]] = 3.0
    assert sampler.draw(large, context_of()).token == 5_555


def test_one_token_left_has_won_without_contest() -> None:
    row = random_row(2, 50)
    best = int(row.argmax())
    for params in (
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, top_p=1e-6),
        SamplingParams(temperature=1.0, min_p=1.0),
    ):
        drawn = Sampler(params).draw(row, context_of())
        assert drawn.token == best
        assert drawn.margin == math.inf


def test_a_banned_token_is_never_drawn() -> None:
    row = np.array([9.0, 1.0, -np.inf, 0.0], dtype=np.float32)
    for temperature in (0.0, 1.0, 5.0):
        params = SamplingParams(temperature=temperature, logit_bias={0: -np.inf})
        distribution = Sampler(params).distribution(row, context_of())
        assert distribution.prob(0) == distribution.prob(2) == 0
        drawn = {
            Sampler(replace(params, seed=seed)).draw(row, context_of()).token for seed in range(200)
        }
        assert drawn <= {1, 3}


def test_penalties_fork_with_the_branch() -> None:
    row = np.zeros(6, dtype=np.float32)
    params = SamplingParams(temperature=1.0, frequency_penalty=1.0)
    sampler = Sampler(params, num_prompt_tokens=2)
    distribution = sampler.distribution(row, context_of(0, 0, 1, tail=(2, 2)))
    logits = np.log(distribution.probs) - np.log(distribution.prob(5))
    assert logits.tolist() == pytest.approx([0, -1, -2, 0, 0, 0], abs=1e-6)


# --- what a drafter asks


@pytest.mark.parametrize("num_vocab", [5, 100, 5000, 151_936])
def test_candidates_at_temperature_0_are_the_best_with_their_probabilities(num_vocab: int) -> None:
    row = random_row(6, num_vocab)
    tokens, confidence = Sampler().candidates(row, context_of(), 8)
    order = np.argsort(-row, kind="stable")[:8]
    assert tokens.tolist() == order.tolist()
    assert confidence == pytest.approx(softmax(row.astype(np.float64))[order], abs=1e-6)


@proven
@given(st.integers(0, 10**6), st.integers(2, 120), st.sampled_from([0.3, 1.0, 1.6]))
def test_candidates_are_ordered_by_score_and_noise(seed, num_vocab, temperature) -> None:
    row = random_row(seed, num_vocab)
    sampler = Sampler(SamplingParams(temperature=temperature, seed=seed), choice=2)
    context = context_of(1, 1, 0)
    key = noise.key(seed, 2, 3)
    scores = row / temperature + noise.gumbel(key, np.arange(num_vocab)).astype(np.float64)
    order = np.argsort(-scores, kind="stable")
    assume(np.diff(-scores[order]).min() > 1e-4)
    tokens, confidence = sampler.candidates(row, context, num_vocab)
    assert tokens.tolist() == order.tolist()
    assert confidence == pytest.approx(softmax(scores)[order], abs=1e-4)
    assert confidence.sum() == pytest.approx(1)
    few, fewer = sampler.candidates(row, context, 2)
    assert few.tolist() == order[:2].tolist()
    assert fewer == pytest.approx(confidence[:2])


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draft_that_is_the_target_guesses_its_draw(temperature: float) -> None:
    for seed in range(30):
        row = realistic_row(seed, 20_000, 9.0)
        sampler = Sampler(SamplingParams(temperature=temperature, seed=seed))
        tokens, confidence = sampler.candidates(row, context_of(3), 8)
        assert tokens[0] == sampler.draw(row, context_of(3)).token
        assert len(set(tokens.tolist())) == 8
        assert (np.diff(confidence) <= 0).all()
        assert 0 < confidence.sum() <= 1 + 1e-9


def test_candidates_are_under_bias_and_penalties() -> None:
    row = np.array([3.0, 2.9, 2.8, -9.0], dtype=np.float32)
    params = SamplingParams(logit_bias={0: -5.0}, presence_penalty=0.5)
    tokens, _ = Sampler(params).candidates(row, context_of(1), 3)
    assert tokens.tolist() == [2, 1, 0]


# --- tools


@proven
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 5, 100, 513, 1024, 4096, 4097, 5000, 9000]),
    st.sampled_from([1, 2, 3, 8, 127, 128, 129, 600]),
    st.sampled_from([0.3, 3.0, 1e4]),
)
def test_top_is_a_stable_sort(seed: int, num_values: int, k: int, spread: float) -> None:
    generator = np.random.default_rng(seed)
    values = np.round(generator.normal(0, spread, num_values)).astype(np.float32)  # many ties
    values[generator.random(num_values) < 0.1] = -np.inf
    values[(values == 0) & (generator.random(num_values) < 0.5)] = -0.0
    found = top(values, k)
    assert found.tolist() == np.argsort(-values, kind="stable")[:k].tolist()


def test_top_of_a_large_row() -> None:
    for seed in range(3):
        row = random_row(seed, 151_936)
        for k in (1, 2, 128, 1024, 20_000):
            assert top(row, k).tolist() == np.argsort(-row, kind="stable")[:k].tolist()


@pytest.mark.parametrize("num_vocab", [1, 10, 151_936])
def test_log_normaliser(num_vocab: int) -> None:
    row = random_row(8, num_vocab) + np.float32(100)
    wide = row.astype(np.float64)
    wanted = float(np.log(np.exp(wide - wide.max()).sum()) + wide.max())
    assert log_normaliser(row) == pytest.approx(wanted, abs=1e-5)


@proven
@given(st.integers(0, 10**6))
def test_distributions_answer_and_leave_residuals(seed: int) -> None:
    generator = np.random.default_rng(seed)
    p, q = (generator.dirichlet(np.ones(9)) * (generator.random(9) < 0.7) for _ in range(2))
    assume(p.sum() > 0)
    assume(q.sum() > 0)
    p, q = p / p.sum(), q / q.sum()
    assume(np.maximum(p - q, 0).sum() > 1e-6)
    distributions = [Distribution(np.flatnonzero(x), x[x > 0]) for x in (p, q)]
    assert [distributions[0].prob(token) for token in range(10)] == [*p.tolist(), 0.0]
    rest = np.maximum(p - q, 0)
    assert (
        np.abs(dense(distributions[0].residual(distributions[1]), 9) - rest / rest.sum()).max()
        < 1e-12
    )
    assert np.array_equal(dense(distributions[0].residual(distributions[0]), 9), p)


# --- parameters

NAN = float("nan")
BAD = [
    ("temperature", [-1.0, -1e-9, math.inf, NAN]),
    ("top_k", [-1]),
    ("top_p", [0.0, -0.5, 1.5, math.inf, NAN]),
    ("min_p", [-0.1, 1.1, NAN]),
    ("repetition_penalty", [0.0, -1.0, math.inf, NAN]),
    ("presence_penalty", [math.inf, -math.inf, NAN]),
    ("frequency_penalty", [math.inf, NAN]),
    ("seed", [-1, 2**64]),
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD for value in values]
)
def test_bad_parameters_are_refused_by_name_and_value(name: str, value: float) -> None:
    with pytest.raises(BadOption, match=rf"^{name} is {value}; use "):
        SamplingParams(**{name: value})


def test_extreme_but_good_parameters_are_taken() -> None:
    SamplingParams(
        temperature=100.0, top_k=10**9, top_p=1.0, min_p=1.0, presence_penalty=-2, seed=2**64 - 1
    )
    SamplingParams(top_p=1e-9, repetition_penalty=1e-3)


@dataclass(frozen=True)
class Only:
    """A mask of these tokens, the last of which ends a completion."""

    tokens: tuple[int, ...]
    ends = (2,)

    def close(self) -> None:
        """It holds nothing."""

    def allowed(self, completion: np.ndarray) -> np.ndarray | None:
        return None if 2 in completion else np.isin(np.arange(3), self.tokens)


CUTS = (
    {}, {"top_p": 0.5}, {"min_p": 0.1}, {"top_k": 2}, {"top_k": 1},
    {"presence_penalty": 1.0, "repetition_penalty": 1.3},
)  # fmt: skip
ROW = np.array([0.5, 2.0, 1.0], dtype=np.float32)


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_where_every_token_is_banned_none_is_drawn(temperature: float, cut) -> None:
    def sampler(bans: Sequence[int], mask: Only | None = None) -> Sampler:
        bias = dict.fromkeys(bans, -math.inf)
        params = SamplingParams(temperature=temperature, logit_bias=bias, seed=3, **cut)
        return Sampler(params, 0, 1, mask)

    cases = (
        (sampler([0, 1, 2]), BadOption, "token 3 .* every token is banned"),
        (sampler([0], Only((0,))), BadOption, "every token that the grammar allows there"),
        (sampler([0], Only(())), BadOption, "every token that the grammar allows there"),
        (sampler([2], Only((2,))), GrammarEnded, None),
        (sampler([1, 2], Only((1, 2))), GrammarEnded, None),
    )
    context = Context(np.array([1, 0, 1], dtype=np.int32))
    for own, error, words in cases:
        for draw in (own.draw, own.distribution):
            with pytest.raises(error, match=words):
                draw(ROW, context)
        assert own.candidates(ROW, context, 1)[0].shape == (1,)  # of a draft, which may go on
    left = sampler([1], Only((1, 2)))
    assert left.draw(ROW, context).token == 2
    assert left.distribution(ROW, context).tokens.tolist() == [2]
    after_the_end = Context(np.array([1, 2], dtype=np.int32))
    assert sampler([2], Only((2,))).draw(ROW, after_the_end).token in (0, 1)


def test_min_tokens_where_all_else_is_banned_names_the_remedy() -> None:
    params = SamplingParams(min_tokens=3, logit_bias={0: -np.inf, 1: -np.inf})
    sampler = Sampler(params, 0, 1, NoEndBefore(3, [2], 3))
    row, text = np.zeros(3, dtype=np.float32), np.array([1, 1], dtype=np.int32)
    with pytest.raises(BadOption, match=r"token 2 .* lower min_tokens, or ban fewer tokens"):
        sampler.draw(row, Context(text))
    enough = np.array([1, 1, 1, 1], dtype=np.int32)
    assert sampler.draw(row, Context(enough)).token == 2
