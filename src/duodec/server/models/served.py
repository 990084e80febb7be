"""Keep a model in memory while requests or calls of other threads use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from duodec.models.metadata import Use
from duodec.server.errors import FINAL, ApiError, unavailable

_P = ParamSpec("_P")
_T = TypeVar("_T")
_M = TypeVar("_M", bound="Served")


class RequestThread(Protocol):
    """The thread that computes a model's requests."""

    @property
    def num_slots(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_taken(self) -> int:
        """Places in slots and in the queue that others cannot have."""

    @property
    def num_forwards(self) -> int: ...
    def drain(self, wait_s: float) -> bool:
        """Admit nothing any more, and wait for what is there: whether it came to its end."""

    def end_all(self, error: Exception) -> None:
        """End what runs or waits."""

    def close(self, wait_s: float | None = None) -> bool:
        """End the thread: whether it has ended by then. Can be called twice."""


class Served(ABC):
    """A model that is loaded and warm."""

    mapped_bytes = 0  # of weights, that count as free memory

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name, self.clock = name, clock
        self.num_leases = 0  # requests that use it, from their preparation to their last output
        self.used_s = clock()
        self._lock = Lock()
        self._num_calls = 0  # of other threads, which go on when their request has ended
        self._is_over = False

    @property
    @abstractmethod
    def scheduler(self) -> RequestThread:
        """What computes its requests."""

    @property
    def num_restarts(self) -> int:
        """Starts of its drafter after the first."""
        return 0

    @property
    @abstractmethod
    def use(self) -> Use:
        """What it is for."""

    @property
    @abstractmethod
    def capabilities(self) -> list[str]:
        """By Ollama's names."""

    @property
    @abstractmethod
    def num_context(self) -> int:
        """Most tokens of a text."""

    @property
    @abstractmethod
    def shares_cores(self) -> bool:
        """Whether it computes on cores of this machine."""

    @property
    @abstractmethod
    def computes_on_all_cores(self) -> bool:
        """A forward pass of it does now, on cores that preparing requests needs, too."""

    @property
    def chat_template(self) -> str | None:
        return None

    @abstractmethod
    def props(self) -> dict[str, Any]:
        """How it is served."""

    @abstractmethod
    def slots(self, owner: str | None) -> list[dict[str, Any]]:
        """What each slot works at, as far as this owner may know."""

    @abstractmethod
    def free(self) -> None:
        """Free it; its thread has ended."""

    @property
    def is_busy(self) -> bool:
        """Somebody uses it."""
        num_there = self.scheduler.num_running + self.scheduler.num_waiting
        return self.num_leases + self._num_calls + num_there > 0

    def end(self) -> bool:
        """Whether nobody uses it; then nobody can from now on."""
        with self._lock:
            self._is_over = self._is_over or not self.is_busy
            return self._is_over

    def guarded(self, call: Callable[_P, _T]) -> Callable[_P, _T]:
        """A call that uses the model in another thread: the model stays in memory until it returns,
        even if the request has ended meanwhile. Raises ApiError where the model is gone."""

        def made(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with self._lock:
                if self._is_over:
                    raise unavailable(f"the model '{self.name}' was unloaded; ask again")
                self._num_calls += 1
            try:
                return call(*args, **kwargs)
            finally:
                with self._lock:
                    self._num_calls -= 1

        return made

    def lease(self: _M) -> ModelLease[_M]:
        """Keep it in memory until the lease is released."""
        self.num_leases += 1
        return ModelLease(self)

    def close(self, wait_s: float | None = None) -> bool:
        """End the scheduler's thread: whether it has ended by then."""
        return self.scheduler.close(wait_s)


class ModelLease(Generic[_M]):
    """A request's use of a model; on the event loop only."""

    def __init__(self, model: _M) -> None:
        self.model = model
        self._is_open = True

    def release(self) -> None:
        """The model may be unloaded, as far as this request goes. Can be called twice."""
        if self._is_open:
            self._is_open = False
            self.model.num_leases -= 1
            self.model.used_s = self.model.clock()


def as_kind(lease: ModelLease[Served], kind: type[_M]) -> ModelLease[_M]:
    """The lease of a model of this kind; another is released. Raises ApiError."""
    if isinstance(lease.model, kind):
        return lease  # type: ignore[return-value]  # it says so
    lease.release()
    raise other_use(lease.model)


def other_use(model: Served) -> ApiError:
    """What a client is told whose request is for models of another use."""
    why = {
        "completion": "generates text: it makes no embeddings and ranks nothing, as its file names "
        "no pooling; serve a model that does, as one more with --also or alone, and ask for it by "
        "its name",
        "embedding": "makes embeddings (/v1/embeddings, /api/embed), and generates and ranks "
        "nothing; ask for another model",
        "rerank": "ranks texts (/v1/rerank), and generates nothing and makes no embeddings; ask "
        "for another model",
    }[model.use]
    return ApiError(
        400, f"the model '{model.name}' {why}", param="model", code="not_served", headers=FINAL
    )
