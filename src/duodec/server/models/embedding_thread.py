"""Compute embeddings in a thread of its own: texts of several requests share a forward pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from threading import Condition, Thread
from time import perf_counter

import numpy as np

from duodec.backends.loaded import Embedder, Rows
from duodec.core.sampling.sampler import Tokens
from duodec.server.errors import busy, unavailable

_IN_COMPANY = 64  # tokens of a forward pass while other models wait for the cores


class EmbeddingJob:
    """The texts of one request, and their rows once all of them are computed. Who cancels
    ``future`` has the rest of them left out."""

    def __init__(self, texts: Sequence[Tokens], owner: str, num_dims: int) -> None:
        self.texts, self.owner = texts, owner
        self.rows: Rows = np.zeros((len(texts), num_dims), np.float32)
        self.future: Future[Rows] = Future()
        self.arrive_s = perf_counter()
        self.next = 0  # text to compute
        self.num_computed = 0

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.texts))

    @property
    def is_over(self) -> bool:
        return self.future.done()


class EmbeddingThread:
    """Takes texts of waiting requests in turns: first among owners, then among the requests of an
    owner, so that a long list of texts keeps nobody waiting for longer than a forward pass.

    ``lock`` is held during each pass. While ``is_crowded`` tells that other models wait for it,
    passes are short. All methods may be called from any thread.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        num_slots: int,
        num_queued: int,
        lock: AbstractContextManager[None] | None = None,
        is_crowded: Callable[[], bool] = lambda: False,
        on_end: Callable[[EmbeddingJob], None] = lambda job: None,
    ) -> None:
        self._embedder = embedder
        self._num_slots, self._num_queued = num_slots, num_queued
        self._lock = lock or nullcontext()
        self._is_crowded, self._on_end = is_crowded, on_end
        self._owners: deque[deque[EmbeddingJob]] = deque()  # the next in turn first
        self._changed = Condition()
        self._is_draining = self._is_closed = False
        self.is_computing = False
        self._thread = Thread(target=self._run, name="duodec-embed", daemon=True)
        self._thread.start()

    # --- what it does

    @property
    def num_slots(self) -> int:
        return self._num_slots

    @property
    def num_taken(self) -> int:
        with self._changed:
            return sum(not job.is_over for jobs in self._owners for job in jobs)

    @property
    def num_running(self) -> int:
        return min(self.num_taken, self._num_slots)

    @property
    def num_waiting(self) -> int:
        return max(0, self.num_taken - self._num_slots)

    @property
    def num_forwards(self) -> int:
        return self._embedder.num_forwards

    # --- requests

    def submit(self, texts: Sequence[Tokens], owner: str) -> EmbeddingJob:
        """Admit the texts of a request. Raises ApiError when the queue is full, or at the end."""
        job = EmbeddingJob(texts, owner, self._embedder.num_dims)
        with self._changed:
            if self._is_draining:
                raise unavailable("the server is shutting down; ask again in a moment")
            if (taken := self.num_taken) >= self._num_slots + self._num_queued:
                raise busy(1, f"{taken} requests for embeddings wait; ask again in a moment")
            own = next((jobs for jobs in self._owners if jobs[0].owner == owner), None)
            if own is None:
                self._owners.append(deque([job]))
            else:
                own.append(job)
            self._changed.notify_all()
        return job

    def drain(self, wait_s: float) -> bool:
        with self._changed:
            self._is_draining = True
            return self._changed.wait_for(lambda: not self._owners, wait_s)

    def end_all(self, error: Exception) -> None:
        with self._changed:
            self._is_draining = True
            for jobs in self._owners:
                for job in jobs:
                    _fail(job, error)
            self._owners.clear()
            self._changed.notify_all()

    def close(self, wait_s: float | None = None) -> bool:
        self.end_all(unavailable("the server is shutting down"))
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    # --- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._owners or self._is_closed)
                if self._is_closed:
                    return
                chosen = self._chosen()
            if chosen:
                self._compute(chosen)
                del chosen

    def _chosen(self) -> list[tuple[EmbeddingJob, int]]:
        """The texts of the next forward pass: each with its request."""
        most = self._embedder.num_pass if not self._is_crowded() else _IN_COMPANY
        found: list[tuple[EmbeddingJob, int]] = []
        num_tokens = 0
        while self._owners:
            jobs = self._owners[0]
            if jobs[0].is_over or jobs[0].next == len(jobs[0].texts):
                jobs.popleft()
                if not jobs:
                    self._owners.popleft()
                    self._changed.notify_all()
                continue
            job = jobs[0]
            num_tokens += len(job.texts[job.next])
            if found and num_tokens > most:
                break
            found.append((job, job.next))
            job.next += 1
            jobs.rotate(-1)
            self._owners.rotate(-1)
            if len(found) == self._embedder.most_texts:
                break
        return found

    def _compute(self, chosen: Sequence[tuple[EmbeddingJob, int]]) -> None:
        try:
            with self._lock:
                self.is_computing = True
                rows = self._embedder.rows([job.texts[number] for job, number in chosen])
        except Exception as error:  # noqa: BLE001  told to those whose texts these are
            for job, _ in chosen:
                _fail(job, error)
            return
        finally:
            self.is_computing = False
        for (job, number), row in zip(chosen, rows, strict=True):
            job.rows[number] = row
            job.num_computed += 1
            if job.num_computed == len(job.texts) and job.future.set_running_or_notify_cancel():
                self._on_end(job)
                job.future.set_result(job.rows)


def _fail(job: EmbeddingJob, error: Exception) -> None:
    if not job.is_over and job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
