"""Train heads for a target on what it says; its own weights stay as they are.

As Medusa-1 (2401.10774) and Hydra (2402.05109) are trained: cross entropy on the text that goes on.
What a head computes before its matrix is trained; the matrix stays the target's own, as in EAGLE
(2401.15077). So the target's states are computed once, and a step computes logits of the tokens
that the texts have and of a sample of all others (1412.2007).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from duodec.errors import ComputeFailed
from duodec_lab.distill.library import save_file, torch
from duodec_lab.distill.recording import Sample
from duodec_lab.distill.settings import DistillSettings
from duodec_lab.distill.training.batches import MAX_LENGTH
from duodec_lab.distill.training.logits import Shown
from duodec_lab.distill.training.loop import deterministic, has_bfloat16
from duodec_lab.distill.training.student import hidden
from duodec_lab.distill.work import Work
from duodec_torch.checkpoint.blueprint import Blueprint
from duodec_torch.checkpoint.model import TorchModel
from duodec_torch.heads.hydra import HydraModule
from duodec_torch.heads.medusa import MedusaModule

MODULES = {"medusa": MedusaModule, "hydra": HydraModule}
NUM_LAYERS = 1  # of a head, before its matrix
POSITIONS = 512  # of a step: each is a row of logits for every head
_FADE = 0.8  # how much less each next head's loss weighs, as in the paper
_MEASURING_PART, _STATES_PART = 0.1, 0.4  # of the time after recording, at most
_LAST_RATE = 0.05  # of the learning rate
_LEAST_TOKENS = 2  # after a position: the target's own head guesses the first


@dataclass(frozen=True)
class Trained:
    """What came of it: how often each head's first guess is right on completions that were held
    out, before and after the training."""

    path: Path
    before: tuple[float, ...]
    after: tuple[float, ...]
    num_recorded: int  # tokens
    num_steps: int
    recording_s: float
    training_s: float

    def as_json(self) -> dict[str, Any]:
        return {"schema_version": 1, **asdict(self), "path": str(self.path)}


@dataclass(frozen=True)
class Positions:
    """Places in completions: the target's states, (positions, width), and the tokens after each,
    (positions, 1 + heads), -1 where a text has ended."""

    states: Any
    tokens: Any

    def __len__(self) -> int:
        return len(self.tokens)

    def at(self, rows: Any) -> Positions:
        """Some of them."""
        return Positions(self.states[rows], self.tokens[rows])


@dataclass
class HeadTraining:
    """Heads on a causal language model of transformers, and how far they have come."""

    causal_lm: Any
    kind: str
    num_heads: int
    settings: DistillSettings
    seed: int = 0
    step: int = 0
    clock: Callable[[], float] = perf_counter
    heads: Any = field(init=False)

    def __post_init__(self) -> None:
        self.causal_lm.requires_grad_(False).eval()
        self._matrix = self.causal_lm.get_output_embeddings().weight
        num_vocab, width = self._matrix.shape
        self.heads = MODULES[self.kind](self.num_heads, NUM_LAYERS, width, num_vocab)
        self.heads.begin_as_target()
        for own in self.heads.matrices:
            own.weight = self._matrix
            own.requires_grad_(False)
        self.heads.to(self._matrix.device).train()
        self._trained = [weight for weight in self.heads.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._trained, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0
        )

    def positions(
        self,
        samples: Sequence[Sample],
        *,
        most_s: float = math.inf,
        on_part: Callable[[int, int], None] = lambda done, total: None,
    ) -> Positions:
        """The places of these samples' completions, of the shortest texts first: as many as can be
        read in so many seconds. They stay on the host, states in bfloat16."""
        begin_s, batch = self.clock(), self.settings.batch
        ordered = sorted(samples, key=lambda sample: len(sample.tokens))  # little is padding
        parts: list[Positions] = []
        while batch * len(parts) < len(ordered):
            begin = batch * len(parts)
            parts.append(self._part(ordered[begin : begin + batch]))
            on_part(min(len(ordered), begin + batch), len(ordered))
            if (self.clock() - begin_s) * (1 + 1 / len(parts)) > most_s:
                break
        return Positions(
            torch.cat([part.states for part in parts]), torch.cat([part.tokens for part in parts])
        )

    def run(
        self,
        known: Positions,
        *,
        most_s: float = math.inf,
        on_step: Callable[[int, float, float], None] = lambda step, share, loss: None,
    ) -> None:
        """Train for as many steps as the settings say, or for so many seconds. ``on_step`` gets the
        number of steps, how much of them that is, and the loss. Raises ComputeFailed if that is no
        number."""
        begin_s, share = self.clock(), 0.0
        shown = Shown(_is_in(known.tokens[:, 1:], len(self._matrix)))
        with deterministic():
            while share < 1:
                rate = 0.5 * (1 + math.cos(math.pi * share))
                loss = self._one_step(known, shown, _LAST_RATE + (1 - _LAST_RATE) * rate)
                self.step += 1
                spent = (self.clock() - begin_s) / most_s
                share = self.step / self.settings.steps if self.settings.steps else spent
                on_step(self.step, min(1.0, share), loss)

    def accuracy(self, known: Positions) -> tuple[float, ...]:
        """How often each head's first guess is the text's token."""
        right, num = np.zeros(self.num_heads), np.zeros(self.num_heads)
        with torch.inference_mode():
            for begin in range(0, len(known), POSITIONS):
                part = known.at(slice(begin, begin + POSITIONS))
                for i, states, wanted in self._states(part):
                    guesses = self.heads.matrices[i](states).argmax(-1).cpu()
                    right[i] += int((guesses == wanted).sum())
                    num[i] += len(wanted)
        return tuple((right / np.maximum(1, num)).tolist())

    def save(self, path: Path, base: str) -> None:
        """Write a folder as such heads are published: each has a copy of the matrix."""
        path.mkdir(parents=True, exist_ok=True)
        weights = {
            name: weight.detach().to("cpu", torch.bfloat16, copy=True).contiguous()
            for name, weight in self.heads.state_dict().items()
        }
        save_file(weights, path / f"{self.kind}_lm_head.safetensors")
        config = {
            f"{self.kind}_num_heads": self.num_heads,
            f"{self.kind}_num_layers": NUM_LAYERS,
            "base_model_name_or_path": base,
            **self.heads.config,
        }
        (path / "config.json").write_text(f"{json.dumps(config, indent=1)}\n", "utf-8")

    def _one_step(self, known: Positions, shown: Shown, rate: float) -> float:
        self._optimizer.zero_grad()
        dice = np.random.default_rng([self.seed, self.step])
        some = known.at(torch.from_numpy(dice.permutation(len(known))[:POSITIONS]))
        rows, shift = (one.to(self._matrix.device) for one in shown.sample(dice))
        matrix = self._matrix[rows]
        total = 0.0
        kind = matrix.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=has_bfloat16(kind)):
            for i, states, tokens in self._states(some):
                logits = torch.nn.functional.linear(states, matrix).float() + shift
                wanted = shown.column(tokens).to(matrix.device)
                loss = _FADE**i * torch.nn.functional.cross_entropy(logits, wanted)
                loss.backward()
                total += float(loss.detach())
        if not math.isfinite(total):
            raise ComputeFailed(
                f"the loss of step {self.step} is no number; use a lower --learning-rate than "
                f"{self.settings.learning_rate:g}"
            )
        torch.nn.utils.clip_grad_norm_(self._trained, 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * rate
        self._optimizer.step()
        return total

    def _part(self, samples: Sequence[Sample]) -> Positions:
        """The places of samples that are computed at once."""
        shown = [sample.tokens[-MAX_LENGTH:] for sample in samples]
        padded = np.zeros((len(shown), max(map(len, shown))), dtype=np.int64)
        places, following = [], []
        for row, (sample, text) in enumerate(zip(samples, shown, strict=True)):
            padded[row, : len(text)] = text
            first = max(0, sample.num_prompt - 1 - (len(sample.tokens) - len(text)))
            ended = np.concatenate([text, np.full(self.num_heads, -1)])
            for place in range(first, len(text) - _LEAST_TOKENS):
                places.append(row * padded.shape[1] + place)
                following.append(ended[place + 1 : place + 2 + self.num_heads])
        with torch.no_grad():
            tokens = torch.from_numpy(padded).to(self.causal_lm.device)
            states = hidden(self.causal_lm, tokens).flatten(0, 1)[places]
        known = np.array(following, np.int64).reshape(-1, 1 + self.num_heads)
        return Positions(states.to("cpu", torch.bfloat16), torch.from_numpy(known))

    def _states(self, some: Positions) -> Iterator[tuple[int, Any, Any]]:
        """What each head's matrix reads where the text goes on, and the tokens, on the host, that
        it should have guessed."""
        embedding = self.causal_lm.get_input_embeddings()
        for i in range(self.num_heads):
            part = some.at(some.tokens[:, i + 1] >= 0)
            if len(part):
                own = part.states.to(self._matrix)
                following = embedding(part.tokens[:, : i + 1].to(own.device))
                yield i, self.heads.state(i, own, following), part.tokens[:, i + 1]


def _is_in(tokens: Any, num_vocab: int) -> Any:
    """Which of a vocabulary's tokens are among these: (vocab,)."""
    found = torch.zeros(num_vocab, dtype=torch.bool)
    found[tokens[tokens >= 0]] = True
    return found


@dataclass
class HeadDistillation(Work):
    """A target, and the folder that its heads are written to. `check` computes nothing that takes
    long and raises whatever can be known at the start."""

    def check(self) -> None:
        """Raises BadOption, ModelNotFound, ModelUnreadable or BackendUnavailable."""
        self.check_target()
        self.claim_folder()

    def run(self) -> Trained:
        """Record, train and write. What was recorded stays beside the output, and is used again.
        Raises what the steps raise."""
        recording = self.record(num_tops=1)
        device = self.use_device()
        model = TorchModel(Blueprint.of(self.target.file.path, dtype="float32", device=device))
        kind = self.settings.heads
        assert kind is not None
        training = HeadTraining(
            model.causal_lm, kind, self.settings.num_heads, self.settings, self.seed
        )
        begin_s = training.clock()
        left_s = 60 * self.settings.minutes - min(recording.seconds, self.recording_s)
        held_out = training.positions(recording.held_out, most_s=_MEASURING_PART * left_s)
        known = training.positions(
            recording.training,
            most_s=_STATES_PART * left_s,
            on_part=lambda done, total: self.on_progress("computing states", done, total),
        )
        before = training.accuracy(held_out)
        training.run(
            known,
            most_s=max(1.0, left_s - (training.clock() - begin_s)),
            on_step=lambda step, share, loss: self.on_progress(
                f"training, loss {loss:.3f}", step, max(step, round(step / share))
            ),
        )
        seconds = training.clock() - begin_s
        training.save(self.output, self.config.target)
        after = training.accuracy(held_out)
        model.close()
        return Trained(
            self.output,
            before,
            after,
            recording.num_tokens,
            training.step,
            recording.seconds,
            seconds,
        )
