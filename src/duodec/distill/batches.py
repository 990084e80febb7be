"""Order recorded samples into training steps, and make their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from duodec.distill.library import torch
from duodec.distill.losses import Known
from duodec.distill.recording import Sample

MAX_LENGTH = 1024  # tokens of a sample: its last ones
_WINDOW = 16  # steps whose samples are sorted by length, so that little is padding


def step_of(samples: Sequence[Sample], batch: int, step: int, seed: int) -> list[Sample]:
    """The samples of a step: a function of its number, so nothing of the order is kept."""
    per_epoch = steps_per_epoch(samples, batch)
    epoch, number = divmod(step, per_epoch)
    dice = np.random.default_rng([seed, epoch])
    order = dice.permutation(len(samples))
    lengths = np.array([len(sample.tokens) for sample in samples])
    width = _WINDOW * batch
    windows = [order[i : i + width] for i in range(0, len(order), width)]
    ordered = np.concatenate([w[np.argsort(lengths[w], kind="stable")] for w in windows])
    steps = [ordered[i : i + batch] for i in range(0, len(ordered), batch)]
    chosen = steps[dice.permutation(len(steps))[number]]
    return [samples[i] for i in chosen]


def steps_per_epoch(samples: Sequence[Sample], batch: int) -> int:
    return -(-len(samples) // batch)


@dataclass(frozen=True)
class Batch:
    """Tokens, padded at their end, and the places whose next token is known."""

    tokens: Any  # (samples, length)
    places: Any  # (positions,) of the flattened states
    known: Known

    @classmethod
    def of(cls, samples: Sequence[Sample], device: str, temperature: float) -> Batch:
        shown = [sample.tokens[-MAX_LENGTH:] for sample in samples]
        length = max(map(len, shown))
        tokens = np.zeros((len(samples), length), dtype=np.int64)
        places, tops, logprobs = [], [], []
        for row, (sample, text) in enumerate(zip(samples, shown, strict=True)):
            tokens[row, : len(text)] = text
            num_known = min(len(sample.tops), len(text) - 1)
            # the state of a token tells the next one
            places.append(row * length + np.arange(len(text) - 1 - num_known, len(text) - 1))
            tops.append(sample.tops[len(sample.tops) - num_known :])
            logprobs.append(sample.logprobs[len(sample.logprobs) - num_known :])
        known = Known.of(
            torch.from_numpy(np.concatenate(tops).astype(np.int64)).to(device),
            torch.from_numpy(np.concatenate(logprobs)).to(device),
            temperature,
        )
        return cls(
            torch.from_numpy(tokens).to(device),
            torch.from_numpy(np.concatenate(places)).to(device),
            known,
        )
