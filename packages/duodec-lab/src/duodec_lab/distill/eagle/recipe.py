"""Make an EAGLE-3 head: check everything, record, train, write, judge, keep it if it is better."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.backends.llamacpp.drafts.head import BYTE_PAIRS, Frequency
from duodec.backends.llamacpp.heads.files import SHOWN_ARCHITECTURES
from duodec.backends.llamacpp.load import llama_layers
from duodec.errors import BadOption, DuodecError
from duodec.loading.config import LLAMA_CPP
from duodec.machine.cores import available_cores
from duodec.machine.memory import available_bytes
from duodec_lab.distill.eagle.layer import EagleLayer, Shape, rows
from duodec_lab.distill.eagle.states import StatedSample, record_states
from duodec_lab.distill.eagle.training import NUM_UNROLLED, LayerTraining, used_embeddings
from duodec_lab.distill.eagle.writing import HeadTarget, write_head
from duodec_lab.distill.files import Folder
from duodec_lab.distill.judging import judged_heads
from duodec_lab.distill.library import torch
from duodec_lab.distill.needs import TURNS, Needs
from duodec_lab.distill.recipe import Result, conclude
from duodec_lab.distill.recording import Recording
from duodec_lab.distill.settings import NUM_TOPS
from duodec_lab.distill.source import PERMUTED, SourceFile
from duodec_lab.distill.training.batches import MAX_LENGTH, PART_TOKENS
from duodec_lab.distill.training.logits import ReducedHead
from duodec_lab.distill.training.loop import Training
from duodec_lab.distill.training.rounding import as_stored
from duodec_lab.distill.work import Work

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
_MOST_ROWS, _PART = 32_768, 3  # of a vocabulary, that a head guesses from; of a smaller one a third
_LIKELY = np.log(0.05)  # of a token that a training step always computes
_SAMPLED_STATES = 2048  # to know how large states are


def layers_of(num_layers: int) -> tuple[int, int, int]:
    """Whose inputs a head reads: an early layer, a middle one and the last."""
    return min(2, num_layers - 1), num_layers // 2, num_layers - 1


def num_rows(num_vocab: int) -> int:
    """How many tokens a head guesses from."""
    return min(_MOST_ROWS, num_vocab // _PART)


def frequent_tokens(source: SourceFile, recording: Recording) -> NDArray[np.int64]:
    """The tokens that a head guesses from: those that are no text, such as ends of turns, and the
    most frequent ones."""
    kinds = np.array(source.field("tokenizer.ggml.token_type"))
    most = num_rows(len(kinds))
    is_numbered = source.field("tokenizer.ggml.model") == BYTE_PAIRS
    counted = recording.frequent_tokens().tolist()
    return np.flatnonzero(Frequency.of(kinds, counted, is_numbered, most).is_frequent)


def reduced_head(
    source: SourceFile, recording: Recording, kind: str, device: str
) -> tuple[ReducedHead, NDArray[np.int64]]:
    """The target's own rows of frequent tokens, rounded as they will be stored, and these tokens in
    the order of the rows."""
    tokens = frequent_tokens(source, recording)
    num_vocab = len(source.field("tokenizer.ggml.token_type"))
    is_seen = np.zeros(num_vocab, dtype=bool)
    for sample in recording.training:
        is_seen[sample.tops[sample.logprobs > _LIKELY]] = True
    tokens = np.concatenate([tokens[is_seen[tokens]], tokens[~is_seen[tokens]]])
    name = OUTPUT if OUTPUT in source.shapes else EMBEDDING
    matrix = as_stored(torch.from_numpy(rows(source, name, tokens)), kind).to(device)
    return ReducedHead(matrix, tokens, int(is_seen[tokens].sum()), num_vocab), tokens


@dataclass(kw_only=True)
class LayerDistillation(Work):
    """A target in a GGUF file, and the file that its head is written to. `check` computes nothing
    that takes long and raises whatever can be known at the start."""

    def check(self) -> None:
        """Raises BadOption, ModelNotFound, ModelUnreadable or BackendUnavailable."""
        self.check_target()
        path = self.target.file.path
        if (backend := self.target.backend.name) != LLAMA_CPP:
            raise BadOption(
                f"{self.config.target} is computed by {backend}, and an EAGLE-3 head "
                "reads a target through llama.cpp; name a GGUF file, or use --heads medusa"
            )
        self.source = SourceFile(path)
        if self.source.architecture not in SHOWN_ARCHITECTURES:
            known = ", ".join(sorted(SHOWN_ARCHITECTURES & set(PERMUTED)))
            raise BadOption(
                f"{path.name} is of the architecture '{self.source.architecture}', whose layers "
                f"llama.cpp does not show to a head; it shows those of {known}: use --heads medusa "
                "for torch, or distil a draft"
            )
        if self.source.field("split.count"):
            raise BadOption(
                f"{path.name} is one of several files, and a head begins with the weights of a "
                "whole one; join them with llama-gguf-split --merge"
            )
        self.shape, self.layers = Shape.of(self.source), layers_of(self.source.num_layers)
        folder = Folder.beside(self.output)
        try:
            self._needs().check(folder, available_bytes())
            self.claim_folder()
        except DuodecError:
            folder.leave_if_empty()
            raise

    def run(self) -> Result:
        """Record, train, write and judge, from where an earlier run was interrupted. Raises what
        the steps raise; what was done stays in the folder."""
        recording = self._with_states(self.record(NUM_TOPS))
        training, tokens = self._train(recording)
        write_head(
            training.student,
            training.head.matrix.cpu().numpy(),
            tokens,
            HeadTarget(self.target.file.path, self.num_vocab, self._num_context_train, self.layers),
            self.folder.candidate,
            self.settings.quantize,
        )
        before, after = judged_heads(
            self.config,
            [None, self.folder.candidate],
            self.prompts.conversations[: self.prompts.num_held_out],
            self.params,
            forward_ms=self.settings.judge_ms,
            on_progress=self.on_progress,
        )
        return conclude(self, training, recording, self.layers, before, after)

    # --- the steps

    def _with_states(self, recording: Recording) -> Recording:
        begin_s = perf_counter()
        found = record_states(
            self.target.file.path,
            self.layers,
            recording,
            self.folder,
            num_gpu_layers=llama_layers(self.config),
            num_threads=self.config.threads or len(available_cores()),
            on_progress=self.on_progress,
        )
        return replace(found, seconds=found.seconds + perf_counter() - begin_s)

    def _train(self, recording: Recording) -> tuple[LayerTraining, NDArray[np.int64]]:
        device = self.use_device()
        torch.manual_seed(self.seed)
        head, tokens = reduced_head(self.source, recording, self.settings.quantize, device)
        layer = EagleLayer(self.shape, len(self.layers) * self.shape.width)
        layer.begin(self.source, _some_states(recording))
        every = (*recording.held_out, *recording.training)
        used = np.unique(np.concatenate([sample.tokens for sample in every])).astype(np.int64)
        training = LayerTraining(
            layer.to(device),
            recording,
            self.settings,
            self.seed,
            self.params.temperature,
            1,
            self.folder,
            head,
            device,
            embedding=used_embeddings(rows(self.source, EMBEDDING, used), used, device),
        )
        training.num_steps = self.plan_steps(training)
        training.resume()

        def show(now: Training, loss: float) -> None:
            measure = now.history[-1]
            right = ", ".join(f"{share:.3f}" for share in (measure.top1, *measure.ahead))
            self.on_progress(f"training, loss {loss:.3f}, right {right}", now.step, now.num_steps)

        training.run(show)
        return training, tokens

    # --- what is known at the start

    @property
    def _num_context_train(self) -> int:
        return int(self.source.field(f"{self.source.architecture}.context_length") or MAX_LENGTH)

    def _needs(self) -> Needs:
        """Estimated with prompts that are as long as their completions."""
        shape, settings = self.shape, self.settings
        num_inputs = len(self.layers) * shape.width
        layer = EagleLayer.num_params(shape, num_inputs)
        matrix = num_rows(self.num_vocab) * shape.width
        num_prompts = len(self.given.conversations) + settings.written_prompts
        num_prompts = min(num_prompts, settings.num_prompts or num_prompts)
        length = min(MAX_LENGTH, 2 * settings.max_tokens)
        num_tokens = min(settings.batch * length, PART_TOKENS)
        return Needs.of_layer(
            layer,
            matrix,
            NUM_UNROLLED
            * 4
            * num_tokens
            * (12 * shape.width + 4 * shape.inner + 3 * shape.num_heads * length),
            num_tokens=int(num_prompts * TURNS * 2 * settings.max_tokens),
            num_states=num_inputs,
        )

    def manifest(self) -> dict[str, Any]:
        """What decides the recording and the weights."""
        return {
            **super().manifest(),
            "heads": self.settings.heads,
            **self.settings.of_training(),
        }


def _some_states(recording: Recording) -> Any:
    """States of tokens that come after the first, which is unlike all others."""
    parts, num = [], 0
    for sample in recording.training:
        assert isinstance(sample, StatedSample)
        parts.append(np.asarray(sample.states[1:], dtype=np.float32))
        num += len(parts[-1])
        if num >= _SAMPLED_STATES:
            break
    return torch.from_numpy(np.concatenate(parts))
