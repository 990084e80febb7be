"""Serve one loaded model: its scheduler's thread, the bounds of its prompts, who uses it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import Lock
from time import monotonic
from typing import Any, ParamSpec, TypeVar

from duodec.core.grammar import Grammar
from duodec.core.sampling import SamplingParams
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.methods.registry import DEFAULT_METHOD
from duodec.server.bounds import PromptBounds
from duodec.server.errors import unavailable
from duodec.server.intake import Intake
from duodec.server.meters import Meters
from duodec.server.scheduling import SchedulerThread
from duodec.server.settings import Settings
from duodec.server.shapes import progress

_P = ParamSpec("_P")
_T = TypeVar("_T")
_WARM_TOKENS = 16
UNLOADED: dict[str, Any] = {
    "total_slots": None, "n_ctx": None, "method": None, "chat_template": None,
    "speculation": {"has_draft_model": None, "shares_cores": None, "drafter_restarts": 0},
}  # fmt: skip
"""The properties of a model that is not loaded."""


class Served:
    """A model that has completed a request of our own: clients find it warm. ``turns`` is held
    while it computes."""

    def __init__(
        self,
        name: str,
        llm: LLM,
        method: str | None,
        settings: Settings,
        intake: Intake,
        meters: Meters,
        turns: AbstractContextManager[None] | None = None,
    ) -> None:
        self.name, self.llm = name, llm
        self.method = method  # where a request names none; None: the default
        self.num_held = 0  # requests that use it, from their preparation to their last word
        self.used_s = monotonic()
        self.mapped_bytes = _mapped_bytes(llm)
        self._lock = Lock()
        self._num_calls = 0  # of other threads, which go on when their request has ended
        self._is_over = False
        turns = turns or nullcontext()
        llm.num_chunk = 128 if llm.shares_cores else 512
        tokens = llm.tokens_of([0])
        params = SamplingParams(logit_bias=_without_ends(llm), max_tokens=_WARM_TOKENS)
        with turns:
            llm.generate([tokens], params, method=method)
        with suppress(BadOption):  # a model that has no grammars refuses them when one is asked for
            llm.check(tokens, SamplingParams(grammar=Grammar("regex", "warm")))
        self.bounds = PromptBounds.of(
            llm.tokenizer, llm.num_context, parse_special=llm.parse_special
        )
        llm.scheduler.on_end = meters.ended
        llm.scheduler.most_slots = max(1, llm.scheduler.num_slots - 1)
        if llm.shares_cores:
            llm.scheduler.num_chunk_in_company = 32  # takes two to four times as long as a token
            llm.scheduler.is_crowded = lambda: intake.is_preparing_large
        self.scheduler = SchedulerThread(llm.scheduler, num_queued=settings.num_queued, turns=turns)

    @property
    def is_busy(self) -> bool:
        """Somebody uses it."""
        num_there = self.scheduler.num_running + self.scheduler.num_waiting
        return self.num_held + self._num_calls + num_there > 0

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

    @property
    def num_restarts(self) -> int:
        """Starts of its drafter after the first."""
        return self.llm.drafter.restarts if self.llm.drafter else 0

    def hold(self) -> Hold:
        """Keep it in memory until the hold is released."""
        self.num_held += 1
        return Hold(self)

    def close(self, wait_s: float | None = None) -> bool:
        """End the scheduler's thread: whether it has ended by then."""
        return self.scheduler.close(wait_s)

    # --- what it is

    def props(self) -> dict[str, Any]:
        """How it is served."""
        llm = self.llm
        return {
            "total_slots": self.scheduler.num_slots,
            "n_ctx": llm.num_context,
            "method": self.method or DEFAULT_METHOD,
            "chat_template": llm.tokenizer.chat_template,
            "speculation": {
                "has_draft_model": llm.drafter is not None,
                "shares_cores": llm.shares_cores,
                "drafter_restarts": self.num_restarts,
            },
        }

    def slots(self) -> list[dict[str, Any]]:
        """What each slot works at; texts are nobody's business."""
        return [
            {
                "id": i, "is_processing": task is not None, "n_cached": num_cached,
                **(progress(task.counts) if task else {}),
            }
            for i, (task, num_cached) in enumerate(self.scheduler.slots)
        ]  # fmt: skip


class Hold:
    """A request's use of a model; on the event loop only."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self._is_open = True

    def release(self) -> None:
        """The model may be unloaded, as far as this request goes. Can be called twice."""
        if self._is_open:
            self._is_open = False
            self.served.num_held -= 1
            self.served.used_s = monotonic()


def _mapped_bytes(llm: LLM) -> int:
    """Bytes of weights that count as free memory, as they are mapped from a file."""
    model: Any = llm.tokenizer
    is_mapped = llm.shares_cores and not getattr(model, "is_read", True)
    return int(model.num_bytes) if is_mapped else 0


def _without_ends(llm: LLM) -> dict[int, float]:
    """A bias that keeps a completion from ending early."""
    eos = llm.tokenizer.eos
    return {eos: -float("inf")} if eos >= 0 else {}
