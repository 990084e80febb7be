"""Order recorded samples into training steps, and make their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.core.traits import Parallel
from duodec_lab.distill.library import torch
from duodec_lab.distill.recording import Sample
from duodec_lab.distill.training.losses import Known

MAX_LENGTH = 1024  # tokens of a sample: its last ones
PART_TOKENS = 2048  # of a step whose states are in memory at once, padding included
_KEPT, _LEAST_KEPT = 0.7, 0.2  # chains that go on at each mask token, and of all, at least
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


def parts_of(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    """A step's samples, the shortest first, as many at once as fit in memory, and one at least: a
    step of long texts takes no more of it than one of short ones."""
    begin = 0
    for end, sample in enumerate(samples):
        length = min(len(sample.tokens), MAX_LENGTH)
        if end > begin and length * (end + 1 - begin) > PART_TOKENS:
            yield samples[begin:end]
            begin = end
    yield samples[begin:]


def steps_per_epoch(samples: Sequence[Sample], batch: int) -> int:
    return -(-len(samples) // batch)


@dataclass(frozen=True)
class Batch:
    """Texts, padded at their end, and the places whose next token is known.

    Where a draft learns to draft several tokens at once, chains of mask tokens follow the padding:
    each goes on from a place of the text and sees nothing after it (PARD, arXiv 2504.18583).
    """

    tokens: Any  # (samples, length)
    places: Any  # (positions,) of the flattened states
    known: Known
    depths: Any  # (positions,): 0 in the text, i at the i-th mask token of a chain
    positions: Any = None  # (samples, length), where there are chains
    sees: Any = None  # (samples, 1, length, length), likewise: which token attends to which

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        device: str,
        temperature: float,
        parallel: Parallel | None = None,
        dice: np.random.Generator | None = None,
    ) -> Batch:
        """With the chains of ``parallel``, as many of which go on as ``dice`` allow."""
        shown = [sample.tokens[-MAX_LENGTH:] for sample in samples]
        longest = max(map(len, shown))
        masks = [
            _masks(len(text) - 1, min(len(sample.tops), len(text) - 1), parallel, dice)
            for sample, text in zip(samples, shown, strict=True)
        ]
        length = longest + max(len(anchors) for anchors, _ in masks)
        shape = (len(samples), length)
        tokens = np.full(shape, parallel.mask_token if parallel else 0, dtype=np.int64)
        positions = np.tile(np.arange(length), (len(samples), 1))
        anchored, depth_of = np.tile(np.arange(length), (len(samples), 1)), np.zeros(shape, int)
        places, tops, logprobs, depths = [], [], [], []
        for row, (sample, text) in enumerate(zip(samples, shown, strict=True)):
            tokens[row, :longest] = 0
            tokens[row, : len(text)] = text
            num_known = min(len(sample.tops), len(text) - 1)
            anchors, ahead = masks[row]
            end = longest + len(anchors)
            anchored[row, longest:end], depth_of[row, longest:end] = anchors, ahead
            positions[row, longest:end] = anchors + ahead
            # the state of a token tells the next one
            begin = len(text) - 1 - num_known
            told = np.concatenate([np.arange(begin, len(text) - 1), anchors + ahead])
            own = np.concatenate([np.arange(begin, len(text) - 1), np.arange(longest, end)])
            places.append(row * length + own)
            depths.append(depth_of[row, own])
            first = len(sample.tops) - num_known - begin  # what is known after the text's first
            tops.append(sample.tops[first + told])
            logprobs.append(sample.logprobs[first + told])
        known = Known.of(
            torch.from_numpy(np.concatenate(tops).astype(np.int64)).to(device),
            torch.from_numpy(np.concatenate(logprobs)).to(device),
            temperature,
        )
        batch = [tokens, np.concatenate(places), np.concatenate(depths)]
        if parallel is not None:
            batch += [positions, _sees(anchored, depth_of)[:, None]]
        given = [torch.from_numpy(array).to(device) for array in batch]
        return cls(given[0], given[1], known, *given[2:])


_Masks = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The mask tokens of a text: the place that each one's chain goes on from, and its number there."""


def _masks(
    end: int, num_known: int, parallel: Parallel | None, dice: np.random.Generator | None
) -> _Masks:
    """Chains of mask tokens after places of a text whose last known token is at ``end``, with so
    many before it. Fewer and fewer go on (the conditional drop of 2504.18583)."""
    anchors, ahead = [], []
    if parallel is not None:
        order = np.arange(end - num_known, end)
        if dice is not None:
            dice.shuffle(order)
        for number in range(1, parallel.num_tokens):
            if dice is not None:
                kept = max(_KEPT**number, _LEAST_KEPT)
                order = order[: max(1, round(kept * num_known))]
            anchors.append(np.sort(order[order + number < end]))
            ahead.append(np.full(len(anchors[-1]), number))
    if not anchors:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(anchors), np.concatenate(ahead)


def _sees(anchored: NDArray[np.int64], ahead: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which token attends to which: (samples, length, length). A token of the text to all up to
    itself, a mask token to its text and to those of its chain up to itself."""
    mine, other = np.s_[:, :, None], np.s_[:, None, :]
    in_text = (ahead[other] == 0) & (anchored[other] <= anchored[mine])
    in_chain = (anchored[other] == anchored[mine]) & (ahead[other] <= ahead[mine])
    found: NDArray[np.bool_] = in_text | (in_chain & (ahead[other] > 0))
    return found
