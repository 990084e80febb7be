"""Train heads for a target on what it says; its own weights stay as they are.

As Medusa-1 (2401.10774) and Hydra (2402.05109) are trained: cross entropy on the text that goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from safetensors.torch import save_file

from duodec.backends.torch.blueprint import Blueprint
from duodec.backends.torch.hydra import HydraModule
from duodec.backends.torch.medusa import MedusaModule
from duodec.backends.torch.model import TorchModel
from duodec.core.sampling import SamplingParams
from duodec.distill import recording as recordings
from duodec.distill.batches import MAX_LENGTH, step_of
from duodec.distill.files import Folder
from duodec.distill.library import torch
from duodec.distill.prompts import collect
from duodec.distill.recording import Sample
from duodec.distill.settings import DistillSettings
from duodec.distill.student import hidden
from duodec.distill.training import deterministic, has_bfloat16
from duodec.errors import BadOption, ComputeFailed, warn
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import ResolvedPair, resolve_target
from duodec.machine.cores import available_cores

MODULES = {"medusa": MedusaModule, "hydra": HydraModule}
NUM_LAYERS = 1  # of a head, before its matrix
POSITIONS = 512  # of a step: each is a row of logits for every head
_FADE = 0.8  # how much less each next head's loss weighs, as in the paper
_RECORDING_PART = 0.4  # of the minutes, at most
_LAST_RATE = 0.05  # of the learning rate
_LEAST_TOKENS = 2  # after a position: the target's own head guesses the first

OnProgress = Callable[[str, int, int], None]


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
        weight = self.causal_lm.get_output_embeddings().weight
        num_vocab, width = weight.shape
        torch.manual_seed(self.seed)
        self.heads = MODULES[self.kind](self.num_heads, NUM_LAYERS, width, num_vocab)
        with torch.no_grad():
            self.heads.begin_as(weight)
        self.heads.to(weight.device).train()
        self._optimizer = torch.optim.AdamW(
            self.heads.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0
        )

    def run(
        self,
        samples: Sequence[Sample],
        *,
        most_s: float = math.inf,
        on_step: Callable[[int, float, float], None] = lambda step, share, loss: None,
    ) -> None:
        """Train for as many steps as the settings say, or for so many seconds. ``on_step`` gets the
        number of steps, how much of them that is, and the loss. Raises ComputeFailed if that is no
        number."""
        begin_s, share = self.clock(), 0.0
        with deterministic():
            while share < 1:
                chosen = step_of(samples, self.settings.batch, self.step, self.seed)
                rate = 0.5 * (1 + math.cos(math.pi * share))
                loss = self._one_step(chosen, _LAST_RATE + (1 - _LAST_RATE) * rate)
                self.step += 1
                spent = (self.clock() - begin_s) / most_s
                share = self.step / self.settings.steps if self.settings.steps else spent
                on_step(self.step, min(1.0, share), loss)

    def accuracy(self, samples: Sequence[Sample]) -> tuple[float, ...]:
        """How often each head's first guess is the text's token."""
        right, num = np.zeros(self.num_heads), np.zeros(self.num_heads)
        with torch.inference_mode():
            for sample in samples:
                states, tokens = self._states([sample], POSITIONS)
                for i, logits, wanted in self._guesses(states, tokens):
                    right[i] += int((logits.argmax(-1) == wanted).sum())
                    num[i] += len(wanted)
        return tuple((right / np.maximum(1, num)).tolist())

    def save(self, path: Path, base: str) -> None:
        """Write a folder as such heads are published."""
        path.mkdir(parents=True, exist_ok=True)
        weights = {
            name: weight.detach().to("cpu", torch.bfloat16).contiguous()
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

    def _one_step(self, samples: Sequence[Sample], rate: float) -> float:
        self._optimizer.zero_grad()
        states, tokens = self._states(samples, POSITIONS)
        total = 0.0
        kind = states.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=has_bfloat16(kind)):
            for i, logits, wanted in self._guesses(states, tokens):
                loss = _FADE**i * torch.nn.functional.cross_entropy(logits.float(), wanted)
                loss.backward()
                total += float(loss.detach())
        if not math.isfinite(total):
            raise ComputeFailed(
                f"the loss of step {self.step} is no number; use a lower --learning-rate than "
                f"{self.settings.learning_rate:g}"
            )
        torch.nn.utils.clip_grad_norm_(self.heads.parameters(), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * rate
        self._optimizer.step()
        return total

    def _states(self, samples: Sequence[Sample], most: int) -> tuple[Any, Any]:
        """States of positions of the completions, (positions, width), and the tokens after each,
        (positions, 1 + heads); -1 where a text has ended."""
        device = self.causal_lm.device
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
            states = hidden(self.causal_lm, torch.from_numpy(padded).to(device)).flatten(0, 1)
        dice = np.random.default_rng([self.seed, self.step])
        kept = np.sort(dice.permutation(len(places))[:most])
        at = torch.from_numpy(np.array(places)[kept]).to(device)
        return states[at].clone(), torch.from_numpy(np.array(following)[kept]).long().to(device)

    def _guesses(self, states: Any, tokens: Any) -> Iterator[tuple[int, Any, Any]]:
        """Each head's logits where the text goes on, and the tokens that it should have guessed."""
        embedding = self.causal_lm.get_input_embeddings()
        for i in range(self.num_heads):
            known = tokens[:, i + 1] >= 0
            if bool(known.any()):
                following = embedding(tokens[known, : i + 1])
                yield i, self.heads.logits(i, states[known], following), tokens[known, i + 1]


@dataclass
class HeadDistillation:
    """A target, and the folder that its heads are written to. `check` computes nothing that takes
    long and raises whatever can be known at the start."""

    config: EngineConfig
    output: Path
    settings: DistillSettings
    params: SamplingParams
    files: tuple[Path, ...] = ()
    on_progress: OnProgress = lambda words, done, total: None
    on_warning: Callable[[str], None] = warn

    @property
    def seed(self) -> int:
        return self.params.seed or 0

    def check(self) -> None:
        """Raises BadOption, ModelNotFound, ModelUnreadable or BackendUnavailable."""
        self.prompts = collect(self.files, self.settings.num_prompts, self.seed)
        self.target = resolve_target(self.config)
        with closing(self.target.open_vocabulary()) as vocabulary:
            if vocabulary.chat_template is None:
                raise BadOption(
                    f"{self.config.target} has no chat template, and prompts are chats; distil for "
                    "a model that was trained to chat"
                )
        if self.output.exists():
            raise BadOption(f"{self.output} exists; name another --output, or delete it")
        self.folder = Folder.beside(self.output)

    def run(self) -> Trained:
        """Record, train and write. What was recorded stays beside the output, and is used again.
        Raises what the steps raise."""
        recorded_s = _RECORDING_PART * 60 * self.settings.minutes
        params = replace(self.params, max_tokens=self.settings.max_tokens, logprobs=1)
        config = replace(self.config, draft=None, num_slots=self.settings.parallel)
        with load(
            ResolvedPair(config, self.target.backend, self.target.file), on_warning=self.on_warning
        ) as llm:
            recordings.check_fits(self.prompts, llm, params)
            recordings.record(
                llm,
                self.prompts,
                params,
                self.folder,
                most_s=recorded_s,
                on_progress=self.on_progress,
            )
        known = recordings.read(self.folder, self.prompts)
        if not known.held_out or not known.training:
            raise BadOption("no completion was recorded that measures, or none that trains")
        device = "cuda" if torch.cuda.is_available() and self.config.device != "cpu" else "cpu"
        torch.set_num_threads(self.config.threads or len(available_cores()))
        path = self.target.file.path
        model = TorchModel(Blueprint.of(path, dtype="float32", device=device))
        assert self.settings.heads is not None
        training = HeadTraining(
            model.causal_lm, self.settings.heads, self.settings.num_heads, self.settings, self.seed
        )
        before = training.accuracy(known.held_out)
        begin_s = training.clock()
        training.run(
            known.training,
            most_s=60 * self.settings.minutes - min(known.seconds, recorded_s),
            on_step=lambda step, share, loss: self.on_progress(
                f"training, loss {loss:.3f}", step, max(step, round(step / share))
            ),
        )
        seconds = training.clock() - begin_s
        training.save(self.output, self.config.target)
        after = training.accuracy(known.held_out)
        model.close()
        return Trained(
            self.output, before, after, known.num_tokens, training.step, known.seconds, seconds
        )
