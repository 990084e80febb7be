"""Rows that are no numbers: whoever draws from one fails, and nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from fakes.beds import ClockedTarget
from fakes.decoding import PROMPT, WITHOUT_HEADS, Letters, decode, known_texts, plain_text
from fakes.targets import Chains

from duodec.backends.curves import CostCurve
from duodec.core.draft import Draft
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams
from duodec.core.targets import Candidates, Query, Target
from duodec.errors import ComputeFailed
from duodec.llm import LLM
from duodec.methods.registry import METHODS
from duodec.testing import InlineDrafter, TableModel, TableTarget
from duodec_lab.bench.beds.latency import LatencyCurve

EXACT = [name for name in WITHOUT_HEADS if name != "sps-rejection"]
NUM_TOKENS = 40
SOUND = TableModel(num_vocab=64, seed=7)
ODD = {
    "a NaN": {11: np.nan},
    "a NaN first": {0: np.nan},
    "an infinity": {11: np.inf},
    "a NaN and an infinity": {0: np.inf, 63: np.nan},
    "NaN only": dict.fromkeys(range(64), np.nan),
    "every token banned": dict.fromkeys(range(64), -np.inf),
}


@dataclass(frozen=True)
class OddTable(TableModel):
    """A table whose rows are odd after every text but those that begin one of ``texts``."""

    texts: tuple[tuple[int, ...], ...] = ()
    values: tuple[tuple[int, float], ...] = ()

    def logits(self, context: Context) -> Row:
        row, before = super().logits(context), tuple(context.tokens().tolist())
        if not any(text[: len(before)] == before for text in self.texts):
            for token, value in self.values:
                row[token] = value
        return row


def odd_but_on(texts: Sequence[Sequence[int]], name: str) -> OddTable:
    values = tuple(ODD[name].items())
    return OddTable(64, seed=7, texts=tuple(map(tuple, texts)), values=values)


@pytest.mark.parametrize(
    ("method", "name"),
    [  # `auto` meets all of them, each other method one in turn
        pytest.param(method, name, marks=() if method == "auto" or own else pytest.mark.slow)
        for place, method in enumerate(EXACT)
        for number, name in enumerate(ODD)
        for own in [number == place % len(ODD)]
    ],
)
def test_a_row_that_no_text_draws_from_ends_nothing(method: str, name: str) -> None:
    for params in (SamplingParams(), SamplingParams(temperature=0.9, top_k=5, seed=3)):
        wanted = plain_text(SOUND, params, NUM_TOKENS)
        model = odd_but_on([(*PROMPT, *wanted)], name)
        drafter = InlineDrafter(replace(SOUND, noise=0.4).load())
        for target in (TableTarget(model), Chains(TableTarget(model))):
            found, _ = decode(
                method, target=target, drafter=drafter, params=params,
                num_tokens=NUM_TOKENS, datastore=known_texts(SOUND),
            )  # fmt: skip
            assert found == wanted


@pytest.mark.parametrize("method", EXACT)
def test_they_teach_nothing_to_the_next_request_either(method: str) -> None:
    params = [SamplingParams(temperature=0.8, seed=seed, max_tokens=20) for seed in range(4)]
    wanted = [plain_text(SOUND, own, 20) for own in params]
    model = odd_but_on([(*PROMPT, *text) for text in wanted], "a NaN")
    drafter = InlineDrafter(replace(SOUND, noise=0.4).load())
    clocked = ClockedTarget(TableTarget(model), LatencyCurve(CostCurve.flat(1e-4)))
    targets: list[Target] = [TableTarget(model), clocked]
    for target in targets:
        llm = LLM(target, Letters(64), 100, drafter, datastore=NoTexts(), num_slots=2)
        found = llm.generate([list(PROMPT)] * 4, params, method=method)
        assert [list(one.tokens) for one in found] == wanted


class NoTexts:
    """A datastore of a single text."""

    def continuations(
        self, text: np.ndarray, *, max_span: int, min_span: int, length: int
    ) -> np.ndarray:
        return np.array([[1] * length], dtype=np.int32)


@pytest.mark.parametrize("method", METHODS)
def test_who_draws_from_one_fails_whatever_the_method(method: str) -> None:
    wanted = plain_text(SOUND, SamplingParams(), NUM_TOKENS)
    model = odd_but_on([(*PROMPT, *wanted[:17])], "a NaN")
    with pytest.raises(ComputeFailed, match="no numbers"):
        decode(
            method, target=TableTarget(model), drafter=InlineDrafter(SOUND.load()),
            num_tokens=NUM_TOKENS, datastore=known_texts(SOUND),
        )  # fmt: skip


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("num_vocab", [64, 700, 9000])
def test_a_row_that_is_no_numbers_has_no_candidates(name: str, num_vocab: int) -> None:
    row = np.random.default_rng(1).normal(size=num_vocab).astype(np.float32)
    for token, value in ODD[name].items():
        row[token] = value
    if name == "every token banned":
        row[:] = -np.inf
    assert Candidates.of(row, 8) == Candidates()
    context = Context(np.array([1], dtype=np.int32))
    for sampler in (Sampler(), Sampler(SamplingParams(temperature=1.0))):
        with pytest.raises(ComputeFailed, match="no numbers"):  # a draft model's row
            sampler.candidates(row, context, 4)


def test_tokens_that_the_model_bans_are_candidates_last() -> None:
    row = np.full(64, -np.inf, dtype=np.float32)
    row[[5, 9]] = 1.0, 2.0
    found = Candidates.of(row, 4)
    assert found.tokens[:2] == (9, 5)
    assert sum(found.confidences) == pytest.approx(1.0)
    assert found.confidences[2:] == (0.0, 0.0)


def test_a_target_on_a_clock_draws_from_all_rows_and_tells_of_none() -> None:
    model = odd_but_on([PROMPT], "a NaN")
    target = ClockedTarget(TableTarget(model), LatencyCurve(CostCurve.flat(1e-4)))
    text = np.array(PROMPT, dtype=np.int32)
    (scores,) = target.score([Query(0, text, Draft.chain([1, 2]), num_candidates=4)])
    assert scores.draw(0).token == TableTarget(SOUND).score([Query(0, text)])[0].draw(0).token
    with pytest.raises(ComputeFailed, match="no numbers"):
        scores.draw(1)
    assert scores.candidates(1) == Candidates()
