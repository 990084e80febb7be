"""The noise is a pure function, its streams are independent, its distribution is Gumbel's.

Chance was thrown once, in the choice of the keys: every run sees the same numbers.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fakes.decoding import chi_square_limit, proven
from hypothesis import given
from hypothesis import strategies as st

from duodec.core.sampling import noise

TOKENS = np.arange(50_000)
STREAMS = (noise.DRAW, noise.DRAFT, noise.COIN)
EULER_GAMMA = 0.5772156649015329

seeds = st.integers(0, 2**64 - 1)
counters = st.integers(0, 2**31 - 1)


@proven
@given(seeds, counters, counters, st.lists(counters, min_size=1, max_size=20))
def test_noise_is_a_pure_function_of_key_and_token(seed, choice, position, tokens) -> None:
    key = noise.key(seed, choice, position)
    assert 0 <= key < 2**64
    assert key == noise.key(seed, choice, position, noise.DRAW)
    together = noise.gumbel(key, np.array(tokens))
    alone = [noise.gumbel(key, np.array([token]))[0] for token in tokens]
    assert together.dtype == np.float32
    assert together.tolist() == alone
    assert noise.uniform(key, np.array(tokens)).tolist() == [
        noise.uniform(key, np.array([token]))[0] for token in tokens
    ]


def test_the_tokens_are_left_as_they_were() -> None:
    tokens = np.arange(1000)
    noise.gumbel(noise.key(1, 2, 3), tokens)
    assert tokens.tolist() == list(range(1000))


@proven
@given(seeds, counters, counters)
def test_every_part_of_a_key_counts(seed, choice, position) -> None:
    key = noise.key(seed, choice, position)
    others = [
        noise.key((seed + 1) % 2**64, choice, position),
        noise.key(seed ^ 2**63, choice, position),
        noise.key(seed, choice + 1, position),
        noise.key(seed, choice, position + 1),
        *(noise.key(seed, choice, position, stream) for stream in STREAMS[1:]),
    ]
    assert len({key, *others}) == len(others) + 1


def test_keys_of_neighbours_do_not_collide() -> None:
    keys = {
        noise.key(*parts) for parts in itertools.product(range(8), range(8), range(200), STREAMS)
    }
    assert len(keys) == 8 * 8 * 200 * 3


NEIGHBOURS = {
    "seed": (noise.key(7, 0, 5), noise.key(8, 0, 5)),
    "a seed's high bit": (noise.key(7, 0, 5), noise.key(7 + 2**63, 0, 5)),
    "choice": (noise.key(7, 0, 5), noise.key(7, 1, 5)),
    "position": (noise.key(7, 0, 5), noise.key(7, 0, 6)),
    "stream": (noise.key(7, 0, 5), noise.key(7, 0, 5, noise.COIN)),
    "seed and position swapped": (noise.key(7, 0, 5), noise.key(5, 0, 7)),
    "keys that differ in a bit": (noise.key(7, 0, 5), noise.key(7, 0, 5) ^ 1),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.parametrize("shift", [0, 1, -1])
def test_streams_are_uncorrelated(name: str, shift: int) -> None:
    a, b = (noise.gumbel(key, TOKENS).astype(np.float64) for key in NEIGHBOURS[name])
    correlation = np.corrcoef(a, np.roll(b, shift))[0, 1]
    assert abs(correlation) < 5 / np.sqrt(len(TOKENS))
    assert (a == b).mean() < 1e-3


def test_tokens_are_uncorrelated() -> None:
    values = noise.gumbel(noise.key(7, 0, 5), TOKENS).astype(np.float64)
    for lag in (1, 2, 3, 8, 64, 1024):
        correlation = np.corrcoef(values[lag:], values[:-lag])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(len(values)), lag


def test_a_tokens_noise_is_uniform_over_positions_and_seeds() -> None:
    token = np.array([1234])
    values = [noise.uniform(noise.key(s, 0, p), token)[0] for s in range(100) for p in range(200)]
    assert chi_square_of_uniform(np.array(values)) < chi_square_limit(99)


@pytest.mark.parametrize("seed", range(4))
def test_uniforms_are_uniform(seed: int) -> None:
    values = noise.uniform(noise.key(seed, 0, 17), np.arange(200_000))
    assert chi_square_of_uniform(values) < chi_square_limit(99)


def test_pairs_of_neighbours_fill_the_square() -> None:
    values = noise.uniform(noise.key(3, 0, 17), np.arange(200_000)).astype(np.float64)
    cells = (values[::2] * 10).astype(int) * 10 + (values[1::2] * 10).astype(int)
    assert chi_square_of_uniform((cells + 0.5) / 100) < chi_square_limit(99)


def chi_square_of_uniform(values: np.ndarray, num_bins: int = 100) -> float:
    counts = np.bincount((values.astype(np.float64) * num_bins).astype(int), minlength=num_bins)
    assert len(counts) == num_bins
    expected = len(values) / num_bins
    return float(((counts - expected) ** 2).sum() / expected)


def test_uniforms_lie_strictly_between_0_and_1() -> None:
    values = noise.uniform(noise.key(0, 0, 0), np.arange(1_000_000))
    assert values.min() > 0
    assert values.max() < 1


def test_gumbels_have_their_mean_variance_and_range() -> None:
    values = noise.gumbel(noise.key(11, 0, 3), np.arange(1_000_000)).astype(np.float64)
    assert values.mean() == pytest.approx(EULER_GAMMA, rel=0.01)
    assert values.var() == pytest.approx(np.pi**2 / 6, rel=0.01)
    assert values.min() >= noise.GUMBEL_MIN
    assert values.max() <= noise.GUMBEL_MAX
    assert np.isfinite(values).all()


ENDS = np.concatenate([np.arange(1 << 17), (1 << 32) - 1 - np.arange(1 << 20)]).astype(np.uint32)


def precise(random: np.ndarray) -> np.ndarray:
    """The same noise by the library's logarithms, in float64."""
    u = (random.astype(np.float64) + 0.5) / 2**32
    return -np.log(-np.where(u < 0.5, np.log(u), np.log1p(u - 1)))  # u - 1 is exact in float64


def test_gumbels_are_those_of_their_integers_up_to_the_last_bits() -> None:
    key, tokens = noise.key(11, 1, 3), np.arange(1_000_000)
    assert np.array_equal(noise.gumbel(key, tokens), noise.gumbel_of(noise.bits(key, tokens)))
    for random in (noise.bits(key, tokens), ENDS):
        assert np.abs(noise.gumbel_of(random) - precise(random)).max() < 2e-6


def test_all_of_the_32_bits_count_and_order_is_kept() -> None:
    assert len(set((noise.bits(7, TOKENS) & 511).tolist())) == 512
    values = noise.gumbel_of(np.sort(ENDS))
    assert (np.diff(values) >= 0).all()
    assert len(set(values[-1000:].tolist())) == 1000, "the rarest are told apart"


RARE = [(1e-3, 50_000), (2e-3, 100_000), (1e-4, 150_000), (0.02, 150_000)]


@pytest.mark.parametrize(("mass", "num_rare"), RARE)
def test_rare_tokens_are_drawn_as_often_as_they_should_be(mass: float, num_rare: int) -> None:
    """One likely token and many that share the rest of the mass: how often the draw is the likely
    one, over all of its noise and the largest noise of the others."""
    likely = np.log((1 - mass) / (mass / num_rare))  # its lead over each of the others
    step = 1 << 12
    own = noise.gumbel_of(np.arange(step // 2, 1 << 32, step).astype(np.uint32)).astype(np.float64)
    upper = noise.gumbel_of(np.arange((1 << 32) - (1 << 23), 1 << 32).astype(np.uint32))
    num_above = len(upper) - np.searchsorted(upper, (own + likely).astype(np.float32), "right")
    wins = np.exp(num_rare * np.log1p(-num_above / 2.0**32)).mean()
    assert abs(wins - (1 - mass)) < 3e-6


def test_large_token_ids_and_seeds_are_served() -> None:
    values = noise.gumbel(noise.key(2**64 - 1, 2**31, 2**40), np.array([0, 1, 2**31 - 1]))
    assert np.isfinite(values).all()
    assert len(set(values.tolist())) == 3
