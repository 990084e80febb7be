"""Serve one loaded model that makes embeddings or ranks texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import Any

import numpy as np

from duodec.backends.loaded import Embedder
from duodec.core.sampling.sampler import Tokens
from duodec.errors import ContextExceeded
from duodec.models.metadata import Use
from duodec.server.errors import bad_field
from duodec.server.metrics import Meters
from duodec.server.models.embedding_thread import EmbeddingThread
from duodec.server.models.served import Served
from duodec.server.settings import Settings

_WARM = "warm"
_MANY = 256  # tokens beyond the context: then not all of a text were counted
_LONG = 64  # characters for a token of context


class LoadedEmbedder(Served):
    """A model that has computed a text of our own. ``lock`` is held while it computes;
    ``is_crowded`` tells whether other models wait for it."""

    def __init__(
        self,
        name: str,
        embedder: Embedder,
        settings: Settings,
        meters: Meters,
        lock: AbstractContextManager[None] | None = None,
        is_crowded: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(name, clock)
        self.embedder = embedder
        self.mapped_bytes = embedder.num_mapped_bytes
        with lock or nullcontext():
            tokens = embedder.tokens_of(_WARM) or [0]
            embedder.rows([embedder.cut(tokens)])
        self._thread = EmbeddingThread(
            embedder, num_slots=settings.num_slots, num_queued=settings.num_queued, lock=lock,
            is_crowded=is_crowded, on_end=meters.embedded,
        )  # fmt: skip

    @property
    def scheduler(self) -> EmbeddingThread:
        return self._thread

    @property
    def use(self) -> Use:
        return "rerank" if self.embedder.ranks else "embedding"

    @property
    def capabilities(self) -> list[str]:
        return [self.use]

    @property
    def num_context(self) -> int:
        return self.embedder.num_context

    @property
    def shares_cores(self) -> bool:
        return self.embedder.shares_cores

    @property
    def computes_on_all_cores(self) -> bool:
        return self.shares_cores and self._thread.is_computing

    def free(self) -> None:
        self.embedder.close()

    def props(self) -> dict[str, Any]:
        return {
            "total_slots": self._thread.num_slots,
            "n_ctx": self.num_context,
            "default_generation_settings": {"n_ctx": self.num_context},
            "n_embd": None if self.embedder.ranks else self.embedder.num_dims,
            "pooling_type": self.embedder.pooling,
            "method": None,
            "chat_template": None,
            "capabilities": self.capabilities,
            "speculation": {
                "has_draft_model": False, "shares_cores": self.shares_cores, "drafter_restarts": 0,
            },
        }  # fmt: skip

    def slots(self, owner: str | None) -> list[dict[str, Any]]:
        num = self._thread.num_running
        return [{"id": i, "is_processing": i < num} for i in range(self._thread.num_slots)]

    # --- texts

    def read(self, text: str | Sequence[int], place: str, *, is_cut: bool) -> Tokens:
        """The tokens of a text, which is cut where it ``is_cut`` and too long. ``place`` is its
        name in the request. Raises ApiError and ContextExceeded."""
        if isinstance(text, str):
            tokens = self.embedder.tokens_of(text)
        else:
            tokens = list(text)
            most = self.embedder.num_vocab - 1
            if unknown := [token for token in tokens if not 0 <= token <= most]:
                raise bad_field(place, f"{place} has the token {unknown[0]}; use 0 to {most}")
        if not tokens:
            raise bad_field(place, f"{place} is empty; send a text")
        return self._fitting(tokens, place, is_cut=is_cut)

    def read_pair(self, query: str, document: str, place: str) -> Tokens:
        """The tokens of a query and a document. Raises ContextExceeded."""
        for text, name in ((query, "query"), (document, place)):
            if len(text) > _LONG * self.num_context:  # no pair is made of what is too long
                self._fitting(self.embedder.tokens_of(text), name, is_cut=False)
        tokens = self.embedder.pair_tokens(query, document)
        return self._fitting(tokens, f"query and {place} together", is_cut=False)

    def _fitting(self, tokens: list[int], place: str, *, is_cut: bool) -> Tokens:
        if len(tokens) > self.num_context and not is_cut:
            more = " or more" if len(tokens) > self.num_context + _MANY else ""
            raise ContextExceeded(
                f"{place}: {len(tokens)} tokens{more}, and '{self.name}' takes texts of "
                f"{self.num_context} at most; send a shorter one"
            )
        return np.array(self.embedder.cut(tokens), np.int32)
