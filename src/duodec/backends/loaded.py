"""Define a loaded target, and a loaded model of embeddings, whichever library computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from duodec.backends.llamacpp.footprint import Footprint
from duodec.backends.placement import Placement
from duodec.backends.translation.recipe import VocabularyRecipe
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Target
from duodec.core.tokenizers import Tokenizer
from duodec.core.traits import Widths
from duodec.errors import ContextExceeded
from duodec.machine.core_plan import CorePlan


class OpenVocabulary(Tokenizer, Protocol):
    """Define a vocabulary that is freed when it is closed."""

    def by_value(self) -> VocabularyRecipe: ...
    def close(self) -> None: ...


class TargetModel(Tokenizer, Protocol):
    """Define a model's vocabulary and its facts; the chat template is its own unless another is
    set."""

    chat_template: str | None

    @property
    def name(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def license(self) -> str | None: ...
    @property
    def num_params(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def is_read(self) -> bool:
        """Return whether its weights are in memory; otherwise they are read from the disk as they
        are used."""

    @property
    def num_context_train(self) -> int: ...
    @property
    def cache_bytes_per_token(self) -> int: ...
    def by_value(self) -> VocabularyRecipe:
        """Return its vocabulary, for another process to load."""

    def close(self) -> None: ...


class RunningTarget(Target, Protocol):
    """Define a target with its cache."""

    def use_threads(self, num_threads: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class LoadedTarget:
    """Hold a loaded model. `start` makes the target that computes it, for texts of a number of
    tokens, and raises ModelUnreadable if memory is too short."""

    model: TargetModel
    placement: Placement
    num_context: int  # most tokens of a text: as configured, or as many as memory holds
    start: Callable[[int, CorePlan], RunningTarget]
    place: str  # for people: its backend, device and number format
    free_bytes: Callable[[], int] | None = None  # of its own device's memory, if known
    widths: Widths = field(default_factory=Widths)  # rows of a forward pass that continues a text
    pass_s: Mapping[int, float] = field(default_factory=dict)
    """The seconds of a forward pass by its rows, as far as loading measured them."""
    footprint: Footprint | None = None  # set if it was estimated before loading

    @property
    def is_on_cpu(self) -> bool:
        """Return whether it computes on cores that a drafter would use, even if only in part."""
        return self.placement.uses_cores


Rows = NDArray[np.float32]  # shape (texts, numbers of a row)


class Embedder(Protocol):
    """Compute one row of each text: an embedding, or if it ``ranks``, a score of a query and a
    document. Only tokenising is thread-safe."""

    num_context: int  # most tokens of a text
    num_pass: int  # tokens of a forward pass of several texts
    most_texts: int  # texts of a forward pass
    num_forwards: int  # forward passes so far

    @property
    def num_dims(self) -> int: ...
    @property
    def num_vocab(self) -> int: ...
    @property
    def ranks(self) -> bool: ...
    @property
    def pooling(self) -> str: ...
    @property
    def is_matryoshka(self) -> bool:
        """Return whether the first numbers of an embedding are also an embedding, by training."""

    @property
    def shares_cores(self) -> bool:
        """Return whether it computes on cores of this machine."""

    @property
    def num_mapped_bytes(self) -> int:
        """Return the bytes of weights that count as free memory, as they are mapped from a file."""

    def tokens_of(self, text: str) -> list[int]:
        """Return the tokens of a text, with those that begin and end it."""

    def pair_tokens(self, query: str, document: str) -> list[int]:
        """Return the tokens of a query and a document, for a model that ranks."""

    def cut(self, tokens: Sequence[int]) -> list[int]:
        """Return as many tokens from the beginning as a text may have, ended as the model ends a
        text."""

    def rows(self, texts: Sequence[Sequence[int] | Tokens]) -> Rows:
        """Return a row of each text, as computed in one forward pass, or in several for one long
        text. Raises ComputeFailed."""

    def close(self) -> None: ...


def num_fitting(sizes: Iterable[int], most_tokens: int, most_texts: int) -> int:
    """Return how many texts of these sizes, from the first on, fit in a forward pass; at least
    one."""
    num, total = 0, 0
    for size in sizes:
        total += size
        if num and (total > most_tokens or num == most_texts):
            break
        num += 1
    return num


def normalised(rows: Rows) -> Rows:
    """Return rows of length 1, as llama.cpp's server sends them; a row of zeros stays."""
    lengths = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=-1, keepdims=True))
    scale = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    found: Rows = (rows * scale.astype(np.float32)).astype(np.float32)
    return found


def checked_context(num_context: int, trained: int) -> int:
    """Return the context; raise ContextExceeded for more than the model was trained for."""
    if num_context > trained:
        raise ContextExceeded(
            f"context is {num_context} and the model was trained for {trained} tokens; "
            f"use {trained} or less"
        )
    return num_context
