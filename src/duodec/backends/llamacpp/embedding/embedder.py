"""Compute the rows of texts in llama.cpp: several texts a forward pass, each a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from duodec.backends.interrupts import FLAG, callback, interruptible, stoppable
from duodec.backends.llamacpp.embedding.model import PooledModel, Pooling
from duodec.backends.llamacpp.target.context import STOPPED, Batch, Threads
from duodec.backends.loaded import Rows
from duodec.backends.placement import Placement
from duodec.core.sampling.sampler import Tokens
from duodec.errors import ComputeFailed, ModelUnreadable

_MOST_TEXTS = 64  # texts of a forward pass
_PASS_CPU, _PASS_GPU = 512, 2048  # tokens of a forward pass of several texts
# Letters of a token, beyond which a text is longer than the context, however it is divided.
_LETTERS = 64
_MARGIN = 256  # tokens that a cut through a text may add


class LlamaEmbedder:
    """Compute one row of each text: see `duodec.backends.loaded.Embedder`.

    A text is computed in one forward pass, except by decoders that pool its last row: they read a
    long text in parts. ``most_threads`` returns how many threads may compute now, given the cores
    that other programs leave.
    """

    most_texts = _MOST_TEXTS

    def __init__(
        self,
        model: PooledModel,
        *,
        num_context: int,
        num_threads: int,
        most_threads: Callable[[], int] | None = None,
        parse_special: bool = False,
    ) -> None:
        self.model, self.num_context = model, num_context
        self.num_pass = pass_tokens(model)
        self.num_forwards = 0
        self._parse_special = parse_special
        self._num_threads, self._most_threads = num_threads, most_threads
        self._lib = model.lib
        self._num_batch = batch_tokens(model, num_context)
        num_cells = max(num_context, self._num_batch)
        self.handle = _open(model, self._num_batch, num_cells, num_threads)
        self._memory = self._lib.llama_get_memory(self.handle)  # an encoder has none
        self._batch = Batch(self._lib, self._num_batch, 1)
        self._threads = Threads(self._lib, self.handle)

    def close(self) -> None:
        """Free the context and the weights."""
        if self.handle:
            self._lib.llama_free(self.handle)
            self.handle = None
        self.model.close()

    @property
    def num_dims(self) -> int:
        return self.model.num_dims

    @property
    def num_vocab(self) -> int:
        return self.model.num_vocab

    @property
    def ranks(self) -> bool:
        return self.model.pooling is Pooling.RANK

    @property
    def pooling(self) -> str:
        return self.model.pooling.name.lower()

    @property
    def is_matryoshka(self) -> bool:
        return self.model.is_matryoshka

    @property
    def shares_cores(self) -> bool:
        return self.model.placement.uses_cores

    @property
    def num_mapped_bytes(self) -> int:
        return 0 if self.model.is_read or not self.shares_cores else self.model.num_bytes

    def tokens_of(self, text: str) -> list[int]:
        """Return the tokens of a text; for one that is longer than the context in any case, not all
        of them."""
        first = text[: _LETTERS * self.num_context]
        tokens = self.model.tokenize(first, is_templated=self._parse_special)
        if len(first) == len(text) or len(tokens) > self.num_context + _MARGIN:
            return tokens
        return self.model.tokenize(text, is_templated=self._parse_special)

    def pair_tokens(self, query: str, document: str) -> list[int]:
        return self.model.pair_tokens(query, document)

    def cut(self, tokens: Sequence[int]) -> list[int]:
        if len(tokens) <= self.num_context:
            return list(tokens)
        last = self.model.last_tokens
        return [*tokens[: self.num_context - len(last)], *last]

    def rows(self, texts: Sequence[Sequence[int] | Tokens]) -> Rows:
        assert 0 < len(texts) <= _MOST_TEXTS, "as many as a forward pass takes"
        if self._memory:
            self._lib.llama_memory_clear(self._memory, False)
        most = self._most_threads() if self._most_threads else self._num_threads
        self._threads.use(min(most, self._num_threads))
        if len(texts) == 1:
            (text,) = texts
            for begin in range(0, len(text), self._num_batch):
                part = np.array(text[begin : begin + self._num_batch], np.int32)
                self._compute([part], begin)
        else:
            self._compute([np.array(text, np.int32) for text in texts], 0)
        return np.stack([self._row(number) for number in range(len(texts))])

    def _compute(self, texts: Sequence[Tokens], begin: int) -> None:
        self._batch.fill_texts(texts, begin)
        with stoppable():
            status = self._lib.llama_decode(self.handle, self._batch.struct)
        self.num_forwards += 1
        if status == STOPPED:
            raise KeyboardInterrupt
        if status:
            raise ComputeFailed(
                f"llama.cpp could not compute {self.model.path.name} (status {status}); memory may "
                "be short: use a smaller `context`, or fewer `gpu_layers`"
            )

    def _row(self, number: int) -> Rows:
        found = self._lib.llama_get_embeddings_seq(self.handle, number)
        assert found, "a text that was computed has a row"
        row: Rows = np.ctypeslib.as_array(found, (self.num_dims,)).copy()
        if not np.isfinite(row).all():
            raise ComputeFailed(
                f"{self.model.path.name} computes numbers that are none (NaN or infinite); its "
                "weights are damaged: download it again"
            )
        return row


def reads_in_parts(model: PooledModel) -> bool:
    """Return whether a long text may be computed in several forward passes."""
    return model.is_decoder and model.is_causal and model.pooling is Pooling.LAST


def pass_tokens(model: PooledModel) -> int:
    """Return the most tokens of a forward pass of several texts."""
    return _PASS_CPU if model.placement is Placement.CPU else _PASS_GPU


def batch_tokens(model: PooledModel, num_context: int) -> int:
    """Return the most tokens of any forward pass."""
    return pass_tokens(model) if reads_in_parts(model) else max(num_context, pass_tokens(model))


def _open(model: PooledModel, num_pass: int, num_cells: int, num_threads: int) -> Any:
    """Return a context whose forward passes give one row per sequence. Raises ModelUnreadable."""
    lib = model.lib
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = num_cells, num_pass, num_pass
    params.n_seq_max = _MOST_TEXTS
    params.n_threads = params.n_threads_batch = num_threads
    params.embeddings = params.kv_unified = params.no_perf = True
    params.abort_callback = callback(lib.ggml_abort_callback)
    params.abort_callback_data = FLAG.address

    def opened() -> Any:
        return lib.llama_init_from_model(model.handle, params)

    try:
        handle = interruptible(opened, lambda handle: None)
    except KeyboardInterrupt:  # it is still being made: its parts are never freed
        model.handle = None
        raise
    if not handle:
        raise ModelUnreadable(
            f"no memory to compute texts of {num_pass} tokens of {model.path}; use a smaller "
            "`context`"
        )
    return handle
