"""Estimate what a distillation needs, and refuse it before any work if the machine lacks it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from duodec.errors import BadOption
from duodec_lab.distill.files import Folder
from duodec_lab.distill.prompts.collect import Prompts
from duodec_lab.distill.settings import NUM_TOPS, DistillSettings
from duodec_lab.distill.source import SourceFile
from duodec_lab.distill.training.batches import MAX_LENGTH, PART_TOKENS
from duodec_lab.distill.training.loop import CHUNK

_FIXED = 800 << 20  # torch itself, and what else a process has
_OF_WEIGHT = 4 * 5  # weight, gradient, two moments, and a copy while the file is read
_OF_KEPT = 4 * 3  # of a weight that stays: itself, rounded, and a copy while the file is read
TURNS = 1.5  # completions of a conversation
_RECORDED = 2 * NUM_TOPS + 4 * NUM_TOPS + 8  # bytes a token
_CHECKPOINTS = 2 * 3 * 4  # bytes of a weight: one is whole while the next is written


@dataclass(frozen=True)
class Needs:
    """Bytes of memory for training, and bytes of disk."""

    memory: int
    disk: int

    @classmethod
    def of(
        cls,
        source: SourceFile,
        layers: tuple[int, ...],
        num_vocab: int,
        prompts: Prompts,
        settings: DistillSettings,
        *,
        keeps_vocabulary: bool = False,
    ) -> Needs:
        num_params = source.num_params(layers, num_vocab)
        num_trained = source.num_params(layers, 0) if keeps_vocabulary else num_params
        shapes = source.shapes
        width = shapes["token_embd.weight"][1]
        inner = shapes["blk.0.ffn_up.weight"][0]
        num_tokens = min(settings.batch * MAX_LENGTH, PART_TOKENS)
        # of the text and of mask tokens, most of which are left out
        states = 4 * num_tokens * settings.draft_parallel * len(layers) * (12 * width + 4 * inner)
        logits = 4 * 4 * CHUNK * num_vocab
        num_prompts = len(prompts.conversations) + settings.written_prompts
        if settings.num_prompts:
            num_prompts = min(num_prompts, settings.num_prompts)
        recorded = int(num_prompts * TURNS * settings.max_tokens * _RECORDED)
        return cls(
            _OF_WEIGHT * num_trained
            + _OF_KEPT * (num_params - num_trained)
            + states
            + logits
            + _FIXED,
            _CHECKPOINTS * num_trained + 2 * num_params + recorded,
        )

    @classmethod
    def of_layer(
        cls, num_trained: int, num_kept: int, state_bytes: int, *, num_tokens: int, num_states: int
    ) -> Needs:
        """Of a head with so many weights that are trained, and that stay; with a recording of so
        many tokens and so many numbers of a token's hidden states."""
        logits = 4 * 4 * CHUNK * (num_kept // max(1, num_states // 3))
        recorded = num_tokens * (_RECORDED + 2 * num_states)
        return cls(
            _OF_WEIGHT * num_trained + _OF_KEPT * num_kept + state_bytes + logits + _FIXED,
            _CHECKPOINTS * num_trained + 2 * (num_trained + num_kept) + recorded,
        )

    def check(self, folder: Folder, free_bytes: int) -> None:
        """Raises BadOption, which says what is needed and what there is."""
        if free_bytes < self.memory:
            raise BadOption(
                f"training takes about {_size(self.memory)} of memory and {_size(free_bytes)} are "
                "free; use a smaller draft with --from, fewer --layers or a smaller --batch"
            )
        held = sum(path.stat().st_size for path in folder.path.glob("*") if path.is_file())
        free = free_disk(folder.path) + held
        if free < self.disk:
            raise BadOption(
                f"recording and checkpoints take about {_size(self.disk)} and the disk of "
                f"{folder.path} has {_size(free)} free; free space, or name another disk with "
                "--output"
            )


def free_disk(path: Path) -> int:
    """Bytes that this path's disk has left."""
    return shutil.disk_usage(path).free


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
