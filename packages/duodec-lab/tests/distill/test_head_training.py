"""Heads of a tiny random target: recorded, trained and written; what a step computes of tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")

import torch

from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec_lab.distill.recording import Sample
from duodec_lab.distill.settings import DistillSettings
from duodec_lab.distill.training.heads import HeadDistillation, HeadTraining
from duodec_lab.distill.training.logits import Shown
from duodec_torch.checkpoint.blueprint import Blueprint
from duodec_torch.checkpoint.model import TorchModel
from duodec_torch.heads.files import HeadFiles

SETTINGS = DistillSettings(
    heads="medusa", num_heads=2, steps=40, num_prompts=12, max_tokens=16, learning_rate=0.01,
    parallel=4,
)  # fmt: skip


def work(target: Path, output: Path, seed: int = 0) -> HeadDistillation:
    return HeadDistillation(
        config=EngineConfig(target=str(target), threads=1),
        output=output,
        settings=SETTINGS,
        params=SamplingParams(seed=seed),
    )


def test_heads_are_trained_below_the_targets_own_matrix(models, tmp_path: Path) -> None:
    done = work(models["target"], tmp_path / "heads")
    done.check()
    trained = done.run()
    assert trained.num_steps == 40
    assert len(trained.after) == 2
    weights = HeadFiles.of(trained.path).weights("medusa_lm_head")
    model = TorchModel(Blueprint.of(models["target"], dtype="float32", device="cpu"))
    own = model.causal_lm.get_output_embeddings().weight.to(torch.bfloat16)
    for i in range(2):
        assert torch.equal(weights[f"{i}.1.weight"], own)
        assert weights[f"{i}.0.linear.weight"].abs().max() > 0.01, "it began with zeros"
    model.close()
    config = json.loads((trained.path / "config.json").read_text())
    assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (2, 1)

    with pytest.raises(BadOption, match="another prompts"):  # what was recorded is not mixed
        work(models["target"], tmp_path / "heads", seed=1).check()


def training_of(target: Path, clock=None) -> HeadTraining:
    model = TorchModel(Blueprint.of(target, dtype="float32", device="cpu"))
    made = HeadTraining(model.causal_lm, "medusa", 2, replace(SETTINGS, batch=2))
    made.clock = clock or made.clock
    return made


def sample(length: int, num_prompt: int) -> Sample:
    tokens = np.arange(10, 10 + length, dtype=np.int32)
    return Sample(tokens, num_prompt, np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32))


def test_positions_are_those_of_completions_with_the_tokens_after_them(models) -> None:
    made = training_of(models["target"])
    found = made.positions([sample(12, 8), sample(6, 3)])
    assert found.tokens.tolist() == [  # the shorter one first; two heads guess the last two
        [13, 14, 15], [14, 15, -1],
        [18, 19, 20], [19, 20, 21], [20, 21, -1],
    ]  # fmt: skip
    alone = made.positions([sample(12, 8)])
    assert torch.allclose(found.states[2:].float(), alone.states.float(), atol=0.02)


def test_states_are_computed_as_long_as_there_is_time(models) -> None:
    seconds = iter(range(100))
    made = training_of(models["target"], clock=lambda: float(next(seconds)))
    samples = [sample(6 + i, 3) for i in range(8)]
    some = made.positions(samples, most_s=2.5)  # of the four parts each takes a second
    assert len(some) == len(training_of(models["target"]).positions(samples[:4]))


def test_a_sample_of_tokens_stands_for_all_others() -> None:
    logits = torch.randn(20_000, generator=torch.Generator().manual_seed(1))
    is_known = torch.zeros(20_000, dtype=torch.bool)
    is_known[[3, 7, 19_999]] = True
    shown = Shown(is_known)
    sums = []
    for seed in range(40):
        rows, shift = shown.sample(np.random.default_rng(seed))
        assert len(rows) == 3 + 2048
        assert len(set(rows.tolist())) == len(rows)
        assert rows[shown.column(torch.tensor([19_999, 3, 7]))].tolist() == [19_999, 3, 7]
        sums.append(float((logits[rows] + shift).exp().sum()))
    assert np.mean(sums) == pytest.approx(float(logits.exp().sum()), rel=0.02)


def test_of_a_small_vocabulary_every_token_is_computed() -> None:
    rows, shift = Shown(torch.arange(300) % 4 == 1).sample(np.random.default_rng(0))
    assert sorted(rows.tolist()) == list(range(300))
    assert not shift.any()
