"""Serve embeddings and ranks: read the texts, have them computed, write the response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from duodec.backends.loaded import Rows, normalised
from duodec.core.sampling.sampler import Tokens
from duodec.models.metadata import Use
from duodec.server.api.embedding import responses
from duodec.server.api.embedding.bodies import (
    EmbeddingsBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    RerankBody,
)
from duodec.server.api.fields import validated
from duodec.server.api.ollama.listing import tagged
from duodec.server.errors import bad_field, timed_out
from duodec.server.http.intake import Intake
from duodec.server.logs import note
from duodec.server.models.embedder import LoadedEmbedder
from duodec.server.models.embedding_thread import EmbeddingJob
from duodec.server.models.served import ModelLease, other_use

Response = dict[str, Any] | list[dict[str, Any]]
Written = Callable[[Rows, int], Response]
"""The response of rows, as computed, and of the tokens of the texts."""


@dataclass
class PendingRows:
    """A request whose texts are being computed. The model is leased until it is closed."""

    lease: ModelLease[LoadedEmbedder]
    job: EmbeddingJob | None  # none where there is nothing to compute
    write: Written
    timeout_s: float
    begin_s: float

    async def response(self) -> Response:
        """Raises ApiError where it takes too long, and what went wrong."""
        if self.job is None:
            return self.write(_NO_ROWS, 0)
        left_s = max(0.0, self.begin_s + self.timeout_s - perf_counter())
        future = asyncio.wrap_future(self.job.future)  # cancelled with whoever waits here
        try:
            rows = await asyncio.wait_for(future, left_s)
        except asyncio.TimeoutError:
            raise timed_out(self.timeout_s) from None
        note(texts=len(rows), prompt_tokens=self.job.num_tokens)
        return self.write(rows, self.job.num_tokens)

    def close(self) -> None:
        """Nobody waits for it any more. Can be called twice."""
        if self.job is not None:
            self.job.future.cancel()
        self.lease.release()


_NO_ROWS: Rows = np.empty((0, 0), np.float32)
Lease = Callable[[str | None, Use], AbstractAsyncContextManager[ModelLease[LoadedEmbedder]]]
"""The model of a name, or the first for a use, loaded. Raises ApiError for one that computes no
rows."""


class EmbeddingRequests:
    """What bodies ask for, as rows that are being computed."""

    def __init__(self, intake: Intake, lease: Lease, timeout_s: float) -> None:
        self._intake, self._lease, self._timeout_s = intake, lease, timeout_s

    async def embed(self, body: Mapping[str, Any], holder: str) -> PendingRows:
        """A request of ``/v1/embeddings``. Raises ApiError and what the model refuses."""
        own = await self._intake.run(validated, EmbeddingsBody, body)
        async with self._embedding(own.model) as lease:
            model = lease.model
            num_dims = _checked_dims(model, own.dimensions)
            texts = await self._texts(model, own.input, "input", is_cut=False)

            def write(rows: Rows, num_tokens: int) -> Response:
                shown = normalised(rows[:, :num_dims])
                return responses.embeddings(own, model.name, shown, num_tokens)

            return self._pending(lease, texts, holder, write)

    async def rerank(self, body: Mapping[str, Any], holder: str) -> PendingRows:
        """A request of ``/v1/rerank``. Raises ApiError and what the model refuses."""
        own = await self._intake.run(validated, RerankBody, body)
        async with self._lease(own.model, "rerank") as lease:
            model = lease.model
            if model.use != "rerank":
                raise other_use(model)
            name = "texts" if own.is_short else "documents"
            texts = [
                await self._run(model, partial(model.read_pair, own.query, text, f"{name}[{i}]"))
                for i, text in enumerate(own.ranked)
            ]

            def write(rows: Rows, num_tokens: int) -> Response:
                scores = [float(row[0]) for row in rows]
                return responses.ranks(own, model.name, scores, num_tokens)

            return self._pending(lease, texts, holder, write)

    async def ollama_embed(self, body: Mapping[str, Any], holder: str) -> PendingRows:
        """A request of ``/api/embed``. Raises ApiError and what the model refuses."""
        own = await self._intake.run(validated, OllamaEmbedBody, body)
        async with self._embedding(own.model) as lease:
            model = lease.model
            num_dims = _checked_dims(model, own.dimensions)
            begin_s = perf_counter()
            given = [] if own.input == [""] else own.input  # a request to load the model
            texts = await self._texts(model, given, "input", is_cut=own.truncate)

            def write(rows: Rows, num_tokens: int) -> Response:
                shown = normalised(rows[:, :num_dims])
                return {
                    "model": tagged(model.name),
                    "embeddings": [partial(responses.numbers, row) for row in shown],
                    "total_duration": int(1e9 * (perf_counter() - begin_s)),
                    "load_duration": 0,
                    "prompt_eval_count": num_tokens,
                }

            return self._pending(lease, texts, holder, write)

    async def ollama_embeddings(self, body: Mapping[str, Any], holder: str) -> PendingRows:
        """A request of ``/api/embeddings``, whose rows are not normalised. Raises ApiError and what
        the model refuses."""
        own = await self._intake.run(validated, OllamaEmbeddingsBody, body)
        async with self._embedding(own.model) as lease:
            given = [own.prompt] if own.prompt else []
            texts = await self._texts(lease.model, given, "prompt", is_cut=True)

            def write(rows: Rows, num_tokens: int) -> Response:
                return {"embedding": responses.numbers(rows[0]) if len(rows) else []}

            return self._pending(lease, texts, holder, write)

    # --- parts

    @asynccontextmanager
    async def _embedding(self, name: str | None) -> AsyncIterator[ModelLease[LoadedEmbedder]]:
        async with self._lease(name, "embedding") as lease:
            if lease.model.use != "embedding":
                raise other_use(lease.model)
            yield lease

    async def _texts(
        self, model: LoadedEmbedder, given: list[Any], name: str, *, is_cut: bool
    ) -> list[Tokens]:
        """One by one, so that a request that has ended is prepared no further."""
        places = [name] if len(given) == 1 else [f"{name}[{i}]" for i in range(len(given))]
        return [
            await self._run(model, partial(model.read, text, place, is_cut=is_cut))
            for text, place in zip(given, places, strict=True)
        ]

    async def _run(self, model: LoadedEmbedder, call: Callable[[], Tokens]) -> Tokens:
        return await self._intake.run(model.guarded(call))

    def _pending(
        self, lease: ModelLease[LoadedEmbedder], texts: list[Tokens], holder: str, write: Written
    ) -> PendingRows:
        job = lease.model.scheduler.submit(texts, holder) if texts else None
        return PendingRows(lease, job, write, self._timeout_s, self._intake.begin_s)


def _checked_dims(model: LoadedEmbedder, wanted: int | None) -> int:
    """Numbers of an embedding. Raises ApiError for fewer than the model was trained for."""
    most = model.embedder.num_dims
    if wanted is None or wanted == most:
        return most
    if wanted > most:
        raise bad_field(
            "dimensions", f"dimensions is {wanted}, and '{model.name}' has {most}; use {most} or "
            "fewer, or leave it out",
        )  # fmt: skip
    if not model.embedder.is_matryoshka:
        raise bad_field(
            "dimensions", f"dimensions is {wanted}, and '{model.name}' is not known to be trained "
            f"for fewer than its {most}; leave it out",
        )  # fmt: skip
    return wanted
