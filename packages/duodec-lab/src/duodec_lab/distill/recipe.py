"""Distil a draft: check everything, record, train, write, judge, and keep the better file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from duodec.backends.llamacpp.drafts.head import (
    BYTE_PAIRS,
    Frequency,
)
from duodec.core.traits import Parallel
from duodec.errors import BadOption, DuodecError
from duodec.loading.backends import TargetFiles, named
from duodec.loading.config import LLAMA_CPP
from duodec.loading.resolve import ResolvedTarget, draft_for
from duodec.loading.vetting import vetted
from duodec.machine.memory import available_bytes
from duodec.models import resolve
from duodec.models.vocabularies import difference
from duodec_lab.distill.files import Folder, write_json
from duodec_lab.distill.judging import Verdict, judged
from duodec_lab.distill.library import torch
from duodec_lab.distill.needs import Needs
from duodec_lab.distill.recording import Recording
from duodec_lab.distill.settings import NUM_TOPS
from duodec_lab.distill.source import SourceFile
from duodec_lab.distill.training.logits import FrequentHead, WholeHead
from duodec_lab.distill.training.loop import Measure, Training
from duodec_lab.distill.training.student import open_student, transplant
from duodec_lab.distill.work import Work, identity
from duodec_lab.distill.writing import write_gguf

_VERSION = 1
MANY_TOKENS = 65_536  # of a vocabulary; a larger one's embedding and head are kept
NUM_FREQUENT = 32_768  # of its tokens, whose logits are trained


@dataclass(frozen=True)
class Result:
    """What came of it. ``before`` is the draft that there was, or earlier text alone."""

    path: Path  # of the new draft: the output if it is better, else the candidate
    is_better: bool
    before: Verdict
    after: Verdict
    measures: tuple[Measure, ...]  # on held-out positions, from the first step to the last
    num_recorded: int  # tokens
    num_conversations: int
    num_steps: int
    recording_s: float
    training_s: float
    settings: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"schema_version": _VERSION, **asdict(self), "path": str(self.path)}


def conclude(
    work: Work,
    training: Training,
    recording: Recording,
    layers: Sequence[int],
    before: Verdict,
    after: Verdict,
) -> Result:
    """Keep what was trained as the output if it is better, and write down how it was made."""
    folder, is_better = work.folder, after.beats(before)
    if is_better:
        folder.candidate.replace(work.output)
    path = work.output if is_better else folder.candidate
    result = Result(
        path,
        is_better,
        before,
        replace(after, draft=str(path)),
        tuple(training.history),
        recording.num_tokens,
        recording.num_conversations,
        training.num_steps,
        recording.seconds,
        training.seconds,
        {**asdict(work.settings), "temperature": work.params.temperature,
         "seed": work.seed, "layers": list(layers)},
    )  # fmt: skip
    write_json(folder.result, result.as_json())
    return result


@dataclass(kw_only=True)
class Distillation(Work):
    """A target, the file that its draft is copied from, and the folder of the work.

    `check` computes nothing that takes long and raises whatever can be known at the start.
    """

    origin: str | None = None  # the draft's reference: the one known for the target, or itself

    def check(self) -> None:
        """Raises BadOption, ModelNotFound, ModelUnreadable or BackendUnavailable."""
        self.check_target()
        path = self.target.file.path
        self.before = self._known_draft()
        reference = self.origin or self.before or self.config.target
        file = vetted(resolve(reference, offline=self.config.offline))
        self.source = SourceFile(file.path)
        self.teacher = ResolvedTarget(self.config, named(LLAMA_CPP), TargetFiles(file))
        if self.before is not None and file.path == path:
            self.before = draft_for(replace(self.config, draft="auto"))
        self.layers = self.settings.layers_of(self.source.num_layers)
        with (
            closing(self.target.open_vocabulary()) as vocabulary,
            closing(self.teacher.open_vocabulary()) as own,
        ):
            self.is_transplanted = difference(vocabulary, own) is not None
        if self.is_transplanted and not path.is_file():
            raise BadOption(
                f"{self.config.target} is a folder, and {reference} has another vocabulary: a "
                "tokenizer is copied from GGUF files only; name a draft of the target's "
                "vocabulary with --from, or a GGUF file of the target"
            )
        self.parallel = None
        if self.settings.draft_parallel > 1:
            words = SourceFile(path) if self.is_transplanted else self.source
            self.parallel = Parallel(words.mask_token, self.settings.draft_parallel)
        needs = Needs.of(
            self.source,
            self.layers,
            self.num_vocab,
            self.given,
            self.settings,
            keeps_vocabulary=self._keeps_vocabulary,
        )
        folder = Folder.beside(self.output)
        try:
            needs.check(folder, available_bytes())
            self.claim_folder()
        except DuodecError:
            folder.leave_if_empty()
            raise

    def run(self) -> Result:
        """Record, train, write and judge, from where an earlier run was interrupted. Raises what
        the steps raise; what was done stays in the folder."""
        recording = self.record(NUM_TOPS)
        training = self._train(recording)
        write_gguf(
            training.student,
            self.source,
            self.folder.candidate,
            layers=self.layers,
            vocabulary=SourceFile(self.target.file.path) if self.is_transplanted else None,
            name=f"{self.target.file.path.stem} draft",
            kind=self.settings.quantize,
            frequent=recording.frequent_tokens().tolist(),
            parallel=training.parallel,
        )
        before, after = self._judge()
        return conclude(self, training, recording, self.layers, before, after)

    # --- the steps

    def _train(self, recording: Recording) -> Training:
        device = self.use_device()
        torch.manual_seed(self.seed)
        student = open_student(self.source, self.layers, device)
        if self.is_transplanted:
            with (
                closing(self.teacher.open_vocabulary()) as own,
                closing(self.target.open_vocabulary()) as vocabulary,
            ):
                transplant(student, own, vocabulary)
        training = Training(
            student,
            recording,
            self.settings,
            self.seed,
            self.params.temperature,
            1,
            self.folder,
            self._head(student, recording),
            device,
            self.parallel,
        )
        training.num_steps = self.plan_steps(training)
        training.resume()

        def show(now: Training, loss: float) -> None:
            measure = now.history[-1]
            self.on_progress(
                f"training, loss {loss:.3f}, agreement {measure.top1:.3f} ({measure.top4:.3f})",
                now.step,
                now.num_steps,
            )

        training.run(show)
        return training

    @property
    def _keeps_vocabulary(self) -> bool:
        """Whether embedding and head stay as they are: of a large vocabulary they are most of a
        small model, and its own already."""
        is_own = not self.is_transplanted and self.parallel is None
        return is_own and self.num_vocab > MANY_TOKENS

    def _head(self, student: Any, recording: Recording) -> WholeHead:
        if not self._keeps_vocabulary:
            return WholeHead(student)
        kinds = np.array(self.source.field("tokenizer.ggml.token_type"))
        is_numbered = self.source.field("tokenizer.ggml.model") == BYTE_PAIRS
        counted = recording.frequent_tokens().tolist()
        frequency = Frequency.of(kinds, counted, is_numbered, NUM_FREQUENT)
        return FrequentHead(student, self.settings.quantize, frequency.is_frequent)

    def _judge(self) -> tuple[Verdict, Verdict]:
        before, after = judged(
            self.config,
            [self.before, self.folder.candidate],
            self.prompts.conversations[: self.prompts.num_held_out],
            self.params,
            forward_ms=self.settings.judge_ms,
            on_progress=self.on_progress,
        )
        return before, after

    # --- what is known at the start

    def _known_draft(self) -> str | None:
        """The draft to compare with: the one that is adapted, or the one known for the target."""
        if self.origin:
            return self.origin
        with suppress(DuodecError):
            return draft_for(replace(self.config, draft="auto"))
        return None

    def manifest(self) -> dict[str, Any]:
        """What decides the recording and the weights."""
        return {
            **super().manifest(),
            "from": identity(self.source.path),
            **self.settings.of_training(),
        }
