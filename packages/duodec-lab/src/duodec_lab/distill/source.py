"""Read the GGUF file that a draft is copied from: what can be trained and written back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from duodec.errors import ModelUnreadable
from duodec_lab.distill.library import gguf

# how rows of queries and keys are ordered: llama.cpp's converter permutes those of Llama
PERMUTED = {"llama": True, "qwen2": False, "qwen3": False}
_CONTROL, _UNUSED = 3, 5  # llama_token_type
_MARKS = ("bos", "eos", "eot", "padding", "unknown", "separator")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


@dataclass(frozen=True)
class SourceFile:
    """A small model in a GGUF file. Raises ModelUnreadable for one that cannot be written back."""

    path: Path

    def __post_init__(self) -> None:
        if self.architecture not in PERMUTED:
            raise ModelUnreadable(
                f"{self.path} is of the architecture '{self.architecture}', and drafts can be "
                f"trained and written back for {', '.join(PERMUTED)}; name another with --from"
            )
        if self.field(f"{self.architecture}.expert_count"):
            raise ModelUnreadable(
                f"{self.path} is a mixture of experts, which cannot be written back; name another "
                "with --from"
            )

    @cached_property
    def reader(self) -> Any:
        try:
            return gguf.GGUFReader(self.path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise ModelUnreadable(
                f"{self.path} is not a GGUF file that can be read ({error}); name another draft "
                "with --from"
            ) from error

    @property
    def architecture(self) -> str:
        return str(self.field("general.architecture") or "unknown")

    @property
    def num_layers(self) -> int:
        return int(self.field(f"{self.architecture}.block_count") or 0)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of every tensor, as torch has them."""
        return {t.name: tuple(map(int, reversed(t.shape))) for t in self.reader.tensors}

    @property
    def mask_token(self) -> int:
        """A token that no text has: one that is not used, or else the last one that controls and
        neither begins nor ends a text or a turn. Raises ModelUnreadable where there is none."""
        kinds = self.field("tokenizer.ggml.token_type") or ()
        if _UNUSED in kinds:
            return int(kinds.index(_UNUSED))
        words = self.field("tokenizer.ggml.tokens") or ()
        template = self.field("tokenizer.chat_template") or ""
        marks = {self.field(f"tokenizer.ggml.{name}_token_id") for name in _MARKS}
        for token in reversed(range(len(kinds))):
            if kinds[token] == _CONTROL and token not in marks and words[token] not in template:
                return token
        raise ModelUnreadable(
            f"{self.path} has no token that no text has, to be a mask; leave out --draft-parallel"
        )

    def field(self, key: str) -> Any:
        """A value of the metadata; None if it is not there."""
        field = self.reader.fields.get(key)
        return None if field is None else field.contents()

    def num_params(self, layers: tuple[int, ...], num_vocab: int | None = None) -> int:
        """Weights of the model with these layers alone, and so many tokens."""
        own = int(self.shapes["token_embd.weight"][0])
        total = 0
        for name, shape in self.shapes.items():
            block = _BLOCK.match(name)
            if block and int(block[1]) not in layers:
                continue
            is_of_tokens = name in ("token_embd.weight", "output.weight")
            scale = num_vocab / own if is_of_tokens and num_vocab is not None else 1.0
            total += int(prod(shape) * scale)
        return total
