"""Train a student on a recording; what was interrupted goes on to the same weights.

Every step is a function of the weights, the optimizer's state and the step's number: the order of
samples is drawn from seed and epoch. So a checkpoint is all that is needed, and on the same kind of
CPU, with as many threads, the weights are the same bit for bit.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np

from duodec.backends.allocator import give_back_freed_memory
from duodec.core.traits import Parallel
from duodec.errors import BadOption, ComputeFailed
from duodec.machine.files import replacing
from duodec_lab.distill.files import Folder
from duodec_lab.distill.library import torch
from duodec_lab.distill.recording import Recording, Sample
from duodec_lab.distill.settings import DistillSettings
from duodec_lab.distill.training.batches import Batch, parts_of, step_of, steps_per_epoch
from duodec_lab.distill.training.interrupting import interruptible_between_steps
from duodec_lab.distill.training.logits import WholeHead
from duodec_lab.distill.training.losses import LOSSES, Known, agreement
from duodec_lab.distill.training.rounding import rounded
from duodec_lab.distill.training.student import hidden

CHUNK = 256  # positions whose logits are in memory at once
MAX_EPOCHS = 12
_WARM_UP, _LAST_RATE = 0.05, 0.1  # of the steps, and of the learning rate
_NUM_MEASURES = 4  # on held-out samples, during the training
_SAVE_S = 60.0  # at least so long between checkpoints,
_SAVE_PART = 20  # and so many times as long as writing one takes


@dataclass(frozen=True)
class Measure:
    """How a student does on held-out positions: its loss, and the part of positions where the
    target's likeliest token is its first guess, or one of its first four."""

    step: int
    loss: float
    top1: float
    top4: float
    ahead: tuple[float, ...] = ()  # the same part as top1, after 1, 2, ... mask tokens


@dataclass
class Training:
    """A student, its optimizer and how far they have come."""

    student: Any
    recording: Recording
    settings: DistillSettings
    seed: int
    temperature: float
    num_steps: int
    folder: Folder
    head: WholeHead
    device: str = "cpu"
    parallel: Parallel | None = None
    step: int = 0
    seconds: float = 0.0
    history: list[Measure] = field(default_factory=list)
    clock: Callable[[], float] = perf_counter

    def __post_init__(self) -> None:
        self._loss = LOSSES[self.settings.loss]
        self._scale = 1.0 if self.temperature in (0.0, 1.0) else 1 / self.temperature
        self._trained = {
            name: weight for name, weight in self.student.named_parameters() if weight.requires_grad
        }
        self._optimizer = torch.optim.AdamW(
            self._trained.values(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0
        )

    def run(self, on_step: Callable[[Training, float], None]) -> None:
        """Train to the last step. ``on_step`` gets each step's loss.

        Ctrl-C ends the current step, saves, and raises KeyboardInterrupt. Raises OSError if the
        disk is full: the last checkpoint stays. Raises ComputeFailed if the loss is no number.
        """
        begin_s, before_s = self.clock(), self.seconds
        saved_s, pause_s = begin_s, _SAVE_S
        interval = max(1, self.num_steps // _NUM_MEASURES)
        with deterministic(), interruptible_between_steps() as is_interrupted:
            while self.step < self.num_steps:
                if self.step % interval == 0:
                    self._measure_once()
                loss = self._one_step()
                give_back_freed_memory()
                now_s = self.clock()
                self.seconds = before_s + now_s - begin_s
                on_step(self, loss)
                is_due = now_s - saved_s >= pause_s
                if is_due or is_interrupted() or self.step == self.num_steps:
                    self.save()
                    saved_s = self.clock()
                    pause_s = max(_SAVE_S, _SAVE_PART * (saved_s - now_s))
                if is_interrupted():
                    raise KeyboardInterrupt
            self._measure_once()
            if is_interrupted():
                raise KeyboardInterrupt

    def steps_in(self, seconds: float) -> int:
        """How many steps take so long, measured on whole ones that change no weight, with the
        measurements on held-out samples that come between them."""
        begin_s = self.clock()
        self._measure_once()
        measure_s = self.clock() - begin_s
        return int((seconds - _NUM_MEASURES * measure_s) / self._step_s())

    def _step_s(self) -> float:
        every = [self._samples(step) for step in range(3)]
        longest = max(every, key=lambda samples: sum(len(s.tokens) for s in samples))
        seconds = []
        with deterministic():
            for _ in range(3):  # the first one also reserves memory
                begin_s = self.clock()
                self._update(longest, np.random.default_rng(0), rate=0.0)
                give_back_freed_memory()
                seconds.append(self.clock() - begin_s)
        self._optimizer.zero_grad()
        self._optimizer.state.clear()
        return fmean(seconds[1:])

    def measure(self, samples: Sequence[Sample]) -> Measure:
        """Loss and agreement on these samples."""
        loss, top4 = 0.0, 0
        num_tokens = self.parallel.num_tokens if self.parallel else 1
        right, count = [0] * num_tokens, [0] * num_tokens  # by mask tokens
        logits_of = self.head.to_measure()
        with torch.inference_mode(), rounded(self.student, self.settings.quantize):
            for begin in range(0, len(samples), self.settings.batch):
                batch = self._batch(samples[begin : begin + self.settings.batch])
                every = self._states(batch)
                for depth in range(num_tokens):
                    own = batch.depths == depth
                    wanted = self.head.columns(batch.known.at(own))
                    for part, known in chunks(every[own], wanted):
                        logits = logits_of(part)
                        right[depth] += int(agreement(logits, known, 1))
                        count[depth] += len(part)
                        if depth == 0:
                            log_q = torch.log_softmax(logits * self._scale, -1)
                            loss += float(self._loss(log_q, known).sum())
                            top4 += int(agreement(logits, known, 4))
        top1, *ahead = (num / max(1, of) for num, of in zip(right, count, strict=True))
        num = max(1, count[0])
        return Measure(self.step, loss / num, top1, top4 / num, tuple(ahead))

    def _measure_once(self) -> None:
        if not self.history or self.history[-1].step < self.step:
            self.history.append(self.measure(self.recording.held_out))

    def _samples(self, step: int) -> list[Sample]:
        return step_of(self.recording.training, self.settings.batch, step, self.seed)

    def _batch(self, samples: Sequence[Sample], dice: np.random.Generator | None = None) -> Batch:
        return Batch.of(samples, self.device, self.temperature, self.parallel, dice)

    def _parts(self, samples: Sequence[Sample], dice: np.random.Generator) -> list[Batch]:
        return [self._batch(part, dice) for part in parts_of(samples)]

    def _states(self, batch: Batch) -> Any:
        """Of the batch's places."""
        states = hidden(self.student, batch.tokens, batch.positions, batch.sees)
        return states.flatten(0, 1)[batch.places]

    def _one_step(self) -> float:
        dice = np.random.default_rng([self.seed, self.step])
        rate = self.settings.learning_rate * self._rate()
        loss = self._update(self._samples(self.step), dice, rate)
        self.step += 1
        return loss

    def _update(self, samples: Sequence[Sample], dice: np.random.Generator, rate: float) -> float:
        """Returns the loss before the step. Raises ComputeFailed if it is not finite."""
        self._optimizer.zero_grad()
        loss = self._backward(self._parts(samples, dice), dice)
        if not math.isfinite(loss):
            raise ComputeFailed(
                f"the loss of step {self.step} is no number; use a lower --learning-rate than "
                f"{self.settings.learning_rate:g}"
            )
        torch.nn.utils.clip_grad_norm_(self._trained.values(), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return loss

    def _rate(self) -> float:
        """The part of the learning rate: it rises in a line, and falls along a cosine."""
        warm_up = max(1, round(_WARM_UP * self.num_steps))
        fall = 0.5 * (1 + math.cos(math.pi * self.step / self.num_steps))
        return min(1.0, (self.step + 1) / warm_up) * (_LAST_RATE + (1 - _LAST_RATE) * fall)

    def _backward(self, parts: Sequence[Batch], dice: np.random.Generator) -> float:
        """Add the gradients of a step's mean loss, computed with weights as the file will hold
        them; states and logits are computed in parts, as all of them would take gigabytes."""
        total, num = 0.0, sum(len(batch.places) for batch in parts)
        kind = torch.device(self.device).type
        logits_of = self.head.to_train(dice)
        with (
            rounded(self.student, self.settings.quantize),
            torch.autocast(kind, torch.bfloat16, enabled=has_bfloat16(kind)),
        ):
            for batch in parts:
                states = self._states(batch)
                leaf = states.detach().requires_grad_()
                for chunk, known in chunks(leaf, self.head.columns(batch.known)):
                    logits = logits_of(chunk).float()
                    log_q = torch.log_softmax(logits * self._scale, -1)
                    loss = self._loss(log_q, known).sum() / num
                    loss.backward()
                    total += float(loss.detach())
                states.backward(leaf.grad)
        return total

    # --- checkpoints

    def save(self) -> None:
        """Write a checkpoint, whole or not at all. Raises OSError if the disk is full."""
        state = {
            "trained": {name: weight.detach() for name, weight in self._trained.items()},
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "history": [asdict(measure) for measure in self.history],
            "random": torch.get_rng_state(),
        }
        with replacing(self.folder.checkpoint) as part:
            torch.save(state, part)

    def resume(self) -> None:
        """Take up the last checkpoint, if there is one. Raises BadOption if it is damaged."""
        path = self.folder.checkpoint
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            for name, weight in self._trained.items():
                weight.data.copy_(state["trained"][name])
            self._optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"].cpu())
            self.history = [
                Measure(**{**measure, "ahead": tuple(measure["ahead"])})
                for measure in state["history"]
            ]
            self.step, self.seconds = int(state["step"]), float(state["seconds"])
        except (RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError,
                zipfile.BadZipFile) as error:  # fmt: skip
            words = str(error).split("\n", 1)[0]
            raise BadOption(
                f"{path} is damaged ({words}); delete it to train again from the recording"
            ) from error


def has_bfloat16(kind: str) -> bool:
    """Whether matrices are multiplied faster in bfloat16 than in float32 on this kind of device:
    half the time of a step on a CPU with AVX-512 BF16."""
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def most_steps(recording: Recording, settings: DistillSettings) -> int:
    """Beyond which the same completions teach little more."""
    return MAX_EPOCHS * steps_per_epoch(recording.training, settings.batch)


def chunks(states: Any, known: Known) -> Iterator[tuple[Any, Known]]:
    for i in range(0, len(states), CHUNK):
        rows = slice(i, i + CHUNK)
        yield states[rows], known.at(rows)


@contextmanager
def deterministic() -> Iterator[None]:
    """Sums in one order, where the device can."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
