"""Draws on the device: given the same row, the token and the margin of `Sampler.draw`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from fakes.decoding import proven
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

import torch
from fakes.torch_models import LARGE

from duodec.core import rows
from duodec.core.draft import Draft
from duodec.core.sampling import noise
from duodec.core.sampling.grammar import Grammar, GrammarEnded
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Candidates, Query
from duodec.errors import BadOption, ComputeFailed
from duodec_torch.sampling import draws
from duodec_torch.sampling import noise as twin
from duodec_torch.sampling.draws import draw
from duodec_torch.sampling.rows import top
from duodec_torch.target import TorchScores

keys = st.integers(0, 2**64 - 1)


def halves(key: int) -> list[torch.Tensor]:
    return [torch.tensor([[half]]) for half in twin.halves(key)]


# --- noise


@proven
@given(keys, st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50))
def test_the_integers_are_numpys(key: int, tokens: list[int]) -> None:
    found = twin.bits(*halves(key), torch.tensor([tokens]))[0]
    assert found.tolist() == noise.bits(key, np.array(tokens)).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_the_floats_are_numpys(seed: int) -> None:
    key, tokens = noise.key(seed, 1, 17), np.arange(1 << 19)
    found = twin.gumbel(*halves(key), torch.as_tensor(tokens))[0].numpy()
    assert np.array_equal(found, noise.gumbel(key, tokens))


def test_the_ends_of_the_noise_are_numpys() -> None:
    """The logarithm at the smallest and the largest uniform, and at every power of two."""
    values = [2.0**-33, 1 - 2.0**-24, 1.0, *(2.0**-n for n in range(1, 33)), 22.8, 5.9e-8]
    x = np.array(values, dtype=np.float32)
    assert np.array_equal(twin.log32(torch.as_tensor(x)).numpy(), noise.log32(x))
    half = round(2**31.5)  # where the logarithm changes from one end to the other
    ends = [np.arange(1 << 17), half + np.arange(-1000, 1000), (1 << 32) - 1 - np.arange(1 << 20)]
    random = np.concatenate(ends)
    found = twin.gumbel_of(torch.as_tensor(random)).numpy()
    assert np.array_equal(found, noise.gumbel_of(random.astype(np.uint32)))


def test_the_masses_are_numpys() -> None:
    x = -np.random.default_rng(0).exponential(6, 300_000).astype(np.float32)
    x[:3] = 0, -np.inf, -17.5
    assert np.array_equal(twin.exp_mass(torch.as_tensor(x)).numpy(), rows.exp_mass(x))


# --- draws


def rows_of(rng: np.random.Generator, num_rows: int, num_vocab: int) -> np.ndarray:
    """Some flat, some with many ties, some with tokens that are banned."""
    found = rng.normal(0, rng.choice([0.0, 0.3, 3.0]), (num_rows, num_vocab)).astype(np.float32)
    if rng.random() < 0.5:
        found = np.round(found)
    found[rng.random(found.shape) < 0.05] = -np.inf
    found[(found == 0) & (rng.random(found.shape) < 0.5)] = -0.0
    found[:, rng.integers(num_vocab)] = 0.5
    found[:, rng.integers(num_vocab)] = 0.0
    return found


@st.composite
def params(draw_from) -> SamplingParams:
    def one_of(*values: float) -> float:
        return draw_from(st.sampled_from(values))

    bias = st.dictionaries(st.integers(0, 5), st.sampled_from([-np.inf, -2.0, 1.5]), max_size=2)
    return SamplingParams(
        temperature=one_of(0.0, 0.0, 0.3, 0.9, 1.0, 1.7, 1e30),
        top_k=int(one_of(0, 0, 1, 2, 50, 3000)),
        top_p=one_of(1.0, 1.0, 0.2, 0.8, 0.95, 0.999),
        min_p=one_of(0.0, 0.0, 0.02, 0.3, 1.0),
        repetition_penalty=one_of(1.0, 1.0, 1.3, 0.8),
        presence_penalty=one_of(0.0, 0.0, 0.7, -0.5),
        frequency_penalty=one_of(0.0, 0.0, 0.4, -0.3),
        logit_bias=draw_from(bias),
        seed=draw_from(keys),
    )


@dataclass(frozen=True)
class OddMask:
    """A mask by the completion so far: few tokens, many, none of them, or None."""

    num_vocab: int
    ends = (0,)

    def close(self) -> None:
        """It holds nothing."""

    def allowed(self, answer: np.ndarray) -> np.ndarray | None:
        rng = np.random.default_rng(answer)
        if rng.random() < 0.1:
            return None
        return rng.random(self.num_vocab) < rng.choice([0.0, 0.01, 0.2, 0.9, 1.0])


@st.composite
def rounds(draw_from) -> tuple[np.ndarray, list[Query]]:
    """Logits, and queries whose rows they are."""
    num_vocab = draw_from(st.sampled_from([6, 7, 40, 300, 1030, 5000]))
    rng = np.random.default_rng(draw_from(st.integers(0, 2**32)))
    queries = []
    for slot in range(draw_from(st.integers(1, 3))):
        draft = Draft.sequences(
            rng.integers(0, min(num_vocab, 9), rng.integers(1, 5)).tolist()
            for _ in range(rng.integers(4))
        )
        text = rng.integers(0, min(num_vocab, 9), rng.integers(1, 15)).astype(np.int32)
        mask = OddMask(int(rng.integers(1, num_vocab + 3))) if rng.random() < 0.4 else None
        sampling = draw_from(params())
        if mask:
            sampling = replace(sampling, grammar=Grammar("regex", "a mask of our own goes with it"))
        sampler = Sampler(sampling, int(rng.integers(3)), int(rng.integers(20)), mask)
        queries.append(Query(slot, text, draft, sampler, draw_from(st.integers(0, 9))))
    num_rows = sum(len(query.draft) + 1 for query in queries)
    return rows_of(rng, num_rows, num_vocab), queries


def to_host(tensor: torch.Tensor) -> np.ndarray:
    assert tensor.dtype == torch.float64
    return tensor.numpy()


def assert_drawn_like_numpy(logits: np.ndarray, queries: list[Query]) -> None:
    device = torch.as_tensor(logits.copy())
    found = draw(device, queries, to_host)
    assert np.array_equal(device.numpy(), logits), "the logits are left as they were"
    at = 0
    for query in queries:
        for row in range(len(query.draft) + 1):
            own = logits[at].copy()
            try:
                wanted = query.sampler.draw(own, query.context(row))
            except (BadOption, GrammarEnded) as error:  # no token is left
                scores = TorchScores(query, found, device[at - row :], at - row)
                with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
                    scores.draw(row)
                at += 1
                continue
            assert np.isfinite(found.largest[at])
            assert found.tokens[at] == wanted.token
            assert np.array_equal(found.margins[at], wanted.margin, equal_nan=True)
            k = query.num_candidates
            assert found.candidates[at, :k].tolist() == rows.top(own, k).tolist()
            assert np.array_equal(found.likely[at, :k], own[rows.top(own, k)])
            at += 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", LARGE, ids=range(len(LARGE)))
def test_a_row_of_no_numbers_ends_only_who_draws_from_it(
    sampling: SamplingParams, value: float
) -> None:
    logits = np.random.default_rng(3).normal(0, 3, (4, 5000)).astype(np.float32)
    logits[2, 77] = value
    text, sampler = np.array([5, 9], dtype=np.int32), Sampler(sampling)
    queries = [Query(0, text, Draft.chain([5, 6]), sampler, 8), Query(1, text, Draft(), sampler, 8)]
    device = torch.as_tensor(logits.copy())
    found = draw(device, queries, to_host)
    first, second = (
        TorchScores(q, found, device, at) for q, at in zip(queries, (0, 3), strict=True)
    )
    for scores, row, at in ((first, 0, 0), (first, 1, 1), (second, 0, 3)):
        own = logits[at].copy()
        assert scores.draw(row) == sampler.draw(own, scores.query.context(row))
        assert scores.candidates(row) == Candidates.of(own, 8)
    assert first.candidates(2) == Candidates()
    with pytest.raises(ComputeFailed, match="no numbers"):
        first.draw(2)


@settings(proven, max_examples=400)
@given(rounds(), st.sampled_from([2, 8, 64, 1024]))
def test_a_round_is_drawn_as_numpy_draws_it(situation, num_head: int) -> None:
    """With heads too short, so that rows are drawn again from the whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "HEAD", num_head)
        assert_drawn_like_numpy(*situation)


@pytest.mark.parametrize("sampling", LARGE, ids=range(len(LARGE)))
def test_large_vocabularies_are_drawn_as_numpy_draws_them(sampling: SamplingParams) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(-2, 2.2, (5, 151_936)).astype(np.float32)
    logits[:, :40] += rng.exponential(5, (5, 40)).astype(np.float32)
    logits[1:] = logits[1:].astype(np.float16)  # ties everywhere
    draft = Draft.sequences([[5, 6, 5], [7]])
    query = Query(0, np.array([5, 9], dtype=np.int32), draft, Sampler(sampling), 8)
    assert_drawn_like_numpy(logits, [query])


def test_one_copy_is_enough_for_usual_rows() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (3, 50_000)).astype(np.float32)
    logits[:, 7] += 20
    copies: list[torch.Tensor] = []

    def counting(tensor: torch.Tensor) -> np.ndarray:
        copies.append(tensor)
        return tensor.numpy()

    for sampling in LARGE[:4]:
        query = Query(0, np.array([1], dtype=np.int32), Draft.chain([2, 3]), Sampler(sampling))
        draw(torch.as_tensor(logits), [query], counting)
    assert len(copies) == 4


@proven
@given(st.integers(0, 10**6), st.sampled_from([1, 5, 513, 3000]), st.sampled_from([1, 2, 9, 600]))
def test_top_is_the_cores(seed: int, num_values: int, k: int) -> None:
    values = rows_of(np.random.default_rng(seed), 2, num_values)
    k = min(k, num_values)
    best, indices = top(torch.as_tensor(values), k)
    for row in range(2):
        assert indices[row].tolist() == rows.top(values[row], k).tolist()
        assert np.array_equal(best[row].numpy(), values[row][indices[row].numpy()])


def test_rows_whose_tokens_are_all_banned_are_drawn_as_numpy_draws_them() -> None:
    bans = dict.fromkeys(range(6), -np.inf)
    params = SamplingParams(temperature=0.3, top_p=0.2, logit_bias=bans)
    query = Query(0, np.array([2, 1], dtype=np.int32), Draft(), Sampler(params))
    assert_drawn_like_numpy(np.array([[0.5, 3, 0, -2, 1, -3]], dtype=np.float32), [query])


class Failing(OddMask):
    """A mask that cannot be followed after one token."""

    def allowed(self, answer: np.ndarray) -> np.ndarray | None:
        if 5 in answer:
            raise BadOption("too complex")
        return np.arange(self.num_vocab) < 9


def test_a_mask_that_cannot_be_followed_ends_only_who_draws_there() -> None:
    logits = np.random.default_rng(3).normal(0, 3, (3, 40)).astype(np.float32)
    sampling = SamplingParams(grammar=Grammar("regex", "a mask of our own goes with it"))
    sampler = Sampler(sampling, 0, 1, Failing(40))
    query = Query(0, np.array([1], dtype=np.int32), Draft.sequences([[5], [6]]), sampler)
    device = torch.as_tensor(logits)
    scores = TorchScores(query, draw(device, [query], to_host), device, 0)
    for row in (0, 2):
        assert scores.draw(row) == sampler.draw(logits[row], query.context(row))
    with pytest.raises(BadOption, match="too complex"):
        scores.draw(1)
