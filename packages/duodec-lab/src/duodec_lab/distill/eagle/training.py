"""Train an EAGLE-3 head on a recording with hidden states, several of its own steps unrolled.

As EAGLE-3's training-time test (2503.01840): after the step that reads the target's states come
some that read the head's own, each on the text's token, as if the guess before had been right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec_lab.distill.eagle.states import StatedSample
from duodec_lab.distill.library import torch
from duodec_lab.distill.recording import Sample
from duodec_lab.distill.training.batches import MAX_LENGTH
from duodec_lab.distill.training.logits import ReducedHead
from duodec_lab.distill.training.loop import Measure, Training, chunks, has_bfloat16
from duodec_lab.distill.training.losses import Known
from duodec_lab.distill.training.rounding import rounded

NUM_UNROLLED = 3
_FADE = 0.8  # how much less each next step's loss weighs


@dataclass(frozen=True)
class StatedText:
    """A text: each token with the target's state of the one before. What follows is known of tokens
    from ``begin`` on."""

    tokens: Any  # (length,)
    states: Any  # (length, numbers)
    begin: int
    known: Known

    @classmethod
    def of(cls, sample: StatedSample, device: str, temperature: float) -> StatedText:
        end = len(sample.tokens) - 1  # nothing is known after the last token
        first = max(1, end - MAX_LENGTH)
        begin = max(first, sample.num_prompt - 1)
        rows = slice(begin + 1 - sample.num_prompt, len(sample.tops))
        known = Known.of(
            torch.from_numpy(sample.tops[rows].astype(np.int64)).to(device),
            torch.from_numpy(sample.logprobs[rows]).to(device),
            temperature,
        )
        tokens = torch.from_numpy(sample.tokens[first:end].astype(np.int64))
        states = torch.from_numpy(sample.states[first - 1 : end - 1].astype(np.float32))
        return cls(tokens.to(device), states.to(device), begin - first, known)


@dataclass
class LayerTraining(Training):
    """A head and how far it has come. ``student`` is its layer; ``embedding`` gives the rows of
    tokens."""

    head: ReducedHead
    embedding: Any = field(kw_only=True)

    def measure(self, samples: Sequence[Sample]) -> Measure:
        """Loss and agreement of the first guess on these samples, and how often each next guess is
        right where those before it were."""
        loss, top4 = 0.0, 0
        right, count = [0] * NUM_UNROLLED, [0] * NUM_UNROLLED
        with torch.inference_mode(), rounded(self.student, self.settings.quantize):
            for sample in samples:
                text = self._text(sample)
                were_right = torch.ones(len(text.known.tokens) + 1, dtype=torch.bool)
                for depth, states in enumerate(self._unrolled(text)):
                    known = text.known.at(slice(depth, None))
                    own_loss, is_right = self._guessed(states, known)
                    if depth == 0:
                        loss, top4 = loss + own_loss, top4 + int(is_right.any(1).sum())
                    tried = were_right[:-1]
                    were_right = is_right[:, 0] & tried
                    right[depth] += int(were_right.sum())
                    count[depth] += int(tried.sum())
        num = max(1, count[0])
        top1, *ahead = (one / max(1, of) for one, of in zip(right, count, strict=True))
        return Measure(self.step, loss / num, top1, top4 / num, tuple(ahead))

    def _guessed(self, states: Any, known: Known) -> tuple[float, Any]:
        """The loss of some places, and which of their first four guesses are right."""
        loss, right = 0.0, []
        for part, own in chunks(states, known):
            logits = self.head.to_measure()(part)
            log_q = torch.log_softmax(logits * self._scale, -1)
            loss += float(self._loss(log_q, self.head.columns(own)).sum())
            right.append(logits.topk(4, -1).indices == self.head.first(own)[:, None])
        return loss, torch.cat(right).cpu()

    def _text(self, sample: Sample) -> StatedText:
        assert isinstance(sample, StatedSample)
        return StatedText.of(sample, self.device, self.temperature)

    def _unrolled(self, text: StatedText) -> list[Any]:
        num_steps = min(NUM_UNROLLED, len(text.known.tokens))
        embedded = self.embedding(text.tokens)
        found: list[Any] = self.student.unrolled(embedded, text.states, text.begin, num_steps)
        return found

    def _parts(self, samples: Sequence[Sample], dice: np.random.Generator) -> list[Any]:
        return [self._text(sample) for sample in samples]

    def _backward(self, parts: Sequence[Any], dice: np.random.Generator) -> float:
        """Text by text, so that nothing is padded."""
        total, num = 0.0, sum(len(text.known.tokens) for text in parts)
        kind = torch.device(self.device).type
        logits_of = self.head.to_train(dice)
        with (
            rounded(self.student, self.settings.quantize),
            torch.autocast(kind, torch.bfloat16, enabled=has_bfloat16(kind)),
        ):
            for text in parts:
                every = self._unrolled(text)
                leaves = [states.detach().requires_grad_() for states in every]
                for depth, leaf in enumerate(leaves):
                    known = self.head.columns(text.known.at(slice(depth, None)))
                    for part, own in chunks(leaf, known):
                        log_q = torch.log_softmax(logits_of(part).float() * self._scale, -1)
                        loss = _FADE**depth * self._loss(log_q, own).sum() / num
                        loss.backward()
                        total += float(loss.detach())
                torch.autograd.backward(every, [leaf.grad for leaf in leaves])
        return total


def used_embeddings(matrix: NDArray[np.float32], tokens: NDArray[np.int64], device: str) -> Any:
    """A function of tokens that gives their rows, of which ``matrix`` has those of ``tokens``, in
    ascending order."""
    own, named = torch.from_numpy(matrix).to(device), torch.from_numpy(tokens).to(device)
    return lambda wanted: own[torch.searchsorted(named, wanted)]
